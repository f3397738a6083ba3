"""The planner of one DGD: the seam that runtimes, the simulator, replay and anyone embedding it use.

Pure: no I/O, no clock, no randomness. The same records and ticks give the same bytes.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from headrace.models.known import Known
from headrace.models.perf.engine import EngineModel
from headrace.models.scaling.verdict import Verdict
from headrace.schemas.ack import DecisionAck
from headrace.schemas.base import Record, Role
from headrace.schemas.config import PlannerConfig, planner_config
from headrace.schemas.config_revision import ConfigRevision
from headrace.schemas.decision import Causes, Decision
from headrace.schemas.errors import ConfigError, RecordError, StateError
from headrace.schemas.fpm_batch import FpmBatch
from headrace.schemas.inventory import WorkerInventory
from headrace.schemas.prediction import Prediction
from headrace.schemas.proposal import Proposal
from headrace.schemas.reasons import Outcome, Reason
from headrace.schemas.tick_report import TickReport
from headrace.schemas.traffic import TrafficWindow
from headrace.streams.agents.forecast import ForecastAgent
from headrace.streams.agents.fpm import FpmObserver
from headrace.streams.agents.inventory import InventoryObserver
from headrace.streams.agents.ledger import Ledger
from headrace.streams.agents.load import LoadLoop
from headrace.streams.agents.propose import own_proposal, own_verdicts
from headrace.streams.agents.reconcile import OWN, Opinions, RolePlan, live, reconcile
from headrace.streams.agents.report import forecast_numbers, reasons_of, role_report
from headrace.streams.agents.schedule import Schedule
from headrace.streams.agents.throughput import ThroughputLoop
from headrace.streams.agents.traffic import TrafficObserver
from headrace.streams.agents.view import RoleView, look

STATE_VERSION = 1
MAX_PROPOSALS = 256
MAX_NOTES = 32


class Planner:
    """Feed it records with :meth:`handle`, call :meth:`tick` at :attr:`next_tick_at`, publish what both return.

    Times are seconds in one time base of the caller's choice; `start` anchors the grid of ticks (0.0: whole multiples
    of the base tick since the epoch).
    """

    def __init__(self, config: PlannerConfig, dgd: str, *, start: float = 0.0) -> None:
        self.config = config
        self.dgd = dgd
        self.config_revision = 0
        self.schedule = Schedule.of(config, start)
        self.models: dict[Role, EngineModel] = {role: self._model() for role in config.roles}
        self.fpm = FpmObserver(self.models, config.fpm_stale_after_seconds, config.max_clock_skew_seconds)
        self.traffic = TrafficObserver()
        self.inventory = InventoryObserver(config.inventory_stale_after_seconds, config.max_clock_skew_seconds)
        self.forecast = ForecastAgent(config)
        self.throughput_loop = ThroughputLoop(config)
        self.load_loop = LoadLoop(config)
        self.ledger = Ledger(config.ack_timeout_seconds)
        self.proposals: dict[str, Proposal] = {}  # from outside, by source and id
        self.prediction: Prediction | None = None  # the one planned with
        self.notes: list[str] = []  # for the next report

    def _model(self) -> EngineModel:
        return EngineModel(
            min_observations=self.config.load_min_observations, buckets=self.config.fpm_sample_bucket_size
        )

    # -- time and ownership --------------------------------------------------------------------------------------

    @property
    def next_tick_at(self) -> float:
        """When :meth:`tick` is due next, seconds."""
        return self.schedule.next_at

    @property
    def epoch(self) -> int:
        return self.ledger.epoch

    @property
    def fenced(self) -> bool:
        """A newer owner of this DGD has decided: stop, nothing of ours counts any more."""
        return self.ledger.fenced

    def begin_epoch(self) -> int:
        """Become the owner, once the log has been read up to its end. Returns the new epoch."""
        return self.ledger.begin_epoch()

    # -- records in ------------------------------------------------------------------------------------------------

    def handle(self, record: Record, now: float) -> list[Record]:
        """Take one input record in. Returns the dead letters that it caused.

        Repeated, late or reordered records change nothing. Raises RecordError for a record of another DGD (reason
        `unknown_dgd`) or of a kind that is no input (`not_an_input`); the planner is unharmed by either.
        """
        if record.dgd != self.dgd:
            raise RecordError(f"record of DGD {record.dgd!r} reached the planner of {self.dgd!r}", reason="unknown_dgd")
        match record:
            case FpmBatch():
                return list(self.fpm.handle(record, now))
            case TrafficWindow():
                self._note(self.traffic.handle(record))
            case WorkerInventory():
                self.inventory.handle(record, now)
            case DecisionAck():
                self.ledger.settle(record, now)
            case Prediction():
                self._note(self.forecast.handle(record, now))
            case Proposal():
                self._propose(record, now)
            case ConfigRevision():
                self._configure(record)
            case Decision():
                self.ledger.adopt(record)
            case TickReport():
                pass  # our own voice
            case _:
                raise RecordError(f"{type(record).__name__} is no input of a planner", reason="not_an_input")
        return []

    def _note(self, note: str | None) -> None:
        if note is not None and len(self.notes) < MAX_NOTES:
            self.notes.append(note)

    def _propose(self, p: Proposal, now: float) -> None:
        if p.source.startswith(OWN):
            return  # an echo from the bus
        if p.expires_at <= now:
            return self._note(f"proposal {p.proposal_id} of {p.source} had expired when it came")
        foreign = sorted(set(p.targets) - set(self.config.roles))
        if foreign:
            self._note(f"proposal {p.proposal_id} of {p.source} names roles that are not planned: {', '.join(foreign)}")
        key = f"{p.source}/{p.proposal_id}"
        if key not in self.proposals and len(self.proposals) >= MAX_PROPOSALS:
            return self._note(f"proposal {p.proposal_id} of {p.source}: more than {MAX_PROPOSALS} are in force already")
        self.proposals[key] = p
        return None

    def _configure(self, record: ConfigRevision) -> None:
        """Take a newer valid configuration; learned speeds, histories and the ledger stay."""
        if record.revision <= self.config_revision:
            return
        try:
            config = planner_config(record.config)
            if config.mode != self.config.mode:
                raise ConfigError(f"mode cannot change from {self.config.mode!r} to {config.mode!r} while the planner runs")
        except ConfigError as e:
            return self._note(f"configuration revision {record.revision} refused, revision {self.config_revision} stays: {e}")
        forecast = ForecastAgent(config)
        forecast.load_state(self.forecast.to_state())
        floors = self.throughput_loop.floors
        self.config, self.config_revision, self.forecast = config, record.revision, forecast
        self.schedule = self.schedule.reconfigured(config)
        self.throughput_loop, self.load_loop = ThroughputLoop(config, floors), LoadLoop(config)
        self.ledger.ack_timeout_s = config.ack_timeout_seconds
        self.fpm.stale_after_s, self.fpm.max_skew_s = config.fpm_stale_after_seconds, config.max_clock_skew_seconds
        self.inventory.stale_after_s = config.inventory_stale_after_seconds
        self.inventory.max_skew_s = config.max_clock_skew_seconds
        return None

    # -- the tick --------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> list[Record]:
        """Plan at `now`, the one timestamp of everything in it.

        Returns the prediction and the own proposal (if made), the decision (if any), and the tick report, in that order.
        """
        due_at, loops = self.schedule.begin(now)
        self.fpm.learn()
        self.fpm.forget(now)
        self.ledger.expire(now)
        self.proposals = {key: p for key, p in self.proposals.items() if p.expires_at > now}
        views = {
            role: look(role, now, config=self.config, fpm=self.fpm, inventory=self.inventory, settled_at=self.ledger.settled_at)
            for role in self.config.roles
        }
        made, throughput = self._run_throughput(now, views) if "throughput" in loops else ([], {})
        load = self._run_load(views) if "load" in loops else {}
        floors = {role: self.throughput_loop.floor(role, now) for role in views}
        verdicts = own_verdicts(self.config, views, load, throughput, floors)
        own = own_proposal(self.config, self.dgd, self.schedule.tick, now, verdicts)
        proposals = ([own] if own else []) + live(self.proposals, now)
        plans, notes = reconcile(self.config, views, Opinions(proposals, verdicts, self.ledger.in_force))
        decision = self._decide(now, plans, proposals, notes)
        report = TickReport(
            dgd=self.dgd,
            tick=self.schedule.tick,
            at=now,
            due_at=due_at,
            epoch=self.epoch,
            config_revision=self.config_revision,
            mode=self.config.mode,
            advisory=self.config.advisory,
            loops=loops,
            roles={
                role: role_report(
                    view,
                    plans[role],
                    self.models[role],
                    load.get(role, _idle(self.config.load_loop)),
                    throughput.get(role, _idle(self.config.throughput_loop)),
                    proposals,
                    floors[role],
                )
                for role, view in views.items()
            },
            load=self.traffic.shown(),
            forecast=forecast_numbers(self.prediction),
            unknown=self._unknown_inputs(),
            decision_id=None if decision is None else decision.decision_id,
            outstanding=None if self.ledger.outstanding is None else self.ledger.outstanding.decision_id,
            last_outcome=self.ledger.outcome or "",
            notes=self.notes + notes,
            counters=self._counters(),
        )
        self.notes = []
        return [*made, *([own] if own else []), *([decision] if decision else []), report]

    def _run_throughput(self, now: float, views: dict[Role, RoleView]) -> tuple[list[Record], dict[Role, Verdict]]:
        observed = self.traffic.close_interval(self.config.throughput_adjustment_interval_seconds)
        if isinstance(observed, Known):
            self.forecast.observe(observed.value)
        own = self.forecast.predict(self.dgd, now, observed, self.traffic)
        self.prediction = self.forecast.best(own, now)
        return [own], self.throughput_loop.run(self.prediction, views, self.models, now)

    def _run_load(self, views: dict[Role, RoleView]) -> dict[Role, Verdict]:
        for role, view in views.items():
            if view.idle:
                self.models[role].idle(len(view.engines))
        return self.load_loop.run(views, self.models, self.traffic, self.ledger.outstanding is not None)

    def _decide(
        self, now: float, plans: dict[Role, RolePlan], proposals: Sequence[Proposal], notes: list[str]
    ) -> Decision | None:
        targets = {role: p.target for role, p in plans.items() if p.target is not None}
        current = {role: p.current for role, p in plans.items() if p.current is not None}
        if len(targets) < len(plans) or targets == current:
            return None
        if self.fenced:
            notes.append(f"a newer owner (epoch {self.ledger.highest_epoch}) decides for this DGD: this planner only watches")
            return None
        held = self._held(now, targets)
        if held is not None:
            reason, note = held
            notes.append(note)
            for role, plan in plans.items():
                if reason is not None and plan.target != current[role]:
                    plan.reason = reason
            return None
        return self.ledger.issue(
            dgd=self.dgd,
            now=now,
            targets=targets,
            previous=current,
            reasons=reasons_of(plans),
            causes=Causes(
                tick=self.schedule.tick,
                config_revision=self.config_revision,
                model_revision={role: model.revision for role, model in self.models.items()},
                prediction=self.prediction.prediction_id if self.prediction else None,
                proposals=[p.proposal_id for p in proposals],
            ),
            advisory=self.config.advisory,
        )

    def _held(self, now: float, targets: dict[Role, int]) -> tuple[Reason | None, str] | None:
        """Why these targets may not be issued now, or None."""
        newest, outcome = self.ledger.newest, self.ledger.outcome
        if self.ledger.outstanding is not None:
            return Reason.SCALING_IN_PROGRESS, f"decision {self.ledger.outstanding.decision_id} is outstanding"
        if newest is None or newest.targets != targets:
            return None
        if newest.advisory and self.config.advisory:
            return None, f"advisory decision {newest.decision_id} says this already"
        if outcome in (Outcome.REJECTED, Outcome.FAILED, Outcome.EXPIRED):
            wait = self.ledger.settled_at + self.config.rejected_retry_seconds - now
            if wait > 0:
                return None, f"decision {newest.decision_id} asked for the same and was {outcome}; again in {wait:.0f} s"
        return None

    def _unknown_inputs(self) -> dict[str, str]:
        unknown = {}
        if self.config.throughput_loop and self.traffic.unknown is not None:
            unknown["traffic"] = self.traffic.unknown
        if self.fpm.foreign_roles:
            unknown["roles"] = f"FPMs came for roles that mode {self.config.mode!r} does not plan: " + ", ".join(
                sorted(self.fpm.foreign_roles)
            )
        return unknown

    def _counters(self) -> dict[str, int]:
        c = self.fpm.counters
        return {
            "fpm_seen": c.seen,
            "fpm_duplicate": c.duplicate,
            "fpm_out_of_order": c.out_of_order,
            "fpm_late": c.late,
            "fpm_clock_skew": c.clock_skew,
            "fpm_bad": c.bad,
            "traffic_duplicate": self.traffic.duplicates,
        }

    # -- state -----------------------------------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        """Everything that :meth:`restore` needs, as JSON. Restoring gives a planner that behaves the same."""
        self.fpm.learn()
        state = {
            "version": STATE_VERSION,
            "dgd": self.dgd,
            "config": msgspec.to_builtins(self.config),
            "config_revision": self.config_revision,
            "schedule": self.schedule.to_state(),
            "models": {role: model.to_state() for role, model in self.models.items()},
            "fpm": self.fpm.to_state(),
            "traffic": self.traffic.to_state(),
            "inventory": self.inventory.to_state(),
            "forecast": self.forecast.to_state(),
            "throughput": self.throughput_loop.to_state(),
            "ledger": self.ledger.to_state(),
            "proposals": msgspec.to_builtins(self.proposals),
            "prediction": msgspec.to_builtins(self.prediction),
            "notes": self.notes,
        }
        return msgspec.json.encode(state)

    @classmethod
    def restore(cls, blob: bytes, config: PlannerConfig | None = None) -> "Planner":
        """A planner from a snapshot; with `config`, under that configuration instead of the one it was taken with.

        Raises StateError when the bytes are not a snapshot of this version.
        """
        try:
            state: dict[str, Any] = msgspec.json.decode(blob)
            if state["version"] != STATE_VERSION:
                raise StateError(f"snapshot version {state['version']}: this version reads {STATE_VERSION}")
            planner = cls(config or msgspec.convert(state["config"], PlannerConfig), state["dgd"])
            planner._load(state)
        except (msgspec.MsgspecError, KeyError, TypeError, ValueError, AttributeError) as e:
            raise StateError(f"planner snapshot of {len(blob)} bytes: {type(e).__name__}: {e}") from e
        return planner

    def _load(self, state: dict[str, Any]) -> None:
        self.config_revision = state["config_revision"]
        self.schedule.load_state(state["schedule"])
        for role, model in state["models"].items():
            if role in self.models:
                self.models[role] = EngineModel.from_state(model)
        self.fpm.models = self.models
        self.fpm.load_state(state["fpm"])
        self.traffic.load_state(state["traffic"])
        self.inventory.load_state(state["inventory"])
        self.forecast.load_state(state["forecast"])
        self.throughput_loop.load_state(state["throughput"])
        self.ledger.load_state(state["ledger"])
        self.proposals = msgspec.convert(state["proposals"], dict[str, Proposal])
        self.prediction = msgspec.convert(state["prediction"], Prediction | None)
        self.notes = state["notes"]


def _idle(enabled: bool) -> Verdict:
    return Verdict.hold(Reason.NOT_DUE if enabled else Reason.DISABLED)
