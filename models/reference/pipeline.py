"""One run of the reference's stages: PREDICT, PROPOSE, RECONCILE, CONSTRAIN, and whether the outcome is applied."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from headrace.models.reference.forecast import Chained, Forecast, Prediction, chain
from headrace.models.reference.merge import Merged, Opinion, merge
from headrace.models.reference.plugins import Context, Registry, Stage

MERGED = (Stage.PROPOSE, Stage.RECONCILE, Stage.CONSTRAIN)


class Action(StrEnum):
    APPLY = "apply"
    REJECTED = "skip_short_circuit"
    NO_TARGETS = "skip_no_targets"


@dataclass(slots=True)
class Run:
    """`targets` None: rejected, and `rejection` says by whom and why. `called`: who was asked, in order."""

    action: Action = Action.APPLY
    targets: dict[str, int] | None = None
    rejection: str = ""
    prediction: Prediction | None = None
    stages: dict[Stage, Merged] = field(default_factory=dict)
    called: list[str] = field(default_factory=list)
    audit: list[str] = field(default_factory=list)


def run_pipeline(registry: Registry, baseline: Mapping[str, int], now: float) -> Run:
    """`baseline`: the ready replicas, which stand where nobody says anything."""
    run = Run()
    context = Context(now)
    run.prediction = _predict(registry, context, run)
    context = replace(context, prediction=run.prediction)
    counts = dict(baseline)
    for stage in MERGED:
        merged, opinions = _stage(registry, stage, context, counts, run)
        run.stages[stage] = merged
        if merged.targets is None:
            run.action, run.rejection = Action.REJECTED, merged.rejection
            return run
        counts.update(merged.targets)
        context = replace(context, proposal=dict(counts), proposals=opinions if stage is Stage.PROPOSE else ())
    run.targets = counts
    if not counts:
        run.action = Action.NO_TARGETS
        run.audit.append("execute_skipped_no_targets")
    return run


def _predict(registry: Registry, context: Context, run: Run) -> Prediction | None:
    """One after the other by priority; nobody is asked after a `final`."""
    said: list[Forecast] = []
    chained: Chained | None = None
    for known in sorted(registry.due(Stage.PREDICT, context.now), key=lambda p: p.plugin.priority):
        plugin = known.plugin
        answer = registry.call(known, replace(context, prediction=chained.prediction if chained else None))
        run.called.append(plugin.name)
        said.append(answer if isinstance(answer, Forecast) else Forecast(plugin.name, plugin.priority, None))
        chained = chain(said)
        if chained.final_from:
            break
    return chained.prediction if chained else None


def _stage(
    registry: Registry, stage: Stage, context: Context, counts: Mapping[str, int], run: Run
) -> tuple[Merged, tuple[Opinion, ...]]:
    """All are shown the same. Where only bounds are allowed nobody has the last word."""
    opinions = []
    for plugin, answer, asked in registry.ask(stage, context):
        if asked:
            run.called.append(plugin.name)
        if isinstance(answer, Opinion):
            opinions.append(answer)
        elif asked and stage is Stage.PROPOSE:
            opinions.append(Opinion(plugin.name, plugin.priority))
    if stage is Stage.CONSTRAIN:
        merged = merge([replace(o, final=False) for o in opinions], counts, set_allowed=False)
    else:
        merged = merge(opinions, counts)
    return merged, tuple(opinions)
