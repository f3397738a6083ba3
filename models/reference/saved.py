"""What the reference planner has learned, as values for JSON; the original forgets it with its process.

Restored, it goes on as it would have, but for `arima`: that selects its order anew, over all it has seen.
Plugins that were registered beside its own are not part of it.
"""

from collections import deque
from collections.abc import Mapping
from typing import Any

import msgspec

from headrace.models.reference.averages import MovingAverage
from headrace.models.reference.engine import EngineTimes, Kind
from headrace.models.reference.perf import PerfModel
from headrace.models.reference.planner import ReferencePlanner
from headrace.models.reference.schedule import Schedule
from headrace.models.reference.settings import Engine
from headrace.schemas.fpm import Fpm

State = dict[str, Any]


def to_state(planner: ReferencePlanner) -> State:
    state, forecast, clock = planner.state, planner.forecast, planner.clock
    return {
        "engines": {role: msgspec.to_builtins(engine) for role, engine in state.engines.items()},
        "models": {role: _model(model) for role, model in state.models.items()},
        "floors": dict(state.floors),
        "rates": [state.kv_hit_rate, state.accept_length],
        "forecast": None if forecast is None else forecast.to_state(),
        "plugins": {
            known.plugin.name: [known.anchor, known.failed, known.opened_at] for known in planner.registry.plugins
        },
        "clock": [clock.planned_now, clock.last_load, clock.last_throughput, msgspec.to_builtins(clock.scheduled)],
    }


def load_state(planner: ReferencePlanner, saved: Mapping[str, Any]) -> None:
    """Into a planner of the same settings. Raises KeyError, TypeError or ValueError where it is no such state."""
    state, clock = planner.state, planner.clock
    state.set_engines({role: msgspec.convert(engine, Engine) for role, engine in saved["engines"].items()})
    for role, model in state.models.items():
        _load_model(model, saved["models"][role])
    state.floors.update(saved["floors"])
    state.kv_hit_rate, state.accept_length = saved["rates"]
    if planner.forecast is not None:
        planner.forecast.load_state(saved["forecast"])
    for known in planner.registry.plugins:
        known.anchor, known.failed, known.opened_at = saved["plugins"][known.plugin.name]
    clock.planned_now, clock.last_load, clock.last_throughput, scheduled = saved["clock"]
    clock.scheduled = msgspec.convert(scheduled, Schedule)


def _model(model: PerfModel) -> State:
    times = model.times
    return {
        "kept": {
            kind.value: {"low": kept.low, "high": kept.high, "samples": kept.samples}
            for kind, kept in times.kept.items()
        },
        "averages": [_average(a) for a in _averages(model, times)],
        "recent": [msgspec.to_builtins(fpm) for fpm in model.recent],
    }


def _averages(model: PerfModel, times: EngineTimes) -> tuple[MovingAverage, ...]:
    return model.isl, model.decode_length, times.prefill_tokens, times.prefill_requests


def _average(average: MovingAverage) -> State:
    return {"values": list(average.values), "total": average.total}


def _load_model(model: PerfModel, saved: Mapping[str, Any]) -> None:
    model.times = times = EngineTimes(model.learning)
    for kind, kept in times.kept.items():
        found = saved["kept"][Kind(kind).value]
        kept.restore(found["low"], found["high"], [(tuple(x), y) for x, y in found["samples"]])
    for average, found in zip(_averages(model, times), saved["averages"], strict=True):
        average.values, average.total = deque(found["values"]), found["total"]
    model.recent.clear()
    model.recent.extend(msgspec.convert(fpm, Fpm) for fpm in saved["recent"])
