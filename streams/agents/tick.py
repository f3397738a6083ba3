"""One tick: from what is remembered to a prediction, a proposal, a decision if one is due, and the report of it all."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import chain

from headrace.models.known import Known
from headrace.models.scaling.verdict import Verdict
from headrace.schemas.base import Record, Role
from headrace.schemas.decision import Causes, Decision
from headrace.schemas.prediction import Prediction
from headrace.schemas.proposal import Proposal
from headrace.schemas.reasons import Outcome, Reason
from headrace.schemas.tick_report import ReferenceOpinion, TickReport
from headrace.streams.agents.ledger import Draft
from headrace.streams.agents.memory import Memory
from headrace.streams.agents.propose import own_proposal, own_verdicts
from headrace.streams.agents.queue_aware import Scene
from headrace.streams.agents.reconcile import Opinions, RolePlan, reconcile
from headrace.streams.agents.report import Findings, forecast_numbers, reasons_of, role_report
from headrace.streams.agents.shadow import as_verdicts
from headrace.streams.agents.view import RoleView, look

NOTHING: Mapping[Role, Verdict] = {}


@dataclass(slots=True)
class Tick:
    """One run of it. `now` is the one timestamp of everything in it, seconds."""

    memory: Memory
    now: float
    due_at: float
    loops: list[str]
    views: dict[Role, RoleView]
    notes: list[str] = field(default_factory=list)
    prediction: Prediction | None = None  # our own, where the throughput loop ran
    own: Proposal | None = None
    decision: Decision | None = None
    load: Mapping[Role, Verdict] = field(default_factory=dict)
    throughput: Mapping[Role, Verdict] = field(default_factory=dict)
    reference: Mapping[Role, ReferenceOpinion] = field(default_factory=dict)

    @property
    def records(self) -> list[Record]:
        """What this tick says, without its report."""
        return [record for record in (self.prediction, self.own, self.decision) if record is not None]


def run_tick(memory: Memory, now: float) -> list[Record]:
    """Plan at `now`, if a tick is due then; else nothing happens."""
    if not memory.schedule.due(now):
        if memory.schedule.resume(now):
            memory.note("the clock was set back: ticks go on from what it says now")
        return []
    tick = _begin(memory, now)
    if "throughput" in tick.loops:
        _run_throughput(tick)
    if "load" in tick.loops:
        _run_load(tick)
    _ask_reference(tick)
    config = memory.config
    no_floor = config.queue_aware or config.reference_exact
    floors = {role: None if no_floor else memory.throughput.floor(role, now) for role in tick.views}
    verdicts = own_verdicts(config, tick.views, tick.load, tick.throughput, floors)
    tick.own = own_proposal(config, memory.dgd, now, verdicts)
    proposals = [*([tick.own] if tick.own else []), *memory.proposals.live(now)]
    plans, notes = reconcile(config, tick.views, Opinions(proposals, verdicts))
    tick.notes += notes
    tick.decision = _decide(tick, plans)
    report = _report(tick, plans, floors, proposals)
    memory.notes = []
    return [*tick.records, report]


def _begin(memory: Memory, now: float) -> Tick:
    """Bring what is remembered up to `now`, and look at every role."""
    due_at, loops = memory.schedule.begin(now)
    memory.fpm.begin_tick(now)
    if not memory.config.throughput_loop:
        memory.traffic.begin_interval()  # nobody closes intervals
    given_up = memory.ledger.expire(now)
    memory.forecast.startup.look(memory.ledger)
    if memory.config.advisory:
        memory.ledger.let_go()  # whoever acts on advice may choose other counts
    views = {
        role: look(role, now, config=memory.config, fpm=memory.fpm, inventory=memory.inventory, ledger=memory.ledger)
        for role in memory.config.roles
    }
    tick = Tick(memory, now, due_at, loops, views)
    if memory.ledger.fenced:
        tick.notes.append(
            f"a newer owner (epoch {memory.ledger.highest_epoch}) decides for this DGD: this planner only watches"
        )
    tick.notes += _without_room(views)
    if given_up is not None:
        tick.notes.append(
            f"decision {given_up.decision_id} had no ack within {memory.config.ack_timeout_seconds:g} s of its issue: "
            "given up, and what runs is what counts"
        )
    return tick


def _without_room(views: Mapping[Role, RoleView]) -> list[str]:
    found = [(role, view.inventory) for role, view in views.items() if view.inventory and view.inventory.unschedulable]
    return [
        f"{i.unschedulable} of {i.starting} starting {role} replicas cannot be scheduled: no node has room for them"
        for role, i in found
    ]


def _run_throughput(tick: Tick) -> None:
    memory = tick.memory
    observed = memory.traffic.close_interval(memory.config.throughput_adjustment_interval_seconds)
    if isinstance(observed, Known):
        memory.forecast.observe(observed.value)
    if memory.shadow is not None:
        memory.shadow.observe(observed)
    tick.prediction = memory.forecast.predict(memory.dgd, tick.now, observed, memory.traffic)
    memory.prediction = memory.forecast.best(tick.prediction, tick.now)
    if memory.config.reference_exact:
        return
    if memory.config.correction:
        sized = memory.correction.run(observed, memory.prediction, tick.views)
        tick.throughput = memory.throughput.settle(sized, tick.views, tick.now)
    else:
        tick.throughput = memory.throughput.run(memory.prediction, tick.views, memory.models, tick.now)
    for role, verdict in tick.throughput.items():
        if verdict.evidence.get("capacity_meets_sla") == 0.0:
            tick.notes.append(
                f"no load of a {role} engine meets the SLA: sized by demand, at the least violation of it"
            )
    if memory.config.queue_aware and not memory.config.load_loop:
        sized = memory.queue.run(_scene(tick), tick.now)
        before = tick.throughput
        tick.throughput = {r: replace(v, evidence={**before[r].evidence, **v.evidence}) for r, v in sized.items()}


def _run_load(tick: Tick) -> None:
    memory = tick.memory
    for role, view in tick.views.items():
        if view.idle:
            memory.models[role].idle(len(view.engines))
    if memory.config.reference_exact:
        return
    sized = memory.config.queue_aware
    if not sized or memory.queue.blind(_live_prediction(tick), memory.forecast.startup.expected_s, tick.now):
        outstanding = memory.ledger.outstanding is not None
        tick.load = memory.load.run(tick.views, memory.models, memory.traffic, outstanding)
    if sized:
        tick.load = memory.queue.run(_scene(tick), tick.now)


def _scene(tick: Tick) -> Scene:
    memory = tick.memory
    prediction = _live_prediction(tick)
    startup_s = memory.forecast.startup.expected_s
    return Scene(tick.views, memory.models, memory.traffic, memory.ledger, startup_s, prediction, fallback=tick.load)


def _live_prediction(tick: Tick) -> Prediction | None:
    """The prediction of the last throughput run, until it expires."""
    p = tick.memory.prediction
    return p if p is not None and tick.memory.config.throughput_loop and tick.now < p.expires_at else None


def _ask_reference(tick: Tick) -> None:
    """What the reference planner would have said, where somebody wants to know; it may be who decides."""
    memory = tick.memory
    if memory.shadow is None:
        return
    memory.shadow.know_beforehand(memory.profiles.known)
    tick.reference = memory.shadow.run(tick.due_at, tick.views, memory.fpm, memory.traffic, tick.now)
    if memory.config.reference_exact:
        tick.load, tick.throughput = as_verdicts(tick.reference)


def _decide(tick: Tick, plans: Mapping[Role, RolePlan]) -> Decision | None:
    """The decision that the plans ask for, unless something holds it; then the notes say what."""
    memory = tick.memory
    targets = {role: p.target for role, p in plans.items() if p.target is not None}
    current = {role: p.current for role, p in plans.items() if p.current is not None}
    if memory.ledger.fenced or len(targets) < len(plans) or targets == current:
        return None
    held = _held(tick, targets)
    if held is not None:
        tick.notes.append(held)
        if memory.ledger.outstanding is not None:
            for role, plan in plans.items():
                if plan.target != current[role]:
                    plan.reason = Reason.SCALING_IN_PROGRESS
        return None
    causes = Causes(
        tick=memory.schedule.tick,
        config_revision=memory.config_revision,
        model_revision={role: model.revision for role, model in memory.models.items()},
        prediction=memory.prediction.prediction_id if memory.prediction else None,
        proposals=list(dict.fromkeys(p.proposal_id for p in chain(*(plan.used for plan in plans.values())))),
    )
    draft = Draft(targets, current, reasons_of(plans), causes, memory.config.advisory)
    return memory.ledger.issue(draft, tick.now)


def _held(tick: Tick, targets: Mapping[Role, int]) -> str | None:
    """Why these targets may not be issued now, or None."""
    ledger, config = tick.memory.ledger, tick.memory.config
    newest = ledger.newest
    if ledger.outstanding is not None:
        return f"decision {ledger.outstanding.decision_id} is outstanding"
    if newest is None or newest.targets != targets:
        return None
    if newest.advisory:
        return f"advisory decision {newest.decision_id} says this already" if config.advisory else None
    if ledger.settled_at is None or ledger.outcome is Outcome.TIMED_OUT:
        return None
    wait = ledger.settled_at + config.rejected_retry_seconds - tick.now
    if wait <= 0:
        return None
    return f"decision {newest.decision_id} asked for the same and was {ledger.outcome}; again in {wait:.0f} s"


def _report(
    tick: Tick, plans: Mapping[Role, RolePlan], floors: Mapping[Role, int | None], proposals: list[Proposal]
) -> TickReport:
    memory, config = tick.memory, tick.memory.config
    load, unknown = memory.traffic.shown(tick.now, config.throughput_adjustment_interval_seconds)
    return TickReport(
        dgd=memory.dgd,
        tick=memory.schedule.tick,
        at=tick.now,
        due_at=tick.due_at,
        epoch=memory.ledger.epoch,
        config_revision=memory.config_revision,
        mode=config.mode,
        advisory=config.advisory,
        loops=tick.loops,
        roles={
            role: role_report(
                view,
                plans[role],
                memory.models[role],
                Findings(
                    tick.load.get(role, _idle(config.load_loop)),
                    tick.throughput.get(role, _idle(config.throughput_loop)),
                    floors[role],
                    memory.profiles.source(role, memory.models[role]),
                    tick.reference.get(role),
                ),
                proposals,
            )
            for role, view in tick.views.items()
        },
        load=load,
        forecast=forecast_numbers(memory.prediction),
        unknown=unknown | _unknown_inputs(memory),
        decision_id=None if tick.decision is None else tick.decision.decision_id,
        outstanding=None if memory.ledger.outstanding is None else memory.ledger.outstanding.decision_id,
        last_outcome=memory.ledger.outcome or "",
        notes=memory.notes + tick.notes,
        counters=_counters(memory),
    )


def _idle(enabled: bool) -> Verdict:
    return Verdict.hold(Reason.NOT_DUE if enabled else Reason.DISABLED)


def _unknown_inputs(memory: Memory) -> dict[str, str]:
    unknown = {}
    if memory.config.throughput_loop and memory.traffic.unknown is not None:
        unknown["traffic"] = memory.traffic.unknown
    if memory.fpm.foreign_roles:
        roles = ", ".join(sorted(memory.fpm.foreign_roles))
        unknown["roles"] = f"FPMs came for roles that mode {memory.config.mode!r} does not plan: {roles}"
    return unknown


def _counters(memory: Memory) -> dict[str, int]:
    c = memory.fpm.counters
    return {
        "fpm_seen": c.seen,
        "fpm_duplicate": c.duplicate,
        "fpm_out_of_order": c.out_of_order,
        "fpm_late": c.late,
        "fpm_clock_skew": c.clock_skew,
        "fpm_bad": c.bad,
        "traffic_seen": memory.traffic.seen,
        "traffic_duplicate": memory.traffic.duplicates,
        **{f"fit_{what}": count for what, count in memory.forecast.series.fits.items()},
    }
