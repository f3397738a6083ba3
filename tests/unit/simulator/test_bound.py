from collections.abc import Callable

import pytest

from headrace.connectors.simulator.bound import (
    Mix,
    agg_requests_per_s,
    decode_tokens_per_s,
    lower_bound,
    prefill_tokens_per_s,
)
from headrace.connectors.simulator.config import SimulatorConfig, Sla
from headrace.connectors.simulator.loads import LoadSpec, generate
from headrace.connectors.simulator.policy import FixedFleet
from headrace.connectors.simulator.report import percentiles
from headrace.connectors.simulator.simulate import Options, simulate
from headrace.connectors.simulator.sweep import (
    FleetResult,
    best_no_dearer,
    candidate_fleets,
    cheapest_no_worse,
    compare,
    frontier,
    goodput_on_line,
    static_sweep,
)
from headrace.connectors.simulator.timing import Limits
from headrace.connectors.simulator.traces import Trace
from headrace.schemas.errors import ConfigError

Config = Callable[..., SimulatorConfig]
Traces = Callable[..., Trace]


ALIKE = Mix.of([(0.0, 1000, 200)])  # context 1100, 1200 reserved


def test_prefill_capacity_is_the_largest_batch_within_the_ttft(disagg: Config) -> None:
    # 500 ms allow 24,500 tokens, the batch limit 2048: 50.96 ms
    assert prefill_tokens_per_s(disagg()) == pytest.approx(2048 / 0.05096)
    assert prefill_tokens_per_s(disagg(sla=Sla(ttft_ms=30.01))) == pytest.approx(1000 / 0.030, rel=1e-3)
    assert prefill_tokens_per_s(disagg(sla=Sla(ttft_ms=10))) == 0.0


def test_decode_capacity_is_the_largest_batch_within_the_itl(disagg: Config) -> None:
    # context 1100: 5 ms + n * (50 us + 110 us) <= 8 ms allows n = 18
    assert decode_tokens_per_s(disagg(sla=Sla(itl_ms=8)), ALIKE) == pytest.approx(18 / 0.00788)
    assert decode_tokens_per_s(disagg(sla=Sla(itl_ms=5)), ALIKE) == 0.0


def test_decode_capacity_keeps_the_limits_of_kv_and_sequences(disagg: Config) -> None:
    few = disagg(limits=Limits(max_kv_tokens=12_000), sla=Sla(itl_ms=50))
    assert decode_tokens_per_s(few, ALIKE) == pytest.approx(10 / (0.005 + 10 * 160e-6))
    narrow = disagg(limits=Limits(max_num_seqs=4), sla=Sla(itl_ms=50))
    assert decode_tokens_per_s(narrow, ALIKE) == pytest.approx(4 / (0.005 + 4 * 160e-6))


def test_a_longer_output_weighs_more_in_the_mean_context() -> None:
    mix = Mix.of([(0.0, 1000, 100), (0.0, 2000, 300)])
    assert (mix.isl, mix.osl) == (1500.0, 200.0)
    assert mix.context == pytest.approx((100 * 1050 + 300 * 2150) / 400)
    assert mix.reserved == pytest.approx((100 * 1100 + 300 * 2300) / 400)


def test_aggregated_capacity_pays_for_prompts_and_tokens(agg: Config) -> None:
    """isl = osl = 1000: one prompt token comes in beside each decoding request, context 1500.

    Ten requests: decoding 5 ms + 10 * 200 us; prompts 10 * 20 us, and the larger base (+5 ms) in 10 of 2038 iterations.
    """
    seconds = 0.007 + 0.0002 + 0.005 * 10 / 2038
    mix = Mix.of([(0.0, 1000, 1000)])
    rps = agg_requests_per_s(agg(sla=Sla(ttft_ms=500, itl_ms=1000 * seconds + 0.001)), mix)
    assert rps == pytest.approx(10 / (1000 * seconds))
    assert agg_requests_per_s(agg(sla=Sla(ttft_ms=20, itl_ms=50)), mix) == 0.0


def test_the_bound_is_the_ceiling_of_load_over_capacity_each_minute(disagg: Config, trace: Traces) -> None:
    # minute 1: 100 requests of 1200 prompt tokens = 2000 tokens/s of 40,188; 99 more tokens each = 165 tokens/s
    bound = lower_bound(trace(*[(i * 0.6, 1200, 100) for i in range(100)], (119.0, 10, 1)), disagg())
    assert [m.replicas for m in bound.minutes] == [{"prefill": 1, "decode": 1}] * 2
    assert bound.gpu_hours == pytest.approx(3 * 119.0 / 3600.0)


def test_the_bound_grows_with_the_load(disagg: Config) -> None:
    def needs(rate: float) -> float:
        hours = lower_bound(generate(LoadSpec(duration_s=300.0, requests_per_s=rate)), disagg()).gpu_hours
        assert hours is not None
        return hours

    assert needs(1.0) < needs(50.0) < needs(200.0)


def test_an_sla_that_no_fleet_meets_has_no_bound(disagg: Config, trace: Traces) -> None:
    bound = lower_bound(trace((0.0, 100, 10)), disagg(sla=Sla(ttft_ms=5.0)))
    assert bound.gpu_hours is None
    assert bound.minutes[0].replicas is None


def test_an_empty_minute_needs_one_of_each(disagg: Config, trace: Traces) -> None:
    bound = lower_bound(trace((0.0, 100, 10), (130.0, 100, 10)), disagg())
    assert bound.minutes[1].replicas == {"prefill": 1, "decode": 1}
    assert bound.minutes[1].isl is None


@pytest.mark.parametrize("kind", ["disagg", "agg"])
def test_below_the_bound_a_fleet_drowns_and_above_it_it_does_not(kind: str, request: pytest.FixtureRequest) -> None:
    """The analytic capacity is that of the simulated engines, within what queueing costs."""
    config = request.getfixturevalue(kind)(8, sla=Sla(ttft_ms=500, itl_ms=15))
    if kind == "disagg":
        isl, osl = 1000.0, 200.0
        capacity = 8 * prefill_tokens_per_s(config) / isl
        config = config.with_fleet({"decode": 40})
    else:
        isl, osl = 200.0, 200.0
        capacity = 8 * agg_requests_per_s(config, Mix.of([(0.0, 200, 200)]))

    def goodput(share: float) -> float:
        spec = LoadSpec(
            duration_s=60.0, requests_per_s=share * capacity, isl_mean=isl, osl_mean=osl, isl_cv=0, osl_cv=0
        )
        return simulate(generate(spec), config, FixedFleet(), Options(telemetry=False)).goodput

    assert goodput(0.85) > 0.95
    assert goodput(1.2) < 0.6


def result(goodput: float, gpu_hours: float) -> FleetResult:
    nothing = percentiles([])
    return FleetResult(fleet={"agg": 1}, goodput=goodput, gpu_hours=gpu_hours, ttft_ms=nothing, itl_ms=nothing)


SWEEP = [result(0.5, 2.0), result(0.4, 3.0), result(0.9, 4.0), result(0.99, 8.0), result(0.98, 9.0)]


def test_the_frontier_leaves_out_what_something_cheaper_beats() -> None:
    assert [(r.gpu_hours, r.goodput) for r in frontier(SWEEP)] == [(2.0, 0.5), (4.0, 0.9), (8.0, 0.99)]


@pytest.mark.parametrize(
    ("hours", "goodput"), [(1.9, None), (2.0, 0.5), (3.0, 0.7), (4.0, 0.9), (6.0, 0.945), (20.0, 0.99)]
)
def test_the_line_runs_straight_between_its_fleets(hours: float, goodput: float | None) -> None:
    assert goodput_on_line(SWEEP, hours) == (None if goodput is None else pytest.approx(goodput))


def test_a_policy_is_compared_at_equal_quality_and_at_equal_cost() -> None:
    got = compare(SWEEP, goodput=0.91, gpu_hours=5.0)
    assert got.cheapest_no_worse == cheapest_no_worse(SWEEP, 0.91) == result(0.99, 8.0)
    assert got.best_no_dearer == best_no_dearer(SWEEP, 5.0) == result(0.9, 4.0)
    assert got.goodput_at_equal_gpu_hours == pytest.approx(0.9225)
    assert compare(SWEEP, goodput=1.0, gpu_hours=1.0).cheapest_no_worse is None


def test_a_sweep_runs_each_fleet_as_it_is(disagg: Config) -> None:
    load = generate(LoadSpec(duration_s=30.0, requests_per_s=10.0))
    seen: list[float] = []
    results = static_sweep(
        load, disagg(), [{"prefill": 1, "decode": 1}, {"prefill": 2, "decode": 3}], progress=seen.append
    )
    assert [r.fleet for r in results] == [{"prefill": 1, "decode": 1}, {"prefill": 2, "decode": 3}]
    assert results[0].gpu_hours < results[1].gpu_hours
    assert results[0].ttft_ms.p99 >= results[1].ttft_ms.p99
    assert seen == [0.5, 1.0]


def test_candidates_span_mean_to_peak_and_are_not_too_many(disagg: Config) -> None:
    load = generate(LoadSpec(shape="hour", requests_per_s=10.0, peak_requests_per_s=300.0))
    fleets = candidate_fleets(load, disagg(), limit=12)
    peak = max(m.replicas["decode"] for m in lower_bound(load, disagg()).minutes if m.replicas)
    assert 2 <= len(fleets) <= 12
    assert max(f["decode"] for f in fleets) >= peak - 1
    with pytest.raises(ConfigError, match="looser SLA"):
        candidate_fleets(load, disagg(sla=Sla(ttft_ms=5.0)))
