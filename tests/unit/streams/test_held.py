"""What decoding requests hold, over the last minutes."""

import pytest

from headrace.models.perf.latency import EngineLoad
from headrace.streams.agents.held import Held


def batch(requests: int, tokens: int) -> EngineLoad:
    return EngineLoad(scheduled_decode_requests=requests, scheduled_decode_kv_tokens=tokens)


def test_a_mean_counts_requests_and_not_engines() -> None:
    held = Held()
    held.see([batch(90, 90_000), batch(10, 50_000)], 5.0)
    assert held.mean == pytest.approx(1400.0)


def test_a_few_requests_tell_nothing_until_enough_were_seen() -> None:
    held = Held()
    held.see([batch(20, 20_000)], 0.0)
    assert held.mean is None
    held.see([batch(20, 60_000)], 0.0)
    assert held.mean == pytest.approx(2000.0)


def test_a_sight_counts_less_with_every_minute() -> None:
    held = Held()
    held.see([batch(100, 100_000)], 0.0)
    held.see([batch(100, 300_000)], 120.0)
    assert held.mean == pytest.approx((1000.0 * 0.367879 + 3000.0) / 1.367879)


def test_silence_makes_what_was_seen_unknown_and_no_zero() -> None:
    held = Held()
    held.see([batch(100, 100_000)], 0.0)
    held.see([], 600.0)
    assert held.mean is None
