"""Unequal prompts, and the time that they take."""

import pytest

from headrace.models.scaling.mix import UNKNOWN, Mix, Service, chunked, exponential


def line(tokens: float) -> float:
    return 0.010 + 20e-6 * tokens


def test_a_mix_has_a_mean_of_one_and_the_spread_of_its_lengths() -> None:
    mix = Mix.of([500.0, 1500.0], [3, 1])
    assert mix.multiples == pytest.approx((500 / 750, 2.0))
    assert mix.shares == (0.75, 0.25)
    assert mix.cv2 == pytest.approx((3 * 250**2 + 750**2) / 4 / 750**2)


@pytest.mark.parametrize(("lengths", "counts"), [([], []), ([5.0], [0]), ([0.0], [7])])
def test_prompts_that_are_none_or_empty_are_all_alike(lengths: list[float], counts: list[float]) -> None:
    assert Mix.of(lengths, counts) == Mix((1.0,), (1.0,))
    assert Mix().cv2 == 0.0


def test_exponential_lengths_have_a_mean_of_one_and_nearly_their_spread() -> None:
    for parts in (1, 2, 16, 1000):
        mix = exponential(parts)
        assert sum(m * p for m, p in zip(mix.multiples, mix.shares, strict=True)) == pytest.approx(1.0)
    assert exponential(1).cv2 == pytest.approx(0.0)
    assert exponential(2).multiples == pytest.approx((1.0 - 0.693147, 1.693147))  # below and above ln 2
    assert 0.9 < UNKNOWN.cv2 < exponential(1000).cv2 < 1.0


def test_both_moments_of_the_time_are_sums_over_the_lengths() -> None:
    service = Service.of(Mix.of([500.0, 1500.0], [3, 1]), 750.0, line)
    assert service.seconds == pytest.approx((0.020, 0.040))
    assert service.mean_s == pytest.approx(0.025)
    assert service.cv2 == pytest.approx((0.75 * 0.020**2 + 0.25 * 0.040**2) / 0.025**2 - 1.0)


def test_a_time_that_is_convex_in_the_length_is_longer_on_average_than_that_of_the_mean() -> None:
    service = Service.of(Mix.of([500.0, 1500.0], [1, 1]), 1000.0, lambda tokens: (tokens / 1000) ** 2)
    assert service.mean_s == pytest.approx(1.25)


def test_a_prompt_that_takes_exactly_its_target_is_within_reach() -> None:
    service = Service((0.5, 1.0, 2.0), (0.5, 0.25, 0.25), 1.0, 0.5)
    assert service.out_of_reach(1.0) == 0.25
    assert service.out_of_reach(0.999) == 0.5
    assert service.out_of_reach(0.1) == 1.0
    assert service.out_of_reach(2.0) == 0.0


def test_who_is_late_is_counted_among_those_within_reach_each_with_what_it_has_to_spare() -> None:
    service = Service((0.5, 1.0, 2.0), (0.5, 0.25, 0.25), 1.0, 0.5)
    asked: list[float] = []

    def longer(slack_s: float) -> float:
        asked.append(slack_s)
        return 0.3 if slack_s > 0 else 0.9

    assert service.late(1.0, longer) == pytest.approx((0.5 * 0.3 + 0.25 * 0.9) / 0.75)
    assert asked == [0.5, 0.0]
    assert service.late(0.1, longer) == 1.0


def test_a_prompt_takes_an_iteration_for_every_full_chunk_and_one_for_the_rest() -> None:
    assert chunked(2500.0, 1000, line) == pytest.approx(2 * 0.030 + 0.020)
    assert chunked(2000.0, 1000, line) == pytest.approx(2 * 0.030)
    assert chunked(999.0, 1000, line) == pytest.approx(line(999.0))
    assert chunked(0.0, 1000, line) == 0.010  # nothing to compute is an iteration all the same
