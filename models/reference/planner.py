"""The planner of Dynamo 1.4.2 as a whole: give it what it asks for on a tick, and read what it would have done.

planner = ReferencePlanner(Settings.of(config))
planner.set_engines({"prefill": Engine(...), "decode": Engine(...)})
schedule = planner.start(now)
told = planner.tick(now, seen)      # what it would have done, and told.schedule: when it looks next, and at what
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headrace.models.reference import load, throughput
from headrace.models.reference.decision import LoadDecision, ThroughputDecision
from headrace.models.reference.forecast import Forecast, LoadForecast, Prediction
from headrace.models.reference.merge import Opinion, Target
from headrace.models.reference.pipeline import Action, run_pipeline
from headrace.models.reference.plugins import Answer, Context, Plugin, Registry, Stage
from headrace.models.reference.schedule import FPM, TRAFFIC, Clock, Schedule
from headrace.models.reference.settings import Engine, Seen, Settings, Traffic
from headrace.models.reference.state import State
from headrace.schemas.base import AGG, DECODE, Role
from headrace.schemas.fpm import Fpm
from headrace.schemas.reasons import Reason

NOTHING_SAID = LoadDecision()
NOTHING_FORECAST = ThroughputDecision()


@dataclass(frozen=True, slots=True)
class Told:
    """One tick. `targets`: what it would ask the connector for; None: nothing."""

    schedule: Schedule  # of the next tick
    targets: Mapping[Role, int] | None
    action: Action
    rejection: str  # by whom and why, where a plugin rejected
    load: LoadDecision
    throughput: ThroughputDecision
    prediction: Prediction | None
    floors: Mapping[Role, int]


class ReferencePlanner:
    """One deployment. Needs no connector: it acts on nothing.

    `base_s` is the tick, seconds; without it the greatest common divisor of the intervals that are on.
    Raises ConfigError where the configured predictor needs an extra that is not installed.
    """

    def __init__(self, settings: Settings, *, base_s: float | None = None) -> None:
        self.settings = settings
        self.state = State(settings)
        self.registry = Registry()
        self.clock = Clock(settings, base_s)
        self.forecast = LoadForecast(settings) if settings.throughput else None
        self._seen = Seen()
        self._load, self._throughput = NOTHING_SAID, NOTHING_FORECAST
        for plugin in self._own():
            self.registry.register(plugin)

    # -- before the first tick -------------------------------------------------------------------------------------

    def set_engines(self, engines: Mapping[Role, Engine]) -> None:
        """What one engine of each role is; also later, whenever it is known better."""
        self.state.set_engines(engines)

    def bootstrap(self, fpms: Mapping[Role, list[Fpm]]) -> None:
        """Iterations that were measured before, in their order."""
        for role, rows in fpms.items():
            self.state.models[role].bootstrap(rows)

    def warm_up(self, windows: Iterable[Traffic]) -> None:
        """A recorded load, in windows of the throughput interval."""
        if self.forecast is not None:
            self.forecast.warm_up(windows)

    def start(self, now: float) -> Schedule:
        """Begin at `now`: intervals count from here."""
        self.registry.anchor([plugin.name for plugin in self._own()], now)
        return self.clock.start(now, self.registry)

    # -- the tick --------------------------------------------------------------------------------------------------

    def tick(self, now: float, seen: Seen) -> Told:
        """What is done with what the schedule had asked for; what it had not asked for is better left out."""
        scheduled = self.clock.scheduled
        self._seen, self._load, self._throughput = seen, NOTHING_SAID, NOTHING_FORECAST
        if scheduled.load and self.settings.sla:
            for role, model in self.state.models.items():
                model.learn(seen.engines(role))
        if seen.traffic is not None:
            self.state.note_rates(seen.traffic.kv_hit_rate, seen.traffic.accept_length)
        ready = {_slot(role): seen.pool(role).ready for role in self.settings.roles}
        baseline = {slot: n for slot, n in ready.items() if n is not None}
        run = run_pipeline(self.registry, baseline, self.clock.planned_now)
        if scheduled.load and not self.settings.load:
            self._load = load.decide(self.state, seen)  # to say that it is off
        return Told(
            schedule=self.clock.advance(now, self.registry),
            targets=self._project(run.targets, baseline),
            action=run.action,
            rejection=run.rejection,
            load=self._load,
            throughput=self._throughput,
            prediction=run.prediction,
            floors=dict(self.state.floors),
        )

    def _project(self, found: Mapping[str, int] | None, ready: Mapping[str, int]) -> dict[Role, int] | None:
        """Within the budget once more. None where nothing differs from what is ready."""
        if found is None:
            return None
        wanted = {role: found[_slot(role)] for role in self.settings.roles if _slot(role) in found}
        if all(ready.get(_slot(role)) == n for role, n in wanted.items()):
            return None
        least = self.settings.min_endpoint
        full = {role: max(least, wanted.get(role, 0)) for role in self.settings.roles}
        clamped = self.state.within_budget(full)
        targets = {role: clamped[role] for role in wanted}
        return None if all(ready.get(_slot(role)) == n for role, n in targets.items()) else targets

    # -- its own plugins -------------------------------------------------------------------------------------------

    def _own(self) -> list[Plugin]:
        settings = self.settings
        long, short = settings.throughput_adjustment_interval_seconds, settings.load_adjustment_interval_seconds
        traffic = frozenset({TRAFFIC})
        found = []
        if settings.throughput:
            found.append(Plugin(PREDICT, Stage.PREDICT, 0, self._predict, long, needs=traffic, window_s=long))
            found.append(
                Plugin(
                    THROUGHPUT,
                    Stage.PROPOSE,
                    20,
                    self._propose_throughput,
                    long,
                    requires_prediction=True,
                    needs=traffic,
                    window_s=long,
                )
            )
        if settings.load:
            alone = settings.sla and not settings.throughput
            needs = frozenset({FPM, TRAFFIC} if alone else {FPM})
            window = short if alone else 0.0
            found.append(Plugin(LOAD, Stage.PROPOSE, 10, self._propose_load, short, needs=needs, window_s=window))
        return found

    def _predict(self, context: Context) -> Answer:
        assert self.forecast is not None
        if self._seen.traffic is None:
            self._throughput = ThroughputDecision(reason=Reason.NO_TRAFFIC_DATA)
            return None
        self.forecast.observe(self._seen.traffic)
        return Forecast(PREDICT, 0, self.forecast.predict(self.state.nextn))

    def _decide_throughput(self, context: Context) -> None:
        traffic = self._seen.traffic
        if context.prediction is not None and traffic is not None:
            self._throughput = throughput.decide(self.state, context.prediction, traffic.duration_s)

    def _propose_throughput(self, context: Context) -> Answer:
        self._decide_throughput(context)
        return _opinion(THROUGHPUT, 20, self._throughput.targets)

    def _propose_load(self, context: Context) -> Answer:
        """A new floor counts at once."""
        if self.settings.throughput:
            self._decide_throughput(context)
        self._load = load.decide(self.state, self._seen)
        return _opinion(LOAD, 10, self._load.targets)


PREDICT, THROUGHPUT, LOAD = "builtin_load_predict", "builtin_throughput_propose", "builtin_load_propose"


def _slot(role: Role) -> str:
    """Aggregated workers are planned in the place of decode."""
    return DECODE if role == AGG else role


def _opinion(name: str, priority: int, targets: Mapping[Role, int]) -> Opinion | None:
    named = tuple(Target(_slot(role), replicas) for role, replicas in targets.items())
    return Opinion(name, priority, named) if named else None
