"""Windows from rounds of scrapes: what is known, what is not, and that no arrival is lost or counted twice."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from metrics_support import page

from headrace.connectors.sources.frontend_page import Reading, Selector, read_page
from headrace.connectors.sources.frontend_windows import FrontendWindows, Since, since
from headrace.schemas.codec import decode, encode
from headrace.schemas.errors import ConfigError
from headrace.schemas.traffic import TrafficWindow

DGD = "ml/llama"
Round = tuple[float, Mapping[str, Reading | str]]


def reading(**metrics: Any) -> Reading:
    return read_page(page(**metrics), Selector())


def run(rounds: Sequence[Round], *addresses: str) -> list[TrafficWindow]:
    """The windows that a sequence of rounds gives."""
    windows = FrontendWindows(DGD, "frontend", addresses or ("a",))
    made = [window for at, readings in rounds if (window := windows.round(at, readings)) is not None]
    for window in made:
        assert decode("traffic", encode(window)) == window
    return made


def test_the_first_round_counts_nothing() -> None:
    assert run([(10.0, {"a": reading(started=1000)})]) == []


def test_a_window_reaches_from_scrape_to_scrape() -> None:
    [window] = run([(10.0, {"a": reading(started=1000)}), (15.2, {"a": reading(started=1007)})])
    assert (window.start, window.end, window.requests) == (10.0, 15.2, 7)
    assert "requests" not in window.unknown


def test_a_window_has_an_id_of_its_source_and_times() -> None:
    [window] = run([(10.0, {"a": reading(started=1)}), (15.25, {"a": reading(started=2)})])
    assert window.window_id == "frontend/10.000-15.250"


def test_arrivals_are_summed_and_means_weighted_over_frontends() -> None:
    start = {"a": reading(started=0), "b": reading(started=0)}
    end = {
        "a": reading(started=1, completed=1, isl=(1, 1000), osl=(1, 10)),
        "b": reading(started=99, completed=99, isl=(99, 9900), osl=(99, 1980)),
    }
    [window] = run([(10.0, start), (15.0, end)], "a", "b")
    assert window.requests == 100
    assert window.isl is not None
    assert window.osl is not None
    assert (window.isl.count, window.isl.mean) == (100, 109.0)
    assert (window.osl.count, window.osl.mean) == (100, 19.9)


def test_an_idle_window_is_a_known_zero_with_undefined_means() -> None:  # T1, dynamo#6985
    [window] = run([(10.0, {"a": reading(started=7, isl=(7, 70))}), (15.0, {"a": reading(started=7, isl=(7, 70))})])
    assert window.requests == 0
    assert window.isl is not None
    assert (window.isl.count, window.isl.mean) == (0, None)
    assert "isl" not in window.unknown


def test_a_series_that_appears_between_two_scrapes_counts_from_zero() -> None:  # prometheus#3806
    unary = {("completions", "unary"): 1}
    both = {("completions", "unary"): 1, ("completions", "stream"): 9}
    [window] = run([(10.0, {"a": reading(started=unary)}), (15.0, {"a": reading(started=both)})])
    assert window.requests == 9


def test_a_failed_scrape_makes_the_window_unknown_and_says_which() -> None:  # T2, dynamo#14765
    rounds: list[Round] = [
        (10.0, {"a": reading(started=1), "b": reading(started=1)}),
        (15.0, {"a": reading(started=5), "b": "connection refused"}),
    ]
    [window] = run(rounds, "a", "b")
    assert window.requests is None
    assert window.isl is None
    assert window.unknown["requests"] == "b: connection refused"
    assert window.unknown["isl"] == "b: connection refused"


def test_the_window_after_a_failed_scrape_spans_the_gap_and_loses_no_arrival() -> None:
    rounds: list[Round] = [
        (10.0, {"a": reading(started=1), "b": reading(started=1)}),
        (15.0, {"a": reading(started=5), "b": "timeout"}),
        (20.0, {"a": reading(started=6), "b": reading(started=11)}),
        (25.0, {"a": reading(started=6), "b": reading(started=12)}),
    ]
    unknown, spanning, after = run(rounds, "a", "b")
    assert (unknown.start, unknown.end, unknown.requests) == (10.0, 15.0, None)
    assert (spanning.start, spanning.end, spanning.requests) == (10.0, 20.0, 5 + 10)
    assert "spans 10.0 s" in spanning.unknown["gap"]
    assert (after.start, after.end, after.requests) == (20.0, 25.0, 1)
    assert "gap" not in after.unknown


def test_a_restart_inside_a_gap_is_counted_as_far_as_it_was_seen() -> None:
    rounds: list[Round] = [
        (10.0, {"a": reading(started=10), "b": reading(started=0)}),
        (15.0, {"a": reading(started=14), "b": "timeout"}),
        (20.0, {"a": reading(started=2), "b": "timeout"}),
        (25.0, {"a": reading(started=6), "b": reading(started=0)}),
    ]
    assert run(rounds, "a", "b")[-1].requests == 4 + 2 + 4


def test_a_frontend_that_is_first_read_later_is_a_baseline_too() -> None:
    rounds: list[Round] = [
        (10.0, {"a": reading(started=1), "b": "connection refused"}),
        (15.0, {"a": reading(started=2), "b": "connection refused"}),
        (20.0, {"a": reading(started=3), "b": reading(started=1_000_000)}),
        (25.0, {"a": reading(started=5), "b": reading(started=1_000_003)}),
    ]
    first, second, third = run(rounds, "a", "b")
    assert (first.requests, second.requests) == (None, None)
    assert "first time" in second.unknown["requests"]
    assert (third.start, third.requests) == (20.0, 2 + 3)


def test_a_restart_is_a_reset_of_all_that_the_frontend_counted() -> None:
    """Uptime tells it: without it, the series that has already passed its old value would add too little."""
    before = reading(started={("c", "stream"): 100, ("c", "unary"): 2}, process="p1", uptime=3600.0)
    after = reading(started={("c", "stream"): 5, ("c", "unary"): 4}, process="p2", uptime=3.0)
    [window] = run([(10.0, {"a": before}), (15.0, {"a": after})])
    assert window.requests == 9


def test_a_restart_that_tells_no_uptime_is_seen_series_by_series() -> None:
    [window] = run([(10.0, {"a": reading(started=21)}), (15.0, {"a": reading(started=8)})])
    assert window.requests == 8


def test_another_process_behind_the_address_adds_nothing_and_is_said() -> None:
    """A load balancer between us and two frontends: each scrape would add a whole history."""
    one = reading(started=1_000_000, process="p1", uptime=3600.0)
    two = reading(started=999_000, process="p2", uptime=3500.0)
    rounds: list[Round] = [(10.0, {"a": one}), (15.0, {"a": two}), (20.0, {"a": one})]
    for window in run(rounds):
        assert window.requests is None
        assert "load balancer" in window.unknown["requests"]


def test_after_another_process_answered_counting_begins_anew() -> None:
    rounds: list[Round] = [
        (10.0, {"a": reading(started=500, process="p1", uptime=3600.0)}),
        (15.0, {"a": reading(started=900, process="p2", uptime=3500.0)}),
        (20.0, {"a": reading(started=903, process="p2", uptime=3505.0)}),
    ]
    last = run(rounds)[-1]
    assert (last.start, last.end, last.requests) == (15.0, 20.0, 3)


def test_counting_begins_anew_only_in_a_round_in_which_all_were_read() -> None:
    """Else what one frontend counted before that round would fall into the window after it."""
    rounds: list[Round] = [
        (10.0, {"a": reading(started=500, process="p1", uptime=3600.0), "b": reading(started=0)}),
        (15.0, {"a": reading(started=900, process="p2", uptime=3500.0), "b": "timeout"}),
        (20.0, {"a": reading(started=901, process="p2", uptime=3505.0), "b": reading(started=70)}),
        (25.0, {"a": reading(started=903, process="p2", uptime=3510.0), "b": reading(started=73)}),
    ]
    first, second, third = run(rounds, "a", "b")
    assert (first.requests, second.requests) == (None, None)
    assert (third.start, third.requests) == (20.0, 2 + 3)


def test_a_histogram_that_is_no_number_is_unknown_until_it_has_two_readings_again() -> None:  # T6
    rounds: list[Round] = [
        (10.0, {"a": reading(started=1, isl=(1, 10))}),
        (15.0, {"a": reading(started=2, isl=(2, "NaN"))}),
        (20.0, {"a": reading(started=3, isl=(3, 30))}),
        (25.0, {"a": reading(started=5, isl=(5, 90))}),
    ]
    windows = run(rounds)
    assert [w.requests for w in windows] == [1, 1, 2]
    assert [w.isl is None for w in windows] == [True, True, False]
    assert "sum nan" in windows[0].unknown["isl"]
    assert windows[2].isl is not None
    assert windows[2].isl.mean == 30.0


def test_completions_stand_in_for_arrivals_with_a_note() -> None:  # row 4
    [window] = run(
        [(10.0, {"a": reading(started=None, completed=1)}), (15.0, {"a": reading(started=None, completed=4)})]
    )
    assert window.requests == 3
    assert "completions" in window.unknown["arrivals"]


def test_arrivals_are_counted_from_zero_where_a_frontend_has_had_none_yet() -> None:
    first = reading(started=None, completed=None)
    [window] = run([(10.0, {"a": first}), (15.0, {"a": reading(started=4, completed=1)})])
    assert window.requests == 4
    assert "arrivals" not in window.unknown


def test_the_hit_rate_is_a_mean_over_what_was_routed() -> None:
    start = reading(started=0, hits={"ns": (10, 5.0)})
    end = reading(started=4, hits={"ns": (14, 8.0)})
    [window] = run([(10.0, {"a": start}), (15.0, {"a": end})])
    assert window.kv_hit_rate == 0.75


def test_a_hit_rate_above_one_is_one() -> None:  # T19
    start, end = reading(started=0, hits={"ns": (10, 5.0)}), reading(started=4, hits={"ns": (14, 10.2)})
    [window] = run([(10.0, {"a": start}), (15.0, {"a": end})])
    assert window.kv_hit_rate == 1.0


@pytest.mark.parametrize(
    ("hits", "why"), [({"ns": (10, 5.0)}, "nothing was routed"), (None, "no frontend has a KV router")]
)
def test_a_hit_rate_of_nothing_is_unknown(hits: Any, why: str) -> None:
    [window] = run([(10.0, {"a": reading(started=1, hits=hits)}), (15.0, {"a": reading(started=2, hits=hits)})])
    assert window.kv_hit_rate is None
    assert window.unknown["kv_hit_rate"] == why


def test_a_clock_that_goes_backwards_begins_anew() -> None:
    rounds: list[Round] = [
        (100.0, {"a": reading(started=1)}),
        (40.0, {"a": reading(started=5)}),
        (45.0, {"a": reading(started=7)}),
    ]
    [window] = run(rounds)
    assert (window.start, window.end, window.requests) == (40.0, 45.0, 2)


def test_a_frontend_that_was_not_scraped_makes_the_window_unknown() -> None:
    [window] = run([(10.0, {"a": reading(started=1)}), (15.0, {})])
    assert window.unknown["requests"] == "a: not scraped"


@pytest.mark.parametrize(
    ("before", "now", "elapsed_s", "expected"),
    [
        (("p", 10.0), ("p", 15.0), 5.0, Since.LAST_READING),
        (("p", 10.0), ("p", 2.0), 5.0, Since.ZERO),
        (("p", 10.0), ("q", 2.0), 5.0, Since.ZERO),
        (("p", 10.0), ("q", 900.0), 5.0, Since.NOWHERE),
        (("p", None), ("q", 900.0), 5.0, Since.LAST_READING),
        (("p", 10.0), ("q", None), 5.0, Since.LAST_READING),
    ],
)
def test_what_a_reading_continues(
    before: tuple[str, float | None], now: tuple[str, float | None], elapsed_s: float, expected: Since
) -> None:
    one, two = (reading(started=1, process=p, uptime=u) for p, u in (before, now))
    assert since(one, two, elapsed_s) is expected


def test_a_first_reading_continues_nothing() -> None:
    assert since(None, reading(started=1), 5.0) is Since.NOWHERE


@pytest.mark.parametrize(("addresses", "word"), [([], "no frontend"), (["a", "a"], "twice")])
def test_a_source_without_frontends_or_with_one_twice_is_refused(addresses: list[str], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        FrontendWindows(DGD, "frontend", addresses)


def test_a_name_that_leaves_no_room_for_the_window_is_refused() -> None:
    with pytest.raises(ConfigError, match="200 at most"):
        FrontendWindows(DGD, "x" * 240, ["a"])
