"""The planner's own metrics, out of its tick reports."""

import math
import socket

import msgspec
import pytest
from decision_support import DGD, decision

from headrace.schemas.errors import ConfigError
from headrace.schemas.examples import EXAMPLES
from headrace.schemas.tick_report import RoleReport, TickReport
from headrace.streams.runtime.metrics import PREFIX, PlannerMetrics


def report(*, role: RoleReport | None = None, **changed: object) -> TickReport:
    found = EXAMPLES["ticks"]
    assert isinstance(found, TickReport)
    roles = {} if role is None else {"roles": {"decode": role}}
    return msgspec.structs.replace(found, dgd=DGD, **roles, **changed)


def value(metrics: PlannerMetrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"{PREFIX}_{name}", {"dgd": DGD, **labels})


def test_ticks_and_decisions_are_counted() -> None:
    metrics = PlannerMetrics()
    metrics.take([report(), decision(0)])
    metrics.take([report(), decision(1, advisory=True)])
    assert value(metrics, "ticks_total") == 2
    assert value(metrics, "decisions_total", advisory="false") == 1
    assert value(metrics, "decisions_total", advisory="true") == 1


def test_what_the_last_tick_did_not_know_is_nan() -> None:
    metrics = PlannerMetrics()
    metrics.take([report(load={"requests_per_s": 4.0}, forecast={"requests_per_s": 5.0})])
    assert value(metrics, "observed_requests_per_second") == 4.0
    assert value(metrics, "predicted_requests_per_second") == 5.0
    metrics.take([report(load={}, forecast={})])
    assert math.isnan(value(metrics, "observed_requests_per_second") or 0.0)
    assert math.isnan(value(metrics, "predicted_requests_per_second") or 0.0)


def test_an_unknown_count_is_nan_and_a_known_zero_is_zero() -> None:
    metrics = PlannerMetrics()
    metrics.take([report(role=RoleReport(current=None, target=0))])
    assert math.isnan(value(metrics, "replicas", role="decode") or 0.0)
    assert value(metrics, "target_replicas", role="decode") == 0


def test_an_estimate_stays_while_its_loop_is_not_due() -> None:
    metrics = PlannerMetrics()
    metrics.take([report(loops=["load"], role=RoleReport(current=1, estimated={"itl_ms": 12.0}))])
    metrics.take([report(loops=[], role=RoleReport(current=1))])
    assert value(metrics, "estimated_itl_ms", role="decode") == 12.0
    metrics.take([report(loops=["load"], role=RoleReport(current=1))])
    assert math.isnan(value(metrics, "estimated_itl_ms", role="decode") or 0.0)


def test_the_reason_of_a_loop_that_ran_is_the_one_state_that_is_set() -> None:
    metrics = PlannerMetrics()
    metrics.take([report(loops=["load"], role=RoleReport(current=1, load_reason="scale_up"))])
    name = f"{PREFIX}_load_scaling_decision"
    states = {
        sample.labels[name]: sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == name
    }
    assert [state for state, is_set in states.items() if is_set] == ["scale_up"]


def test_a_reason_from_a_later_version_changes_nothing() -> None:
    metrics = PlannerMetrics()
    metrics.take([report(loops=["load"], role=RoleReport(current=1, load_reason="by_magic"))])
    assert value(metrics, "replicas", role="decode") == 1


def test_a_port_that_is_taken_is_a_configuration_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError, match="set PLANNER_PROMETHEUS_PORT to a free one"):
            PlannerMetrics().serve(taken.getsockname()[1])


def test_gpu_hours_are_counted_by_time_and_not_by_ticks() -> None:  # case T37, dynamo#8575
    metrics = PlannerMetrics()
    for tick, at in enumerate((0.0, 5.0, 100.0, 3600.0)):  # at any distance
        role = RoleReport(current=3, known={"gpus_per_replica": 4.0})
        metrics.take([report(role=role, tick=tick, at=at)])
    assert value(metrics, "gpu_hours", role="decode") == pytest.approx(12.0)


def test_what_a_replica_costs_is_not_counted_while_nobody_knows_it() -> None:
    metrics = PlannerMetrics()
    for at, gpus in ((0.0, None), (3600.0, 4.0), (7200.0, 4.0)):
        role = RoleReport(current=1, known={} if gpus is None else {"gpus_per_replica": gpus})
        metrics.take([report(role=role, at=at)])
    assert value(metrics, "gpu_hours", role="decode") == pytest.approx(4.0)


def test_what_starts_and_what_has_no_room_are_metrics() -> None:
    metrics = PlannerMetrics()
    metrics.take([report(role=RoleReport(current=3, known={"starting": 2.0, "unschedulable": 1.0}))])
    assert value(metrics, "starting_replicas", role="decode") == 2
    assert value(metrics, "unschedulable_replicas", role="decode") == 1
    metrics.take([report(role=RoleReport(current=3, known={"starting": 0.0}))])
    assert value(metrics, "unschedulable_replicas", role="decode") == 0


def test_a_dgd_that_another_plans_now_is_shown_no_more() -> None:
    metrics = PlannerMetrics()
    metrics.take([report(loops=["load"], role=RoleReport(current=1, load_reason="scale_up")), decision(0)])
    other = msgspec.structs.replace(report(role=RoleReport(current=2)), dgd="other/one")
    metrics.take([other])
    metrics.forget(DGD)
    shown = {s.labels.get("dgd") for family in metrics.registry.collect() for s in family.samples}
    assert shown == {"other/one"}
