import statistics
from itertools import pairwise

import pytest

from headrace.connectors.simulator.loads import LoadSpec, generate, rate_of
from headrace.connectors.simulator.traces import between
from headrace.schemas.errors import ConfigError


def test_the_same_seed_gives_the_same_trace() -> None:
    assert generate(LoadSpec(shape="hour", seed=3)) == generate(LoadSpec(shape="hour", seed=3))
    assert generate(LoadSpec(shape="hour", seed=3)) != generate(LoadSpec(shape="hour", seed=4))


def test_a_constant_load_has_its_rate_and_mean_lengths() -> None:
    spec = LoadSpec(requests_per_s=20.0, isl_mean=800.0, osl_mean=150.0, isl_cv=0.5)
    trace = generate(spec)
    assert len(trace) / spec.duration_s == pytest.approx(20.0, rel=0.02)
    assert statistics.mean(trace.isl) == pytest.approx(800.0, rel=0.02)
    assert statistics.mean(trace.osl) == pytest.approx(150.0, rel=0.02)
    assert statistics.stdev(trace.isl) / statistics.mean(trace.isl) == pytest.approx(0.5, rel=0.03)


def test_lengths_without_variation_are_all_alike() -> None:
    trace = generate(LoadSpec(duration_s=60.0, isl_cv=0.0, osl_cv=0.0, isl_mean=700.0, osl_mean=90.0))
    assert (set(trace.isl), set(trace.osl)) == ({700}, {90})


def test_lengths_stay_within_their_limits() -> None:
    trace = generate(LoadSpec(isl_cv=5.0, isl_max=2000, osl_cv=5.0, osl_mean=2.0, osl_max=300))
    assert max(trace.isl) <= 2000
    assert min(trace.osl) == 1
    assert max(trace.osl) <= 300


@pytest.mark.parametrize("cv", [0.3, 1.0, 3.0])
def test_arrivals_have_the_variation_that_was_asked_for(cv: float) -> None:
    arrivals = generate(LoadSpec(requests_per_s=20.0, arrival_cv=cv)).arrivals
    gaps = [b - a for a, b in pairwise(arrivals)]
    assert statistics.stdev(gaps) / statistics.mean(gaps) == pytest.approx(cv, rel=0.06)


def test_the_hour_peaks_in_its_middle_and_is_quiet_at_its_ends() -> None:
    spec = LoadSpec(shape="hour", requests_per_s=5.0, peak_requests_per_s=50.0)
    trace = generate(spec)
    rates = [len(between(trace, m * 300.0, m * 300.0 + 300.0)) / 300.0 for m in range(12)]
    assert max(rates) == pytest.approx(48.0, rel=0.1)
    assert rates.index(max(rates)) in (4, 5)
    assert max(rates[0], rates[-1]) < 10.0


def test_no_shape_leaves_its_two_rates() -> None:
    for shape in ("hour", "step", "sine"):
        rate = rate_of(LoadSpec(shape=shape, requests_per_s=5.0, peak_requests_per_s=50.0))
        assert all(5.0 <= rate(t) <= 50.0 for t in range(3600))


def test_a_step_lasts_for_the_middle_third() -> None:
    trace = generate(LoadSpec(shape="step", duration_s=900.0, requests_per_s=2.0, peak_requests_per_s=40.0))
    low, high, low_again = (len(between(trace, s, s + 300.0)) / 300.0 for s in (0.0, 300.0, 600.0))
    assert (low, high, low_again) == (pytest.approx(2, abs=0.4), pytest.approx(40, rel=0.05), pytest.approx(2, abs=0.4))


@pytest.mark.parametrize(
    "bad", [{"requests_per_s": 0.0}, {"isl_cv": -1.0}, {"duration_s": float("nan")}, {"peak_requests_per_s": 1.0}]
)
def test_a_senseless_load_is_refused_by_the_name_of_its_field(bad: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(bad))):
        LoadSpec(shape="sine", **bad)  # type: ignore[arg-type]


def test_a_load_without_a_single_request_is_refused() -> None:
    with pytest.raises(ConfigError, match="raise either"):
        generate(LoadSpec(duration_s=1.0, requests_per_s=1e-6))
