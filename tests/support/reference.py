"""Recorded inputs of the reference planner as our copy of it (headrace.models.reference) takes them."""

from collections.abc import Iterable, Mapping
from typing import Any

from conformance import Case, close

from headrace.models.reference.decision import LoadDecision, ThroughputDecision
from headrace.models.reference.engine import Learning
from headrace.models.reference.merge import Bound, Opinion, Target
from headrace.models.reference.perf import PerfModel
from headrace.models.reference.settings import Engine, Pool, Seen, Settings, Traffic
from headrace.models.reference.state import State
from headrace.schemas.base import AGG, PREFILL, Role
from headrace.schemas.fpm import Fpm, QueuedRequests, ScheduledRequests

Row = Mapping[str, Any]
FIELDS = ("num_req", "isl", "osl", "kv_hit_rate", "accept_length")  # of a prediction


def fpm_of(row: Row) -> Fpm:
    """An FPM of the vectors, in which an absent key is 0."""
    return Fpm(
        version=row.get("version", 1),
        worker_id=row.get("worker_id", ""),
        dp_rank=row.get("dp_rank", 0),
        wall_time=row.get("wall_time", 0.0),
        scheduled_requests=ScheduledRequests(
            num_prefill_requests=row.get("sp", 0),
            sum_prefill_tokens=row.get("spt", 0),
            num_decode_requests=row.get("sd", 0),
            sum_decode_kv_tokens=row.get("sdk", 0),
        ),
        queued_requests=QueuedRequests(
            num_prefill_requests=row.get("qp", 0),
            sum_prefill_tokens=row.get("qpt", 0),
            num_decode_requests=row.get("qd", 0),
            sum_decode_kv_tokens=row.get("qdk", 0),
        ),
    )


def learning_of(case_input: Row) -> Learning:
    most = case_input.get("max_observations") or case_input["max_num_fpm_samples"]
    return Learning(most, case_input["min_observations"], case_input["bucket_count"])


def model_of(case_input: Row, role: Role) -> PerfModel:
    """The engine model of a case that has learned its observations, each in a tick of its own."""
    model = PerfModel(role, learning_of(case_input))
    model.set_limits(engine_of(case_input["capabilities"]).limits)
    for row in case_input["observations"]:
        model.learn([fpm_of(row)])
    return model


def engine_of(capabilities: Row) -> Engine:
    return Engine(**{name: capabilities.get(name) for name in Engine.__slots__})


def settings_of(config: Row) -> Settings:
    return Settings(**{key: value for key, value in config.items() if key in Settings.__slots__ and value is not None})


def slot(role: Role) -> str:
    """The reference plans aggregated workers in the place of decode."""
    return "prefill" if role == PREFILL else "decode"


def state_of(case_input: Row) -> State:
    """A planner that has been told its engines and has learned what it is started with."""
    settings = settings_of(case_input["config"])
    state = State(settings, engines_of(settings, case_input["capabilities"]))
    for role, model in state.models.items():
        rows = case_input["bootstrap_fpms"].get(role) or []
        model.bootstrap([fpm_of(row) for row in rows])
    return state


def engines_of(settings: Settings, capabilities: Row) -> dict[Role, Engine]:
    return {role: engine_of(capabilities[slot(role)]) for role in settings.roles if capabilities.get(slot(role))}


def seen_of(settings: Settings, tick: Row) -> Seen:
    counts, fpms = tick["worker_counts"], tick.get("fpm") or {}
    moving = any(counts.get(f"{s}_scaling_in_progress") for s in ("prefill", "decode"))
    return Seen(
        pools={
            role: Pool(counts.get(f"ready_num_{slot(role)}"), counts.get(f"expected_num_{slot(role)}"), moving)
            for role in settings.roles
        },
        fpms={role: fpms_of(fpms.get(slot(role)) or []) for role in settings.roles},
        traffic=traffic_of(tick.get("traffic")),
    )


def fpms_of(rows: Iterable[Row]) -> list[Fpm]:
    return [fpm_of(row) for row in rows]


def traffic_of(row: Row | None) -> Traffic | None:
    if row is None:
        return None
    given: dict[str, Any] = {name: row.get(name) for name in Traffic.__slots__}
    return Traffic(**given)


def by_slot(counts: Mapping[Role, Any]) -> dict[str, Any]:
    return {"decode" if role == AGG else role: value for role, value in counts.items()}


def said(decision: LoadDecision | ThroughputDecision) -> dict[str, Any]:
    """A decision as the files write it."""
    by_role = by_slot(decision.reasons)
    return {
        "decision": {"prefill": None, "decode": None} | by_slot(decision.targets) if decision.targets else None,
        "reason": decision.reason,
        "reason_prefill": by_role.get("prefill"),
        "reason_decode": by_role.get("decode"),
    }


def floors(state: State) -> dict[str, int]:
    return {f"floor_{s}": n for s, n in ({"prefill": 1, "decode": 1} | by_slot(state.floors)).items()}


def rates(state: State, decision: ThroughputDecision) -> dict[str, float | None]:
    """The rate of an aggregated engine is told for both its halves."""
    found = by_slot(decision.requests_per_s)
    if state.settings.mode == "agg":
        found["prefill"] = found.get("decode")
    return {s: found.get(s) for s in ("prefill", "decode")}


def opinion_of(plugin: Row, answer: Row) -> Opinion:
    targets = tuple(Target(t["component"], t.get("replicas"), Bound[t["type"]]) for t in answer.get("targets", []))
    rejection = answer.get("reason", "") if answer["kind"] == "reject" else None
    return Opinion(plugin["id"], plugin["priority"], targets, rejection, bool(answer.get("final")))


def same(case: Case, got: float | None, want: float | None) -> bool:
    return close(got, want, rel=case.tolerance["rel"], absolute=case.tolerance["abs"])
