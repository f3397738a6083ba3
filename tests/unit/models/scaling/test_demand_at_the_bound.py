"""What arrives, at the bounds: how few prompts tell a spread, how wide one is believed, what an empty part means."""

import msgspec
import pytest
from world import window

from headrace.models.scaling.demand import Slice, answer_cv2, lengths, prompt_mix, rate, slice_of
from headrace.schemas.traffic import Distribution


def prompts(mean: float, bounds: list[float], counts: list[int]) -> Slice:
    """A window of ten seconds with these prompts, the last count beyond the last bound."""
    isl = Distribution(count=sum(counts), mean=mean, bounds=bounds, counts=counts)
    found = slice_of(msgspec.structs.replace(window(0, 10, sum(counts)), isl=isl))
    assert found is not None
    return found


def spread(*windows: Slice) -> float | None:
    mix = prompt_mix(windows)
    return None if mix is None else mix.cv2


def test_thirty_prompts_tell_a_spread_and_29_do_not():
    assert spread(prompts(1000.0, [1000.0, 2000.0], [15, 15, 0])) == pytest.approx(0.25)
    assert spread(prompts(1000.0, [1000.0, 2000.0], [15, 14, 0])) is None
    assert spread(*[prompts(1000.0, [1000.0, 2000.0], [5, 5, 0])] * 3) == pytest.approx(0.25)


def test_a_spread_of_answers_is_believed_up_to_sixteen():
    osl = Distribution(count=1000, mean=1000.0, bounds=[1.0, 999_000.0, 1_001_000.0], counts=[999, 0, 1, 0])
    found = slice_of(msgspec.structs.replace(window(0, 10, 1000), osl=osl))
    assert found is not None
    assert answer_cv2([found]) == 16.0


@pytest.mark.parametrize(("mean", "at"), [(900.0, 900.0), (0.0, 0.0), (1500.0, 1000.0)])
def test_a_mean_beyond_the_buckets_puts_all_at_their_nearest_end(mean, at):
    assert [p.length for p in prompts(mean, [1000.0, 2000.0], [40, 0, 0]).isl_parts] == [at]


def test_a_prompt_beyond_the_last_bound_counts_as_that_bound():
    found = prompts(2500.0, [1000.0, 2000.0], [0, 0, 40])
    assert [(p.lower, p.count, p.length) for p in found.isl_parts] == [(2000.0, 40, 2000.0)]


def test_prompts_without_a_length_are_no_mix():
    assert prompt_mix([prompts(0.0, [1000.0, 2000.0], [40, 0, 0])]) is None


def test_a_histogram_without_bounds_or_counts_has_no_parts():
    assert prompts(1000.0, [], []).isl_parts == ()
    assert prompts(1000.0, [1000.0], [0, 0]).isl_parts == ()


def test_a_window_without_lengths_has_no_parts():
    found = slice_of(msgspec.structs.replace(window(0, 10, 40), isl=None, osl=None))
    assert found is not None
    assert (found.isl_parts, found.osl_parts, found.isl_sum, found.osl_sum) == ((), (), 0.0, 0.0)


def test_a_length_that_nobody_counted_is_none_and_a_single_one_is():
    nobody = slice_of(window(0, 10, 0))
    assert nobody is not None
    assert (nobody.isl_count, nobody.isl_sum, nobody.osl_count, nobody.osl_sum) == (0, 0.0, 0, 0.0)
    one = slice_of(window(0, 10, 1, isl=0.5, osl=0.25))
    assert one is not None
    assert lengths([one, nobody]) == (0.5, 0.25)


def test_a_rate_counts_windows_that_ended_after_since_up_to_until():
    kept = [Slice(end, 0.5, n, 0, 0.0, 0, 0.0) for end, n in ((10.0, 1), (20.0, 2), (30.0, 4))]
    assert rate(kept, since=10.0, until=20.0) == 4.0
    assert rate(kept, since=20.0) == 8.0
    assert rate(kept, since=30.0) is None


def test_a_window_that_ends_when_it_begins_is_none():
    assert slice_of(window(10, 10, 5)) is None
    assert slice_of(window(10, 11, 5)) is not None
