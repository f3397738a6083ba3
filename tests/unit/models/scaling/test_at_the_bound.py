"""Where a rule begins and ends: the value at each bound, and the one beside it."""

from dataclasses import replace

import pytest
from world import decode_s, taught

from headrace.models.perf.capacity import Capacity
from headrace.models.perf.latency import EngineLimits, EngineLoad
from headrace.models.scaling.budget import Budget, Fitted, Fleet, fit_budget
from headrace.models.scaling.load import LoadInputs, load_verdict
from headrace.models.scaling.thresholds import Band, Pool, band_of, signals, threshold_verdict
from headrace.models.scaling.throughput import replicas_for, throughput_verdicts
from headrace.schemas.base import AGG, DECODE, PREFILL
from headrace.schemas.config import planner_config
from headrace.schemas.reasons import Reason

# -- budget ------------------------------------------------------------------------------------------------------------


def fitted(ask: int, budget: Budget, *, current: int | None = None, minimum: int = 1, gpus: int | None = 1) -> Fitted:
    """One role's count under a budget."""
    now = ask if current is None else current
    return fit_budget(Fleet({DECODE: ask}, {DECODE: now}, {DECODE: minimum}, {DECODE: gpus}), budget)


def test_a_budget_that_says_nothing_has_the_minus_one_of_the_reference_for_both_bounds():
    assert Budget() == Budget(floor_gpus=-1, ceiling_gpus=-1)


def test_without_a_budget_nothing_is_missing_and_nothing_too_much():
    for gpus in (1, None):
        assert fitted(4, Budget(), gpus=gpus) == Fitted({DECODE: 4}, {}, floor_unmet=0, over_gpus=0)


def test_a_floor_without_a_ceiling_cuts_nothing_that_is_above_it():
    assert fitted(9, Budget(floor_gpus=6)) == Fitted({DECODE: 9}, {}, floor_unmet=0, over_gpus=0)


def test_a_floor_of_one_gpu_is_a_floor():
    assert fitted(0, Budget(floor_gpus=1), minimum=0).targets == {DECODE: 1}


def test_a_floor_of_one_gpu_keeps_what_runs_where_the_shape_is_unknown_and_a_floor_of_none_does_not():
    assert fitted(2, Budget(1, 8), current=4, gpus=None).targets == {DECODE: 4}
    assert fitted(2, Budget(0, 8), current=4, gpus=None).targets == {DECODE: 2}


def test_a_floor_does_not_grow_above_a_ceiling_of_zero():
    assert fitted(2, Budget(1, 0), current=0, minimum=0).targets == {DECODE: 0}


def test_a_ceiling_of_zero_is_a_ceiling_where_the_shape_is_unknown():
    assert fitted(5, Budget(-1, 0), current=4, gpus=None).targets == {DECODE: 4}


def test_a_large_floor_is_filled_in_strides_as_it_would_be_replica_by_replica():
    """Of 2 and 10 replicas of 1 and 4 GPUs: always one more of the role that has grown least in proportion."""
    ask, gpus = {PREFILL: 2, DECODE: 10}, {PREFILL: 1, DECODE: 4}
    one_by_one = dict(ask)
    while (missing := 137 - sum(one_by_one[role] * gpus[role] for role in ask)) > 0:
        able = [role for role in ask if gpus[role] < missing + gpus[role]]
        one_by_one[min(able, key=lambda role: ((one_by_one[role] + 1) / ask[role], role))] += 1
    assert fit_budget(Fleet(ask, ask, ask, gpus), Budget(137)).targets == one_by_one


# -- the load loop against the SLA -------------------------------------------------------------------------------------


def decode(workers: int, engines: list[EngineLoad], itl_sla_s: float) -> LoadInputs:
    limits = EngineLimits(max_num_batched_tokens=2048, max_num_seqs=256, max_kv_tokens=1_000_000)
    return LoadInputs(DECODE, workers, engines, taught(DECODE), limits, 1.0, itl_sla_s, 0.8, 1)


def busy(requests: int) -> EngineLoad:
    return EngineLoad(scheduled_decode_requests=requests, scheduled_decode_kv_tokens=1000 * requests)


def test_evidence_has_the_slowest_and_the_fastest_engine_in_milliseconds():
    length = taught(DECODE).mean_decode_length
    assert length is not None
    itl_ms = {n: 1000 * decode_s(n + 1, 1000 * n + round(length + 0.5)) for n in (3, 40)}
    verdict = load_verdict(decode(2, [busy(40), busy(3)], itl_sla_s=1.0))
    assert verdict.evidence == pytest.approx({"itl_ms": itl_ms[40], "min_itl_ms": itl_ms[3]}, rel=1e-4)


@pytest.mark.parametrize(("requests", "reason"), [(0.5, Reason.SCALE_UP_CANNOT_HELP), (1.5, Reason.SCALE_UP)])
def test_alone_means_one_request_and_no_second_one(requests, reason):
    """The target lies between what no (half a) request and what one (one and a half) would get on an idle engine."""
    length = taught(DECODE).mean_decode_length
    assert length is not None
    sla_s = decode_s(requests, length)
    assert load_verdict(decode(1, [busy(12)], sla_s)).reason is reason


def test_where_nothing_is_guessed_a_step_gives_one_token():
    assert decode(1, [busy(1)], itl_sla_s=1.0).accept_length == 1.0


def test_queued_prompts_are_no_kv_of_a_decode_engine():
    """At the last token that still fits the survivor: neither more nor less than what decodes is counted."""
    engine = EngineLoad(scheduled_decode_requests=1, scheduled_decode_kv_tokens=50_000, queued_prefill_tokens=7)
    x = replace(decode(2, [engine] * 2, itl_sla_s=1.0), limits=EngineLimits(max_kv_tokens=100_000))
    assert load_verdict(x).reason is Reason.SCALE_DOWN_REFUSED_CONSOLIDATION
    fits = replace(x, engines=[replace(engine, scheduled_decode_kv_tokens=49_999)] * 2)
    assert load_verdict(fits).reason is Reason.SCALE_DOWN


# -- static thresholds -------------------------------------------------------------------------------------------------

BANDS = [
    ("throughput", PREFILL, Band(1.0, 0.1, True, False)),
    ("throughput", DECODE, Band(1.0, 0.6, False, False)),
    ("throughput", AGG, Band(1.0, 0.6, False, False)),
    ("latency", PREFILL, Band(0.1, 0.0, True, True)),
    ("latency", DECODE, Band(0.4, 0.1, False, False)),
    ("latency", AGG, Band(0.4, 0.1, False, False)),
]


@pytest.mark.parametrize(("target", "role", "band"), BANDS)
def test_the_thresholds_of_a_target_are_those_of_the_reference(target, role, band):  # reference-semantics 6.7
    mode = "agg" if role == AGG else "disagg"
    assert band_of(planner_config({"optimization_target": target, "mode": mode}), role) == band


def test_thresholds_that_are_configured_in_per_cent_are_shares():
    raw = {"optimization_target": "load", "mode": "decode"}
    config = planner_config(raw | {"decode_scale_up_kv_rate": 50, "decode_scale_down_kv_rate": 25})
    assert band_of(config, DECODE) == Band(0.5, 0.25, True, True)


@pytest.mark.parametrize(("target", "role", "band"), BANDS)
def test_between_its_thresholds_no_fleet_changes_however_large(target, role, band):
    between = [(band.up + band.down) / 2] * 2
    assert threshold_verdict(band, between, Pool(workers=1000)).reason is Reason.NO_CHANGE


def test_a_prompt_that_waits_is_one_prompt_of_kv_to_come_on_an_aggregated_engine_and_none_on_a_decode_engine():
    engine = EngineLoad(queued_prefill_tokens=3, scheduled_decode_kv_tokens=10, queued_decode_kv_tokens=5)
    assert signals(AGG, [engine], per=100.0, tokens=False) == [0.18]
    assert signals(DECODE, [engine], per=100.0, tokens=False) == [0.15]


def test_a_capacity_of_one_token_is_one_and_of_none_is_unknown():
    engine = EngineLoad(scheduled_decode_kv_tokens=1)
    assert signals(DECODE, [engine], per=1.0, tokens=False) == [1.0]
    assert signals(DECODE, [engine], per=0.0, tokens=False) is None


def test_a_pool_of_which_nothing_is_said_has_nothing_starting_and_keeps_one_worker():
    assert Pool(3) == Pool(workers=3, starting=0, min_endpoint=1, sensitivity=0.8)


# -- the throughput loop -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("demand", "replicas"),
    [
        (0.9e-9, 0),  # as is a hair above none
        (1.0 + 0.9e-9, 1),  # a hair above a whole engine is rounding
        (1.0 + 1.5e-9, 2),  # more than a hair is not
    ],
)
def test_what_counts_as_rounding_is_a_billionth_of_an_engine(demand, replicas):
    assert replicas_for(demand, 1.0, 0) == replicas


def test_slow_engines_and_little_demand_are_engines_and_demand():
    """Below one request a second, as with reasoning models of minutes per answer."""
    slow = Capacity(requests_per_s=0.1, batch=1, ttft_s=None, itl_s=0.01, meets_sla=True)
    assert throughput_verdicts(0.2, {DECODE: slow}, {DECODE: 0})[DECODE].replicas == 2


def test_an_engine_that_serves_nothing_is_not_known():
    """A division by its capacity would be one by zero."""
    nothing = Capacity(requests_per_s=0.0, batch=1, ttft_s=None, itl_s=0.01, meets_sla=False)
    assert throughput_verdicts(0.2, {DECODE: nothing}, {DECODE: 0})[DECODE].reason is Reason.MODEL_NOT_READY
