"""Several forecasters at once, combined by how good each has been lately, with the last value as the yardstick."""

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from headrace.models.forecast.base import Forecaster, History, ahead, damaged
from headrace.models.forecast.extras import has
from headrace.models.forecast.fitting import FitJob, FitResult
from headrace.models.forecast.horizons import HORIZONS, between
from headrace.models.forecast.mixture import Mixture
from headrace.models.forecast.pack import Floats, pack, unpack
from headrace.models.forecast.seasonal import Seasonal
from headrace.models.forecast.smooth import Smooth
from headrace.models.forecast.spread import Spread
from headrace.schemas.errors import ConfigError

WEIGHTS = (0.1, 0.2, 0.35, 0.5, 0.85)  # of the exponential means
LIBRARIES = {"kalman": "filterpy", "arima": "pmdarima", "prophet": "prophet"}
MEMBERS = ("smooth", "seasonal", *LIBRARIES)
FITTED_FROM = 48  # values; until then `arima` and `prophet` say the last value: their fits cost more than they tell
REFIT_EVERY = 32  # values: prophet, and arima's parameters
GROWTH = 2.0  # times as many values: arima's order


class Auto:
    """Every member forecasts each window 1, 4 and 16 windows ahead; what comes then says what each is worth.

    Members are the last value, exponential means, `seasonal`, and whichever of `kalman`, `arima`, `prophet` is
    installed; `members` names others (of MEMBERS). For each horizon a :class:`Mixture` weighs them: the forecast is the
    last value until a mixture of the others has been better. Between horizons the weights are interpolated.
    `quantiles` come from the last 200 errors of `auto` itself.

    Raises ConfigError for an unknown member, or one whose extra is missing.

    >>> auto = Auto(members=("smooth", "seasonal"))
    >>> for window in range(24 * 14):
    ...     auto.observe(100.0 + 50.0 * (window % 24 in (9, 10, 11)))
    >>> [round(auto.forecast(steps), -1) for steps in (1, 10, 13)]
    [100.0, 150.0, 100.0]
    """

    def __init__(
        self,
        *,
        members: Sequence[str] | None = None,
        log1p: bool = False,
        interval_s: float = 180.0,
        window: int = 50,
        **kalman: Any,
    ) -> None:
        if members is None:
            members = [m for m in MEMBERS if m not in LIBRARIES or has(LIBRARIES[m])]
        self._members: dict[str, Forecaster] = {}
        for name in members:
            self._members |= _members(name, log1p, interval_s, window, kalman)
        self._history = History()
        self._mixtures = tuple(Mixture(np.zeros(1 + len(self._members))) for _ in HORIZONS)
        self._spread = Spread()
        # For each horizon what has not come yet, oldest first: last value, members, mixture, forecast.
        self._waiting: tuple[deque[Floats], ...] = tuple(deque(maxlen=h) for h in HORIZONS)
        self._inline = True

    @property
    def inline(self) -> bool:
        return self._inline

    @inline.setter
    def inline(self, inline: bool) -> None:
        self._inline = inline
        for member in self._members.values():
            member.inline = inline

    def observe(self, value: float) -> None:
        learned = self._history.largest
        if not self._history.add(value):
            return
        for row, waiting in enumerate(self._waiting):
            if len(waiting) == HORIZONS[row]:
                foretold = waiting[0]
                self._mixtures[row].learn(value, foretold[0], foretold[:-2], foretold[-2])
                self._spread.learn(row, value, foretold[-1], learned)
        for member in self._members.values():
            member.observe(value)
        for row, horizon in enumerate(HORIZONS):
            forecasts = self._forecasts(horizon)
            mixed = float(self._mixtures[row].weights() @ forecasts)
            trust = self._mixtures[row].trust()
            foretold = np.array([*forecasts, mixed, trust * mixed + (1 - trust) * value])
            self._waiting[row].append(foretold)

    def _forecasts(self, steps: int) -> Floats:
        """The last value's and each member's."""
        last = self._history.last or 0.0
        found = (member.forecast(steps) for member in self._members.values())
        return np.array([last, *(last if f is None else f for f in found)])

    def shares(self, steps: int = 1) -> dict[str, float]:
        """How much each member has in a forecast; sum 1. "constant" is the last value."""
        total = np.zeros(1 + len(self._members))
        for row, share in between(ahead(steps)):
            trust = self._mixtures[row].trust()
            weights = trust * self._mixtures[row].weights()
            weights[0] += 1 - trust
            total += share * weights
        return {name: float(w) for name, w in zip(("constant", *self._members), total, strict=True)}

    def forecast(self, steps: int = 1) -> float | None:
        shares = self.shares(steps)
        if self._history.points == 0:
            return self._history.last
        return self._history.bound(float(np.array(list(shares.values())) @ self._forecasts(steps)))

    def quantiles(self, levels: Sequence[float], steps: int = 1) -> tuple[float, ...] | None:
        """What the value `steps` ahead stays below with the probabilities `levels`; None before errors are known."""
        forecast = self.forecast(steps)
        if forecast is None:
            return None
        found = self._spread.quantiles(levels, steps, forecast, self._history.largest)
        return None if found is None else tuple(self._history.bound(q) for q in found)

    def rearm(self) -> None:
        self._history.idle = True
        for member in self._members.values():
            member.rearm()

    def fit_jobs(self) -> tuple[FitJob, ...]:
        return tuple(job for member in self._members.values() for job in member.fit_jobs())

    def take_fit(self, result: FitResult) -> bool:
        member = self._members.get(result.kind)
        return member is not None and member.take_fit(result)

    def to_state(self) -> dict[str, Any]:
        return {
            "history": self._history.to_state(),
            "members": {name: member.to_state() for name, member in self._members.items()},
            "mixtures": [mixture.to_state() for mixture in self._mixtures],
            "spread": self._spread.to_state(),
            "waiting": [pack(np.array(rows, dtype=np.float64)) for rows in self._waiting],
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """As for every forecaster; a state of other members is refused too."""
        width = 3 + len(self._members)
        try:
            if list(state["members"]) != list(self._members):
                raise ValueError(f"members are {list(self._members)}, not {list(state['members'])}")
            history = History.from_state(state["history"])
            learned = zip(HORIZONS, state["mixtures"], strict=True)
            mixtures = tuple(Mixture.from_state(mixture, width - 2) for _, mixture in learned)
            spread = Spread.from_state(state["spread"])
            rows = [unpack(text, (-1, width)) for text in state["waiting"]]
            waiting = tuple(deque(found, maxlen=h) for found, h in zip(rows, HORIZONS, strict=True))
        except (AttributeError, KeyError, TypeError, ValueError) as e:
            raise damaged("auto", e) from e
        before = {name: member.to_state() for name, member in self._members.items()}
        try:
            self._load_members(state["members"])
        except Exception:
            self._load_members(before)  # all or nothing
            raise
        self._history, self._mixtures, self._spread, self._waiting = history, mixtures, spread, waiting

    def _load_members(self, states: dict[str, Any]) -> None:
        for name, member in self._members.items():
            member.load_state(states[name])


def _members(name: str, log1p: bool, interval_s: float, window: int, kalman: dict[str, Any]) -> dict[str, Forecaster]:
    """The forecasters behind one name of MEMBERS."""
    match name:
        case "smooth":
            return {f"smooth {w:g}": Smooth(weight=w, log1p=log1p) for w in WEIGHTS}
        case "seasonal":
            return {name: Seasonal(log1p=log1p)}
        case "kalman":
            from headrace.models.forecast.kalman import Kalman

            return {name: Kalman(log1p=log1p, **kalman)}
        case "arima":
            from headrace.models.forecast.arima import Arima

            return {name: Arima(log1p=log1p, min_points=FITTED_FROM, growth=GROWTH, update_every=REFIT_EVERY)}
        case "prophet":
            from headrace.models.forecast.prophet import Prophet

            window = max(window, FITTED_FROM)
            prophet = Prophet(
                log1p=log1p, min_points=FITTED_FROM, window=window, interval_s=interval_s, refit_every=REFIT_EVERY
            )
            return {name: prophet}
    raise ConfigError(f"member {name!r} of 'auto' is unknown: use {', '.join(MEMBERS)}")
