"""Counters over any sequence of scrapes: never negative, telescoping, blind to the order of series and frontends."""

import math
from collections.abc import Mapping
from itertools import accumulate, pairwise

from hypothesis import given
from hypothesis import strategies as st
from metrics_support import page

from headrace.connectors.sources.counters import (
    Histogram,
    distribution,
    histogram_increase,
    increase,
    merge,
    total_increase,
)
from headrace.connectors.sources.frontend_page import Reading, Selector, read_page
from headrace.connectors.sources.frontend_windows import FrontendWindows
from headrace.schemas.codec import decode, encode
from headrace.schemas.traffic import TrafficWindow

counts = st.integers(min_value=0, max_value=10**9)
scrapes = st.lists(st.dictionaries(st.sampled_from("abcdef"), counts.map(float)), max_size=20)
steps = st.lists(st.integers(min_value=0, max_value=1000), min_size=1, max_size=20)


@given(scrapes)
def test_an_increase_is_never_negative_whatever_is_scraped(readings: list[dict[str, float]]) -> None:
    for before, now in pairwise(readings):
        assert total_increase(before, now) >= 0.0


@given(counts, counts)
def test_an_increase_is_never_more_than_the_counter_shows(before: int, now: int) -> None:
    assert 0 <= increase(float(before), float(now)) <= now


@given(counts, steps)
def test_without_resets_the_increases_add_up_to_last_minus_first(first: int, added: list[int]) -> None:
    readings = list(accumulate(added, initial=first))
    assert sum(increase(float(a), float(b)) for a, b in pairwise(readings)) == readings[-1] - first


@given(st.lists(steps, min_size=1, max_size=4))
def test_over_restarts_everything_that_was_seen_is_counted_once(lives: list[list[int]]) -> None:
    """Each life of a process counts from zero and is scraped after each step; a restart shows if it shows less."""
    readings = [float(value) for life in lives for value in accumulate(life)]
    added = sum(increase(a, b) for a, b in pairwise([0.0, *readings]))
    seen = sum(sum(life) for life in lives)
    assert added <= seen
    ends = [sum(life) for life in lives]
    if all(life[0] < end for end, life in zip(ends, lives[1:], strict=False)):
        assert added == seen


@given(scrapes, st.randoms(use_true_random=False))
def test_the_order_of_the_series_does_not_matter(readings: list[dict[str, float]], random: object) -> None:
    for before, now in pairwise(readings):
        shuffled = list(now.items())
        random.shuffle(shuffled)  # type: ignore[attr-defined]
        assert total_increase(before, dict(shuffled)) == total_increase(before, now)


@st.composite
def histograms(draw: st.DrawFn) -> Histogram:
    per_bucket = draw(st.lists(st.integers(min_value=0, max_value=1000), min_size=4, max_size=4))
    *cumulative, count = accumulate(float(n) for n in per_bucket)
    total = draw(st.floats(min_value=0, max_value=1e6)) if count else 0.0
    return Histogram(count, total, (1.0, 2.0, 4.0), tuple(cumulative))


@given(histograms(), histograms())
def test_what_a_histogram_adds_is_a_histogram(before: Histogram, now: Histogram) -> None:
    added = histogram_increase(before, now)
    made = distribution(added)
    assert added.count >= 0
    assert added.total >= 0
    assert all(step >= 0 for step in added.cumulative)
    assert made.counts == [] or sum(made.counts) == made.count
    assert (made.mean is None) == (made.count == 0)


@given(st.lists(histograms(), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_merging_does_not_depend_on_the_order(parts: list[Histogram], random: object) -> None:
    shuffled = list(parts)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert merge(shuffled) == merge(parts)


@given(st.lists(histograms(), min_size=1, max_size=6))
def test_a_merged_mean_lies_between_the_means(parts: list[Histogram]) -> None:
    means = [part.total / part.count for part in parts if part.count]
    mean = distribution(merge(parts)).mean
    if means:
        assert mean is not None
        assert min(means) * (1 - 1e-9) <= mean <= max(means) * (1 + 1e-9)


# --- windows over frontends that fail and restart

arrivals = st.integers(min_value=0, max_value=50)
frontend_rounds = st.lists(
    st.tuples(arrivals, arrivals, st.sampled_from(["ok", "ok", "ok", "fail a", "fail b", "restart a"])),
    min_size=1,
    max_size=25,
)


def windows_of(rounds: list[tuple[int, int, str]]) -> tuple[list[TrafficWindow], int, int]:
    """Windows of two frontends; the arrivals after the first known round, and those until the last known window."""
    windows = FrontendWindows("ml/llama", "f", ["a", "b"])
    uptimes, shown = {"a": 1000.0, "b": 1000.0}, {"a": 500, "b": 700}
    made: list[TrafficWindow] = []
    arrived = total = known = 0
    for n, (to_a, to_b, event) in enumerate([(0, 0, "ok"), *rounds]):
        if event == "restart a":
            uptimes["a"], shown["a"] = -4.0, 0  # it begins right after the scrape before, and loses nothing unseen
        readings: dict[str, Reading | str] = {}
        for name, added in (("a", to_a), ("b", to_b)):
            shown[name] += added
            uptimes[name] += 5.0
            body = page(started=shown[name], process=name, uptime=uptimes[name])
            readings[name] = "refused" if event == f"fail {name}" else read_page(body, Selector())
        arrived += to_a + to_b
        window = windows.round(1000.0 + 5 * n, readings)
        if window is not None:
            assert decode("traffic", encode(window)) == window
            made.append(window)
            if window.requests is not None:
                known = arrived
        total = arrived
    return made, total, known


@given(frontend_rounds.filter(lambda rounds: not any("restart" in event for _, _, event in rounds)))
def test_every_arrival_until_the_last_known_window_is_in_exactly_one_window(rounds: list[tuple[int, int, str]]) -> None:
    made, _, known = windows_of(rounds)
    assert sum(window.requests or 0 for window in made) == known


@given(frontend_rounds)
def test_known_windows_follow_each_other_without_gap_or_overlap(rounds: list[tuple[int, int, str]]) -> None:
    made, _, _ = windows_of(rounds)
    known = [window for window in made if window.requests is not None]
    assert all(before.end == after.start for before, after in pairwise(known))
    assert all(window.start == 1000.0 for window in known[:1])


@given(frontend_rounds)
def test_arrivals_are_never_negative_and_never_more_than_arrived(rounds: list[tuple[int, int, str]]) -> None:
    made, total, _ = windows_of(rounds)
    assert all(window.requests is None or window.requests >= 0 for window in made)
    assert sum(window.requests or 0 for window in made) <= total


@given(frontend_rounds)
def test_a_window_is_unknown_exactly_when_a_frontend_could_not_be_read(rounds: list[tuple[int, int, str]]) -> None:
    made, _, _ = windows_of(rounds)
    assert [window.requests is None for window in made] == ["fail" in event for _, _, event in rounds]


@given(frontend_rounds)
def test_window_ids_are_unique_and_the_same_when_it_all_happens_again(rounds: list[tuple[int, int, str]]) -> None:
    made, _, _ = windows_of(rounds)
    assert len({window.window_id for window in made}) == len(made)
    assert windows_of(rounds)[0] == made


@given(st.dictionaries(st.sampled_from(["isl", "osl", "ttft", "itl"]), st.sampled_from(["NaN", "+Inf", "-Inf", "-1"])))
def test_a_number_that_is_none_makes_its_own_field_unknown_and_no_other(bad: Mapping[str, str]) -> None:  # T6
    windows = FrontendWindows("ml/llama", "f", ["a"])
    good = {"isl": (4, 40), "osl": (4, 40), "ttft": (4, 4), "itl": (4, 4)}
    windows.round(10.0, {"a": read_page(page(started=4, completed=4, **good), Selector())})  # type: ignore[arg-type]
    second = {name: (8, bad.get(name, 80)) for name in good}
    window = windows.round(15.0, {"a": read_page(page(started=8, completed=8, **second), Selector())})  # type: ignore[arg-type]
    assert window is not None
    assert window.requests == 4
    fields = {"isl": window.isl, "osl": window.osl, "ttft": window.ttft_s, "itl": window.itl_s}
    assert {name for name, value in fields.items() if value is None} == set(bad)
    assert all(value is None or (value.mean is not None and math.isfinite(value.mean)) for value in fields.values())
