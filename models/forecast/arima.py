"""ARIMA, its order selected anew as history grows. Needs pmdarima where fits are made."""

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from headrace.models.forecast.arima_fit import KIND, ArimaFit, Fitted, Order
from headrace.models.forecast.arma import Arma, Parameters, differenced, summed
from headrace.models.forecast.base import History, ahead, damaged, exp1m
from headrace.models.forecast.extras import need
from headrace.models.forecast.fitting import FitJob, FitResult
from headrace.models.forecast.pack import pack, unpack
from headrace.schemas.errors import ConfigError

RETRY = 8  # an eighth as many values more, and an order that could not be selected is tried for again


class Arima:
    """ARIMA(p, d, q), exact forecasts by a Kalman filter, parameters by maximum likelihood.

    The order is selected at `min_points` values, then whenever there are `growth` times as many as at the last time, at
    latest after `max_history` new ones; with `reselect=False` never again, as in the reference. In between, the
    parameters are fitted on after every `update_every` values. Only the last `max_history` values are kept and fitted.
    Where all of them are equal, that value is the forecast; until a first fit there is, the last one.
    `normalise` divides by the mean before a fit, so that units do not matter; `order` fixes (p, d, q).

    Raises ConfigError where pmdarima is not installed or an option is out of range.

    >>> arima = Arima()
    >>> for value in [10, 12, 11, 13, 12, 14, 13, 15, 14, 16]:
    ...     arima.observe(value)
    >>> 14 < arima.forecast() < 18
    True
    """

    def __init__(
        self,
        *,
        log1p: bool = False,
        min_points: int = 5,
        max_history: int = 256,
        growth: float = 1.5,
        update_every: int = 1,
        reselect: bool = True,
        normalise: bool = True,
        order: Order | None = None,
    ) -> None:
        need("pmdarima", KIND)
        if min_points < 5:
            raise ConfigError(f"min_points ({min_points}) must be at least 5 for 'arima': fewer values have no order")
        if max_history < min_points or growth <= 1 or update_every < 1:
            raise ConfigError(
                f"arima needs max_history ({max_history}) >= min_points ({min_points}), growth ({growth}) above 1 and "
                f"update_every ({update_every}) >= 1"
            )
        self.inline = True
        self._log1p, self._min_points, self._normalise = log1p, min_points, normalise
        self._growth, self._update_every, self._reselect = growth, update_every, reselect
        self._fixed = order
        self._history = History()
        self._values: deque[float] = deque(maxlen=max_history)
        self._selected_at = 0  # points
        self._fitted_at = 0
        self._failed_at = 0  # an order could not be selected; 0: it could
        self._order: Order | None = None
        self._params: tuple[float, ...] = ()
        self._filter: Arma | None = None

    @property
    def order(self) -> Order | None:
        """What is in use; None before the first fit."""
        return self._order

    def observe(self, value: float) -> None:
        if not self._history.add(value):
            return
        self._values.append(float(value))
        if self._filter is not None and self._order is not None:
            tail = list(self._values)[-self._order.d - 1 :]
            self._filter.observe(float(differenced(self._seen(tail), self._order.d)[-1]))

    def _seen(self, values: Sequence[float]) -> list[float]:
        assert self._order is not None
        return [float(v) for v in self._order.seen(np.array(values))]

    def forecast(self, steps: int = 1) -> float | None:
        ahead(steps)
        history = self._history
        if history.points < self._min_points or self._flat():
            return history.last
        if self.inline:
            for job in self.fit_jobs():
                self.take_fit(job.run())
        if self._filter is None or self._order is None:
            return history.last
        order = self._order
        path = self._filter.forecast(steps)
        if order.d:
            path = summed(path, self._seen(list(self._values)[-order.d :]), order.d)
        value = path[-1] * order.unit
        if not np.isfinite(value):
            return history.last
        return history.bound(value if order.log_unit is None else order.log_unit * exp1m(value))

    def _flat(self) -> bool:
        return all(v == self._values[0] for v in self._values)

    def rearm(self) -> None:
        self._history.idle = True

    def fit_jobs(self) -> tuple[FitJob, ...]:
        points = self._history.points
        if points < self._min_points or self._flat():
            return ()
        if self._due_to_select(points):
            job = ArimaFit(points, tuple(self._values), self._log1p, self._normalise, self._fixed)
            return (job,)
        new = points - self._fitted_at
        if self._order is None or new < self._update_every:
            return ()
        return (
            ArimaFit(points, tuple(self._values), self._log1p, self._normalise, self._order, self._params or None, new),
        )

    def _due_to_select(self, points: int) -> bool:
        if self._failed_at and points < self._failed_at + max(self._update_every, self._failed_at // RETRY):
            return False
        if self._selected_at == 0:
            return True
        if not self._reselect:
            return False
        kept = self._values.maxlen or 0
        return points >= min(self._selected_at * self._growth, self._selected_at + kept)

    def take_fit(self, result: FitResult) -> bool:
        """Stale is what is not newer than the fit in use, or whose values are all gone. Raises RecordError."""
        behind = self._history.points - result.at
        if result.kind != KIND or result.at <= self._fitted_at or not 0 <= behind < len(self._values):
            return False
        if self._values[-1 - behind] != result.newest:
            return False
        fitted = None if result.values is None else Fitted.of(result.values)
        selected = self._due_to_select(result.at)
        self._fitted_at = result.at
        if selected and fitted is not None:
            self._selected_at, self._failed_at = result.at, 0
        elif selected:
            self._failed_at = result.at
        if fitted is not None:
            self._adopt(fitted.order, fitted.params)
        return True

    def _adopt(self, order: Order, params: tuple[float, ...]) -> None:
        filter_ = _filter_of(order, params)
        if filter_ is None:
            return
        self._order, self._params, self._filter = order, params, filter_
        for value in differenced(self._seen(self._values), order.d):
            filter_.observe(float(value))

    def to_state(self) -> dict[str, Any]:
        fitted = self._filter is not None and self._order is not None
        return {
            "history": self._history.to_state(),
            "log1p": self._log1p,
            "values": pack(self._values),
            "selected_at": self._selected_at,
            "fitted_at": self._fitted_at,
            "failed_at": self._failed_at,
            "order": {n: getattr(self._order, n) for n in Order.__slots__} if fitted else None,
            "params": pack(self._params),
            "state": pack(self._filter.state) if self._filter else "",
            "variance": pack(self._filter.variance) if self._filter else "",
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """As for every forecaster; a state that was learned on the other scale (log1p) is refused too."""
        try:
            if state["log1p"] != self._log1p:
                raise ValueError(f"learned with log1p={state['log1p']}, but log1p={self._log1p} is configured")
            history, values = History.from_state(state["history"]), unpack(state["values"]).tolist()
            at = int(state["selected_at"]), int(state["fitted_at"]), int(state["failed_at"])
            order = None if state["order"] is None else Order(**state["order"])
            params = tuple(unpack(state["params"]).tolist())
            filter_ = None if order is None else _filter_of(order, params)
            if filter_ is not None:
                filter_.state = unpack(state["state"], filter_.state.shape)
                filter_.variance = unpack(state["variance"], filter_.variance.shape)
        except (KeyError, TypeError, ValueError) as e:
            raise damaged(KIND, e) from e
        self._history, self._values = history, deque(values, maxlen=self._values.maxlen)
        (self._selected_at, self._fitted_at, self._failed_at), self._order, self._params = at, order, params
        self._filter = filter_


def _filter_of(order: Order, params: Sequence[float]) -> Arma | None:
    """None where the autoregression is not stationary. `params`: constant, phi, theta, variance of the noise."""
    constant, rest = (params[0], params[1:]) if order.constant else (0.0, params)
    try:
        return Arma(Parameters(order.d, tuple(rest[: order.p]), tuple(rest[order.p : order.p + order.q]), constant))
    except np.linalg.LinAlgError:
        return None
