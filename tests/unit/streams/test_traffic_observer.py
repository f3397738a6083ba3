"""Traffic windows: each counted once, unknown told from zero."""

import msgspec
import pytest
from msgspec.structs import replace
from world import window

from headrace.models.known import Known, Unknown
from headrace.schemas.traffic import Distribution
from headrace.streams.agents.traffic import REMEMBERED_IDS, Observation, TrafficObserver


@pytest.fixture
def traffic() -> TrafficObserver:
    return TrafficObserver(max_skew_s=30.0)


def give(traffic: TrafficObserver, *windows, at: float | None = None) -> list[str | None]:
    return [traffic.handle(w, w.end if at is None else at) for w in windows]


def test_windows_become_one_observation(traffic):
    give(traffic, window(0, 60, 60, isl=1000), window(60, 120, 180, isl=2000), window(120, 180, 0))
    assert traffic.close_interval(180) == Known(Observation(240, 180.0, 1750.0, 200.0))


def test_a_true_zero_is_known(traffic):  # case T1, dynamo#6985: means of nothing are undefined, the count is not
    give(traffic, window(0, 180, 0))
    seen = traffic.close_interval(180)
    assert seen == Known(Observation(0, 180.0, None, None))
    assert isinstance(seen, Known)
    assert seen.value.requests_per_s == 0.0


def test_requests_whose_lengths_nobody_measured_are_unknown(traffic):  # case T1: the same means, count 5
    nothing = Distribution(count=5, mean=None)
    give(traffic, replace(window(0, 180, 5), isl=nothing, osl=nothing))
    assert traffic.close_interval(180) == Unknown("5 requests arrived, but their input or output lengths are unknown")


def test_a_failed_read_is_unknown_and_not_zero(traffic):  # case T2, dynamo#14765
    give(traffic, window(0, 180, None))
    assert traffic.close_interval(180) == Unknown("only 0 s of 180 s are known: the scrape failed")


def test_silence_is_unknown(traffic):
    assert traffic.close_interval(180) == Unknown("no traffic window has come in this interval")


def test_half_of_an_interval_speaks_for_it_and_less_does_not(traffic):
    give(traffic, window(0, 90, 90), window(90, 180, None))
    assert traffic.close_interval(180) == Known(Observation(90, 90.0, 1000.0, 200.0))
    give(traffic, window(180, 269, 90))
    assert isinstance(traffic.close_interval(180), Unknown)


def test_an_interval_begins_anew_after_it_was_closed(traffic):
    give(traffic, window(0, 180, 90))
    traffic.close_interval(180)
    assert isinstance(traffic.close_interval(180), Unknown)


def test_a_window_counts_once(traffic):
    give(traffic, *[window(0, 180, 90)] * 3)
    traffic.close_interval(180)
    give(traffic, window(0, 180, 90), at=360.0)
    assert isinstance(traffic.close_interval(180), Unknown)
    assert traffic.duplicates == 3


def test_the_order_of_windows_makes_no_difference(traffic):
    windows = [window(60.0 * i, 60.0 * (i + 1), 10 * i, kv_hit_rate=i / 10) for i in range(3)]
    give(traffic, *windows)
    other = TrafficObserver(max_skew_s=30.0)
    give(other, *reversed(windows), at=180.0)
    assert (traffic.close_interval(180), traffic.kv_hit_rate) == (other.close_interval(180), other.kv_hit_rate)
    assert traffic.shown(180.0, 180.0) == other.shown(180.0, 180.0)


def test_a_late_window_does_not_distort_the_rate(traffic):
    give(traffic, window(60, 180, 120))
    traffic.close_interval(180)
    give(traffic, window(0, 60, 60), window(180, 360, 180), at=360.0)
    seen = traffic.close_interval(180)
    assert isinstance(seen, Known)
    assert seen.value.requests_per_s == 1.0


@pytest.mark.parametrize("start", [-1e9, 0.0, 500.0])
def test_a_window_without_a_believable_length_is_not_used(traffic, start):
    # A start that nobody set would make a rate of next to nothing of any count: idleness in disguise.
    late = window(1_000_000.0, 1_000_000.0, 100) if start == 500.0 else window(max(0.0, start), 1_000_000.0, 100)
    (why,) = give(traffic, late)
    assert why is not None
    assert "are believed" in why
    assert isinstance(traffic.close_interval(180), Unknown)


@pytest.mark.parametrize("behind", [1801.0, 1e8])
def test_a_window_from_long_ago_is_too_late(traffic, behind):
    (why,) = give(traffic, window(2e8 - behind - 60, 2e8 - behind, 100), at=2e8)
    assert why is not None
    assert "too late" in why


def test_a_clock_ahead_does_not_hide_what_follows(traffic):
    give(traffic, window(1e9, 1e9 + 60, 60, kv_hit_rate=0.9), at=60.0)
    give(traffic, window(60, 120, 60, kv_hit_rate=0.2), at=120.0)
    assert traffic.kv_hit_rate == 0.2
    assert traffic.shown(130.0, 180.0)[0]["kv_hit_rate"] == 0.2


def test_the_last_valid_hit_rate_is_kept(traffic):
    give(traffic, window(0, 60, 60, kv_hit_rate=0.4, accept_length=1.5), window(60, 120, 60))
    assert (traffic.kv_hit_rate, traffic.accept_length) == (0.4, 1.5)


def test_an_older_window_that_comes_late_does_not_replace_the_hit_rate(traffic):
    give(traffic, window(60, 120, 60, kv_hit_rate=0.4), window(0, 60, 60, kv_hit_rate=0.9), at=120.0)
    assert traffic.kv_hit_rate == 0.4


def test_memory_stays_small_and_forgotten_windows_stay_counted(traffic):
    windows = [window(float(i), float(i + 1), 1) for i in range(4 * REMEMBERED_IDS)]
    give(traffic, *windows)
    assert len(traffic.ids) == REMEMBERED_IDS
    assert len(msgspec.json.encode(traffic.to_state())) < 20_000
    traffic.close_interval(180)
    give(traffic, *windows, at=float(4 * REMEMBERED_IDS))
    assert isinstance(traffic.close_interval(180), Unknown)


def test_the_newest_window_is_shown_until_it_is_old(traffic):
    assert traffic.shown(0.0, 180.0) == ({}, {"load": "no traffic window has come"})
    give(traffic, window(0, 10, 20, unknown={"kv_hit_rate": "no series", "nonsense": "x"}))
    numbers, missing = traffic.shown(180.0, 180.0)
    assert numbers == {"requests_per_s": 2.0, "isl": 1000.0, "osl": 200.0, "window_s": 10.0, "window_end": 10.0}
    assert missing == {"kv_hit_rate": "no series"}
    assert traffic.shown(191.0, 180.0) == ({}, {"load": "the newest traffic window ended 181 s ago"})


def test_state_comes_back_as_it_was(traffic):
    give(traffic, window(0, 60, 60, kv_hit_rate=0.4), window(60, 120, None))
    other = TrafficObserver(max_skew_s=30.0)
    other.load_state(msgspec.json.decode(msgspec.json.encode(traffic.to_state())))
    assert msgspec.json.encode(other.to_state()) == msgspec.json.encode(traffic.to_state())
    for observer in (traffic, other):
        give(observer, window(0, 60, 60), window(120, 180, 60))
    assert traffic.close_interval(180) == other.close_interval(180)
