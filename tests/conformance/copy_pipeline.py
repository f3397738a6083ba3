"""Our copy of the reference's stages: merging opinions, chaining predictions, and runs over several ticks."""

from typing import Any

from conformance import Case, copies
from reference import FIELDS, Row, opinion_of

from headrace.models.reference.forecast import Forecast, Prediction, chain
from headrace.models.reference.merge import Merged, merge
from headrace.models.reference.pipeline import MERGED, run_pipeline
from headrace.models.reference.plugins import Answer, Breaker, Context, Plugin, Registry, Stage


def told(merged: Merged | None) -> dict[str, Any] | None:
    """A merge as the files write it."""
    if merged is None:
        return None
    targets = merged.targets
    return {
        "targets": None if targets is None else [{"component": c, "replicas": n} for c, n in targets],
        "source": merged.source,
        "short_circuited": targets is None,
        "short_circuit_reason": merged.rejection,
        "used_final_from": merged.final_from,
        "set_dropped": list(merged.dropped),
        "clamped": [{"component": c.component, "direction": c.direction, "plugin": c.source} for c in merged.clamps],
    }


@copies("08_merge")
def merged(case: Case) -> None:
    i = case.input
    opinions = [opinion_of(plugin, plugin) for plugin in i["plugins"]]
    assert told(merge(opinions, i["baseline"], set_allowed=i["set_allowed"])) == case.expected


@copies("08_predict_chain")
def chained(case: Case) -> None:
    forecasts = [
        Forecast(
            p["id"], p["priority"], None if p["prediction"] is None else Prediction(**p["prediction"]), "final" in p
        )
        for p in case.input["plugins"]
    ]
    found, want = chain(forecasts), case.expected
    prediction = _fields(found.prediction)
    if prediction is not None and found.prediction is not None:
        prediction["source"] = found.prediction.source
    assert prediction == want["prediction"]
    assert found.final_from == want["final_from"]
    assert found.broken == bool(want["chain_break_warnings"])
    assert [{"plugin": who, "sees": _fields(seen)} for who, seen in found.calls] == want["calls"]


def _fields(prediction: Prediction | None) -> dict[str, Any] | None:
    return None if prediction is None else {f"predicted_{name}": getattr(prediction, name) for name in FIELDS}


class Scripted:
    """A plugin that answers by a script, whose last line repeats, and notes what it was shown."""

    def __init__(self, row: Row, seen: dict[str, Any]) -> None:
        self.row, self.seen, self.calls = row, seen, 0

    def __call__(self, context: Context) -> Answer:
        line = self.row["script"][min(self.calls, len(self.row["script"]) - 1)]
        self.calls += 1
        if self.row["stage"] == "predict":
            return Forecast(self.row["id"], self.row["priority"], Prediction(**line))
        self.seen[self.row["id"]] = {
            "proposal_seen": context.proposal,
            "predictions_seen": context.prediction is not None,
            "n_proposals": len(context.proposals),
        }
        if line == "raise":
            raise RuntimeError("as the script says")
        return None if line == "empty" or line["kind"] == "accept" else opinion_of(self.row, line)


@copies("08_pipeline")
def pipeline(case: Case) -> None:
    i, seen = case.input, dict[str, Any]()
    breaker = Breaker(i["circuit_breaker"]["failure_threshold"], i["circuit_breaker"]["cooldown_s"])
    registry = Registry(breaker=breaker)
    for row in i["plugins"]:
        registry.register(
            Plugin(
                row["id"],
                Stage(row["stage"]),
                row["priority"],
                Scripted(row, seen),
                interval_s=row.get("interval_s", 0.0),
                hold_last=row.get("hold") == "HOLD_LAST",
                requires_prediction="predictions" in row.get("requires", []),
            )
        )
    for tick, want in zip(i["ticks"], case.expected["ticks"], strict=True):
        seen.clear()
        run = run_pipeline(registry, tick["baseline"], tick["at_s"])
        assert {
            "action": run.action,
            "targets": run.targets,
            "short_circuit_reason": run.rejection,
            "audit": run.audit,
            "called": sorted(run.called),
            "seen": seen,
            **{stage.value: told(run.stages.get(stage)) for stage in MERGED},
        } == want
