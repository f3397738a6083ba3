"""The reference planner beside ours, on the same telemetry: what Dynamo's own planner would have said here.

It acts on nothing. Its input is what ours is given: the newest FPM of every rank that is fresh, the inventory, and the
traffic of a throughput interval.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from headrace.models.known import Known, Unknown
from headrace.models.profile.rows import iterations
from headrace.models.reference.planner import ReferencePlanner, Told
from headrace.models.reference.saved import load_state, to_state
from headrace.models.reference.settings import Engine, Pool, Seen, Settings, Traffic
from headrace.models.scaling.verdict import Verdict
from headrace.schemas.base import AGG, DECODE, Role
from headrace.schemas.config import PlannerConfig
from headrace.schemas.engine_profiles import RoleProfile
from headrace.schemas.fpm import Fpm, ScheduledRequests
from headrace.schemas.reasons import Reason
from headrace.schemas.tick_report import ReferenceOpinion
from headrace.streams.agents.fpm import FpmObserver
from headrace.streams.agents.traffic import Observation, TrafficObserver
from headrace.streams.agents.view import RoleView

EARLY_S = 1e-6
LOST_TICKS = 2  # base ticks that its next one may be ahead; more is a clock that was set back


@dataclass(slots=True)
class Shadow:
    """One reference planner. Under another configuration it learns anew."""

    config: PlannerConfig
    anchor: float  # of our own slots; its intervals begin where ours do
    planner: ReferencePlanner = field(init=False)
    next_at: float | None = field(init=False, default=None)  # None: not started
    observed: Observation | None = field(init=False, default=None)  # of an interval that it has not asked for yet
    taught: set[Role] = field(init=False, default_factory=set)  # whose engines it knew beforehand

    def __post_init__(self) -> None:
        self.planner = ReferencePlanner(Settings.of(self.config), base_s=self.config.base_tick_seconds)

    @classmethod
    def of(cls, config: PlannerConfig, anchor: float) -> "Shadow | None":
        """None where the configuration asks for none. Raises ConfigError where its predictor's extra is missing."""
        return cls(config, anchor) if config.shadow_reference or config.reference_exact else None

    def observe(self, observed: Known[Observation] | Unknown) -> None:
        """The traffic of a throughput interval of ours that has just ended."""
        self.observed = observed.value if isinstance(observed, Known) else None

    def know_beforehand(self, profiles: Mapping[Role, RoleProfile]) -> None:
        """Measurements from before the engines served, once for each role; of an aggregated one decode alone."""
        for role in profiles.keys() - self.taught:
            rows = iterations(profiles[role].profile, DECODE if role == AGG else role).rows
            if not rows:
                continue  # a record that says why nothing is known
            self.taught.add(role)
            self.planner.bootstrap({role: [_fpm(*row) for row in rows]})

    def run(
        self, due_at: float, views: Mapping[Role, RoleView], fpm: FpmObserver, traffic: TrafficObserver, now: float
    ) -> dict[Role, ReferenceOpinion]:
        """Its opinion of each role, in the tick that was due at `due_at`; empty where it would not look now."""
        ahead = 0.0 if self.next_at is None else self.next_at - due_at
        if self.next_at is None or ahead > LOST_TICKS * self.config.base_tick_seconds:
            self.next_at = self.planner.start(self._interval_start(due_at)).at
        if due_at < self.next_at - EARLY_S:
            return {}
        self._tell_engines(views)
        fresh = {role: list(fpm.fresh(role, now, _workers(view)).values()) for role, view in views.items()}
        told = self.planner.tick(due_at, self._seen(views, fresh, traffic))
        self.next_at = told.schedule.at
        return {role: _opinion(told, role) for role in views}

    def to_state(self) -> dict[str, Any]:
        """JSON-able."""
        return {
            "next_at": self.next_at,
            "observed": None if self.observed is None else asdict(self.observed),
            "taught": sorted(self.taught),
            "planner": to_state(self.planner),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Raises KeyError, TypeError or ValueError where it is none of `to_state` under the same configuration."""
        self.next_at, self.taught = state["next_at"], set(state["taught"])
        self.observed = None if state["observed"] is None else Observation(**state["observed"])
        load_state(self.planner, state["planner"])

    def _interval_start(self, due_at: float) -> float:
        """Where the interval began that `due_at` falls into, or ends."""
        c = self.config
        seconds = c.throughput_adjustment_interval_seconds if c.throughput_loop else c.load_adjustment_interval_seconds
        since = due_at - c.base_tick_seconds - self.anchor
        return self.anchor + (since + EARLY_S) // seconds * seconds

    def _tell_engines(self, views: Mapping[Role, RoleView]) -> None:
        """What is not known now was perhaps known before."""
        engines = dict(self.planner.state.engines)
        engines |= {role: engine for role, view in views.items() if (engine := _engine(view)) is not None}
        self.planner.set_engines(engines)

    def _seen(self, views: Mapping[Role, RoleView], fpms: dict[Role, list[Fpm]], traffic: TrafficObserver) -> Seen:
        """Its connector knows one flag for all roles: whether everything is as it was asked for."""
        moving = any(_moving(view) for view in views.values())
        pools = {
            role: Pool(view.inventory.ready, None if moving else view.inventory.ready, moving)
            for role, view in views.items()
            if view.inventory is not None
        }
        return Seen(pools, fpms, self._traffic(traffic))

    def _traffic(self, traffic: TrafficObserver) -> Traffic | None:
        """What it has asked for: requests and lengths of a throughput interval, or the rates alone."""
        scheduled = self.planner.clock.scheduled
        if not scheduled.traffic:
            return None
        rates = (traffic.kv_hit_rate, traffic.accept_length)
        if not scheduled.full_traffic:
            return Traffic(scheduled.window_s, 0.0, 0.0, 0.0, *rates)
        seen, self.observed = self.observed, None
        if seen is None:
            return None
        seconds = self.config.throughput_adjustment_interval_seconds
        return Traffic(seconds, seen.requests_per_s * seconds, seen.isl or 0.0, seen.osl or 0.0, *rates)


def as_verdicts(opinions: Mapping[Role, ReferenceOpinion]) -> tuple[dict[Role, Verdict], dict[Role, Verdict]]:
    """Its opinions in the place of our own load and throughput loop: `capacity_policy: reference_exact`."""
    load = {role: Verdict(o.target, Reason(o.load_reason), o.estimated) for role, o in opinions.items()}
    throughput = {role: Verdict(o.target, Reason(o.throughput_reason)) for role, o in opinions.items()}
    return load, throughput


def _fpm(prefills: int, prefill_tokens: int, decodes: int, decode_kv_tokens: int, wall_time_s: float) -> Fpm:
    return Fpm(
        wall_time=wall_time_s,
        scheduled_requests=ScheduledRequests(
            num_prefill_requests=prefills,
            sum_prefill_tokens=prefill_tokens,
            num_decode_requests=decodes,
            sum_decode_kv_tokens=decode_kv_tokens,
        ),
    )


def _workers(view: RoleView) -> list[str] | None:
    return None if view.inventory is None else view.inventory.workers


def _moving(view: RoleView) -> bool:
    inv = view.inventory
    return inv is not None and bool(inv.starting or inv.draining or inv.desired not in (None, inv.ready))


def _engine(view: RoleView) -> Engine | None:
    """None where nobody has said anything about it."""
    said = view.inventory.capabilities if view.inventory is not None else None
    if said is None and view.gpus is None:
        return None
    limits = {} if said is None else {name: getattr(said, name) for name in LIMITS}
    return Engine(num_gpu=view.gpus, **limits)


LIMITS = ("max_num_batched_tokens", "max_num_seqs", "max_kv_tokens", "context_length", "speculative_nextn")


def _opinion(told: Told, role: Role) -> ReferenceOpinion:
    load, throughput = told.load, told.throughput
    numbers = {
        "ttft_ms": load.ttft_ms,
        "itl_ms": load.itl_ms,
        "capacity_rps": throughput.requests_per_s.get(role),
        "predicted_requests": told.prediction.num_req if told.prediction is not None else None,
        "predicted_isl": told.prediction.isl if told.prediction is not None else None,
        "predicted_osl": told.prediction.osl if told.prediction is not None else None,
    }
    return ReferenceOpinion(
        target=None if told.targets is None else told.targets.get(role),
        floor=told.floors[role],
        load_reason=load.reasons.get(role) or load.reason or Reason.UNSET,
        throughput_reason=throughput.reasons.get(role) or throughput.reason or Reason.UNSET,
        estimated={name: float(value) for name, value in numbers.items() if value is not None},
    )
