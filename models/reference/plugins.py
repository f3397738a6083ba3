"""Plugins of the reference's pipeline: when one is due, what is replayed of it, and when it is left alone."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from headrace.models.reference.forecast import Forecast, Prediction
from headrace.models.reference.merge import Opinion
from headrace.schemas.errors import HeadraceError

FAILURES = (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError, HeadraceError)


class Stage(Enum):
    PREDICT = "predict"
    PROPOSE = "propose"
    RECONCILE = "reconcile"
    CONSTRAIN = "constrain"


@dataclass(frozen=True, slots=True)
class Context:
    """What a plugin is shown. `proposals`: what each one of stage PROPOSE said, for RECONCILE alone."""

    now: float
    prediction: Prediction | None = None
    proposal: Mapping[str, int] | None = None
    proposals: tuple[Opinion, ...] = ()


Answer = Opinion | Forecast | None  # None: no opinion
Call = Callable[[Context], Answer]


@dataclass(frozen=True, slots=True)
class Plugin:
    """`requires_prediction`: it is not called before one has been made. `call` raises where the plugin fails.

    `needs` says which observations are collected when it is due, and `window_s` of which length.
    """

    name: str
    stage: Stage
    priority: int
    call: Call
    interval_s: float = 0.0
    hold_last: bool = False
    requires_prediction: bool = False
    needs: frozenset[str] = frozenset()
    window_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Breaker:
    """After so many failures in a row a plugin is left alone for so long; one more failure then, and again."""

    failures: int = 5
    cooldown_s: float = 30.0


@dataclass(slots=True)
class Registered:
    """A plugin and what is remembered of it. `anchor`: of its last answer, or of its registration."""

    plugin: Plugin
    anchor: float
    held: Opinion | None = None
    failed: int = 0
    opened_at: float | None = None

    def due(self, now: float) -> bool:
        """Its interval has passed. A plugin that was left alone long enough is tried once."""
        return self.plugin.interval_s <= 0 or now - self.anchor >= self.plugin.interval_s

    def closed(self, now: float, breaker: Breaker) -> bool:
        return self.opened_at is None or now - self.opened_at >= breaker.cooldown_s

    def answered(self, now: float, answer: Answer) -> None:
        """Only targets are remembered; a later answer without any leaves them."""
        self.anchor, self.failed, self.opened_at = now, 0, None
        if isinstance(answer, Opinion) and answer.targets:
            self.held = answer

    def fail(self, now: float, breaker: Breaker) -> None:
        self.failed += 1
        if self.opened_at is not None or self.failed >= breaker.failures:
            self.opened_at, self.held = now, None


@dataclass(slots=True)
class Registry:
    """In the order of registration, which decides between equal priorities."""

    plugins: list[Registered] = field(default_factory=list)
    breaker: Breaker = Breaker()

    def register(self, plugin: Plugin, now: float = 0.0) -> None:
        self.plugins.append(Registered(plugin, now))

    def anchor(self, names: Iterable[str], now: float) -> None:
        """Count intervals from `now` on."""
        for known in self.plugins:
            if known.plugin.name in set(names):
                known.anchor = now

    def due(self, stage: Stage, now: float) -> list[Registered]:
        """Those that would be asked, whatever they require."""
        return [p for p in self._of(stage) if p.closed(now, self.breaker) and p.due(now)]

    def _of(self, stage: Stage) -> list[Registered]:
        return [known for known in self.plugins if known.plugin.stage is stage]

    def ask(self, stage: Stage, context: Context) -> list[tuple[Plugin, Answer, bool]]:
        """Every plugin of a stage with an opinion or asked for one: itself, its answer, and whether it was asked."""
        found: list[tuple[Plugin, Answer, bool]] = []
        for known in self._of(stage):
            plugin = known.plugin
            if not known.closed(context.now, self.breaker):
                continue
            if known.due(context.now):
                if not plugin.requires_prediction or context.prediction is not None:
                    found.append((plugin, self.call(known, context), True))
            elif plugin.hold_last and known.held is not None:
                found.append((plugin, replace(known.held, final=False, priority=plugin.priority), False))
        return found

    def call(self, known: Registered, context: Context) -> Answer:
        """Its answer; a failure is none, and is counted."""
        try:
            answer = known.plugin.call(context)
        except FAILURES:
            known.fail(context.now, self.breaker)
            return None
        known.answered(context.now, answer)
        return answer
