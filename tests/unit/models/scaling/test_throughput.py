"""Sizing for a forecast. Golden numbers: reference-semantics 5.5 (models A, B, C; ttft 500 ms, itl 50 ms, 180 s)."""

import math

import pytest
from world import taught

from headrace.models.perf.capacity import Capacity, LatencyTargets, RequestShape, capacity
from headrace.models.perf.latency import EngineLimits
from headrace.models.scaling.throughput import replicas_for, throughput_verdicts
from headrace.schemas.reasons import Reason

LIMITS = EngineLimits(max_num_batched_tokens=2048, max_num_seqs=256, max_kv_tokens=100_000)
ROLES = {"disagg": ("prefill", "decode"), "prefill": ("prefill",), "decode": ("decode",), "agg": ("agg",)}


def sized(mode, requests, isl=1000.0, osl=200.0, kv=None, accept=1.0):
    found = {
        role: capacity(
            taught(role),
            role,
            LIMITS,
            RequestShape(isl, osl, kv, accept),
            LatencyTargets(0.5, 0.05),
        )
        for role in ROLES[mode]
    }
    return throughput_verdicts(requests / 180, found, dict.fromkeys(found, 1))


@pytest.mark.parametrize(
    ("more", "replicas"),
    [
        ({"requests": 0}, {"prefill": 1, "decode": 1, "agg": 1}),
        ({"requests": 18_000}, {"prefill": 3, "decode": 5, "agg": 6}),
        ({"requests": 18_000, "kv": 0.5}, {"prefill": 2, "decode": 5, "agg": 5}),
        ({"requests": 18_000, "accept": 2.0}, {"prefill": 3, "decode": 3, "agg": 4}),
        ({"requests": -500}, {"prefill": 1, "decode": 1, "agg": 1}),
    ],
)
@pytest.mark.parametrize("mode", ROLES)
def test_sizes_follow_the_golden_table(mode, more, replicas):
    verdicts = sized(mode, **more)
    assert {role: v.replicas for role, v in verdicts.items()} == {role: replicas[role] for role in ROLES[mode]}
    assert {v.reason for v in verdicts.values()} == {Reason.SCALE}


@pytest.mark.parametrize(("role", "rps"), [("prefill", 40.0), ("decode", 23.1958763), ("agg", 18.8284519)])
def test_capacities_follow_the_golden_table(role, rps):
    mode = "agg" if role == "agg" else "disagg"
    assert sized(mode, 18_000)[role].evidence["capacity_rps"] == pytest.approx(rps, rel=1e-3)


@pytest.mark.parametrize("lengths", [(0.0, 0.0), (math.nan, 200.0), (-1.0, 200.0)])
@pytest.mark.parametrize("mode", ROLES)
def test_lengths_that_are_none_give_no_estimate(mode, lengths):  # case T14; NaN raises an error in the reference
    isl, osl = lengths
    assert {v.reason for v in sized(mode, 18_000, isl, osl).values()} == {Reason.MODEL_NOT_READY}


@pytest.mark.parametrize("sla", [0.0, -1.0, math.nan, math.inf])
def test_a_target_that_is_no_latency_gives_no_estimate(sla):  # case T14, dynamo#7961
    found = capacity(taught("decode"), "decode", LIMITS, RequestShape(1000, 200), LatencyTargets(None, sla))
    assert throughput_verdicts(1.0, {"decode": found}, {"decode": 1})["decode"].reason is Reason.MODEL_NOT_READY


def test_a_target_that_no_load_meets_does_not_hold_replicas():  # case T15, dynamo#8861, #11624
    slow = Capacity(requests_per_s=10.0, batch=1, ttft_s=0.218, itl_s=None, meets_sla=False)
    idle = throughput_verdicts(0.0, {"prefill": slow}, {"prefill": 1})["prefill"]
    assert (idle.replicas, idle.evidence["capacity_meets_sla"]) == (1, 0.0)
    assert throughput_verdicts(9.0, {"prefill": slow}, {"prefill": 1})["prefill"].replicas == 1


def test_half_a_deployment_is_not_sized():
    ready = Capacity(requests_per_s=10.0, batch=1, ttft_s=0.1, itl_s=None, meets_sla=True)
    verdicts = throughput_verdicts(100.0, {"prefill": ready, "decode": None}, {"prefill": 1, "decode": 1})
    assert {role: v.replicas for role, v in verdicts.items()} == {"prefill": None, "decode": None}
    assert verdicts["prefill"].reason is Reason.PARTNER_NOT_READY
    assert verdicts["decode"].reason is Reason.MODEL_NOT_READY


@pytest.mark.parametrize(
    ("demand", "engine", "least", "replicas"),
    [
        (0.0, 10.0, 1, 1),
        (9.0, 10.0, 1, 1),
        (10.0, 10.0, 1, 1),
        (10.1, 10.0, 1, 2),
        (100.0, 10.0, 1, 10),
        (0.0, 10.0, 0, 0),
    ],
)
def test_replicas_are_the_demand_over_what_one_serves_rounded_up(demand, engine, least, replicas):
    assert replicas_for(demand, engine, least) == replicas


def test_rounding_of_a_division_asks_for_no_engine():
    assert replicas_for(0.1 * 3, 0.1, 1) == 3  # 0.1 * 3 / 0.1 is 3.0000000000000004


def test_absurd_demands_give_a_number():
    assert replicas_for(1e15, 1e-9, 1) > 10**20
