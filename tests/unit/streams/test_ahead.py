"""What is remembered of traffic, however often it is measured."""

from collections.abc import Iterator

import msgspec
import pytest
from msgspec.structs import replace
from world import window

from headrace.models.scaling.demand import lengths, prompt_mix, rate
from headrace.schemas.config import PlannerConfig, planner_config
from headrace.schemas.traffic import Distribution, TrafficWindow
from headrace.streams.agents.ahead import DemandAhead

SHORT, LONG = [10, 0, 0], [0, 10, 5]


def config(**changes: object) -> PlannerConfig:
    return planner_config({"optimization_target": "sla", "enable_load_scaling": True, **changes})


def traffic(count: int, seconds: float, first: float = 0.0) -> Iterator[TrafficWindow]:
    """Windows of short prompts and of long ones in turn."""
    for i in range(count):
        start = first + i * seconds
        counts, mean = (SHORT, 50.0) if i % 2 else (LONG, 400.0)
        isl = Distribution(count=sum(counts), mean=mean, bounds=[100.0, 500.0], counts=counts)
        yield replace(window(start, start + seconds, 10 * i % 70, isl=100, osl=50), isl=isl)


def seen(windows: Iterator[TrafficWindow]) -> DemandAhead:
    ahead = DemandAhead(config())
    for w in windows:
        ahead.observe(w, w.end)
    return ahead


def test_windows_of_a_second_are_kept_in_grains_of_five() -> None:
    ahead = seen(traffic(600, 1.0))
    assert len(ahead.slices) == 120
    assert {s.seconds for s in ahead.slices} == {5.0}


def test_windows_of_five_seconds_and_more_are_kept_as_they_are() -> None:
    assert [s.seconds for s in seen(traffic(6, 5.0)).slices] == [5.0] * 6
    assert [s.seconds for s in seen(traffic(6, 30.0)).slices] == [30.0] * 6


def test_what_is_put_together_has_the_same_rate_lengths_and_mix() -> None:
    ahead = seen(traffic(60, 1.0))
    fine = [s for w in traffic(60, 1.0) for s in seen(iter([w])).slices]
    assert rate(list(ahead.slices), 0.0) == pytest.approx(rate(fine, 0.0))
    assert lengths(ahead.slices) == pytest.approx(lengths(fine))
    coarse, exact = prompt_mix(ahead.mixes), prompt_mix(w for t in traffic(60, 1.0) for w in seen(iter([t])).mixes)
    assert coarse is not None
    assert exact is not None
    assert coarse.cv2 == pytest.approx(exact.cv2)


def test_histograms_are_kept_by_the_minute_and_come_back_from_a_snapshot() -> None:
    ahead, again = seen(traffic(300, 1.0)), DemandAhead(config())
    assert [s.seconds for s in ahead.mixes] == [60.0] * 5
    again.load_state(msgspec.json.decode(msgspec.json.encode(ahead.to_state())))
    assert again.look(None, 30.0, 300.0) == ahead.look(None, 30.0, 300.0)


def test_what_an_older_planner_kept_is_forgotten() -> None:
    ahead = seen(traffic(10, 1.0))
    ahead.load_state([[10.0, 5.0, 3, 3, 300.0, 0.0, 3, 150.0]])
    assert not ahead.slices
    assert ahead.look(None, 30.0, 10.0) is None


def test_a_gap_stays_a_gap() -> None:
    ahead = seen(traffic(2, 1.0))
    later = next(traffic(1, 1.0, first=10.0))
    ahead.observe(later, later.end)
    assert [(s.end, s.seconds) for s in ahead.slices] == [(2.0, 2.0), (11.0, 1.0)]


def test_a_demand_that_was_looked_at_is_looked_at_anew_after_a_window_or_another_configuration() -> None:
    ahead = seen(traffic(60, 1.0))
    before = ahead.look(None, 30.0, 60.0)
    assert ahead.look(None, 30.0, 60.0) is before
    more = replace(next(traffic(1, 1.0, first=60.0)), requests=5000)
    ahead.observe(more, 60.0)
    after = ahead.look(None, 30.0, 60.0)
    assert before is not None
    assert after is not None
    assert after.demand.requests_per_s > before.demand.requests_per_s
    ahead.configure(config(queue_late_share=0.001))
    stricter = ahead.look(None, 30.0, 60.0)
    assert stricter is not None
    assert stricter.demand.requests_per_s > after.demand.requests_per_s
