"""The slow half of `arima`: pmdarima chooses an order, or goes on fitting the parameters of one."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from msgspec import Meta

from headrace.models.forecast.arma import MOST_DIFFERENCES
from headrace.models.forecast.base import MOST
from headrace.models.forecast.fitting import FitResult, finite, found, unusable
from headrace.models.forecast.pack import Floats

KIND = "arima"
UNFIT = (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError)  # what its libraries throw at odd series
MOST_TERMS = 16  # of the autoregression or of the moving average; their filter grows with the square
LOG_POINT = 100.0  # where raw values are compressed, their mean is as if it were this many


@dataclass(frozen=True, slots=True)
class Order:
    """What was selected: (p, d, q), with a constant or not, on which scale."""

    p: Annotated[int, Meta(ge=0, le=MOST_TERMS)]
    d: Annotated[int, Meta(ge=0, le=MOST_DIFFERENCES)]
    q: Annotated[int, Meta(ge=0, le=MOST_TERMS)]
    constant: bool
    log_unit: Annotated[float, Meta(gt=0)] | None = None  # it sees log(1 + value / log_unit) / unit; None: value / unit
    unit: Annotated[float, Meta(gt=0)] = 1.0

    def seen(self, values: Floats) -> Floats:
        """Values as the model sees them."""
        logged = values if self.log_unit is None else np.log1p(values / self.log_unit)
        result: Floats = logged / self.unit
        return result


@dataclass(frozen=True, slots=True)
class Fitted:
    """What a fit found. `params`: constant, phi, theta, variance of the noise."""

    order: Order
    params: tuple[float, ...]

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Fitted":
        """From the values of a result. Raises RecordError where they are not those of a fit."""
        fitted = found(KIND, values, cls)
        order, params = fitted.order, fitted.params
        if len(params) != order.constant + order.p + order.q + 1:
            raise unusable(KIND, f"{len(params)} parameters are not those of order {order.p, order.d, order.q}")
        if not finite((*params, order.unit, order.log_unit or 1.0)) or any(abs(v) > MOST for v in params):
            raise unusable(KIND, "a parameter is not finite")
        return fitted


@dataclass(frozen=True, slots=True)
class ArimaFit:
    """One fit. Without `order` one is selected (auto_arima: AIC, stepwise); with `params` it goes on from them.

    Where raw values give an order with p = q = 0, so that no value would be predicted from the ones before, one is
    selected on the logarithmic scale instead (dynamo#5545).
    """

    at: int
    values: tuple[float, ...]
    log1p: bool
    normalise: bool
    order: Order | None = None
    params: tuple[float, ...] | None = None
    new: int = 0  # of the values, those that came after `params` were fitted

    @property
    def kind(self) -> str:
        return KIND

    @property
    def newest(self) -> float:
        return self.values[-1]

    def run(self) -> FitResult:
        """Raises ImportError where pmdarima is not installed; a series that it cannot fit is a failure."""
        from threadpoolctl import threadpool_limits  # comes with pmdarima

        with warnings.catch_warnings(), threadpool_limits(1):  # matrices of 5 x 5: threads only burn cores
            warnings.simplefilter("ignore")
            try:
                order, params = self._selected() if self.order is None else self._fitted(self.order)
            except UNFIT as e:
                return FitResult(KIND, self.at, self.values[-1], None, f"{type(e).__name__}: {e}")
        if not np.isfinite(params).all():
            return FitResult(KIND, self.at, self.values[-1], None, f"parameters {params} are not finite")
        return FitResult(KIND, self.at, self.values[-1], {"order": _plain(order), "params": params})

    def _selected(self) -> tuple[Order, list[float]]:
        raw = np.array(self.values)
        if not self.log1p:
            order, params = self._best(raw, None)
            if order.p or order.q:
                return order, params
            try:
                return self._best(raw, float(raw.mean()) / LOG_POINT if self.normalise else 1.0)
            except UNFIT:
                return order, params  # then the raw one stays
        return self._best(raw, 1.0)

    def _best(self, raw: Floats, log_unit: float | None) -> tuple[Order, list[float]]:
        from pmdarima import auto_arima  # 2 s: only where fits are made

        seen = Order(0, 0, 0, False, log_unit).seen(raw)
        unit = (float(np.abs(seen).mean()) or 1.0) if self.normalise else 1.0
        model = auto_arima(seen / unit, suppress_warnings=True, error_action="ignore")
        p, d, q = (int(n) for n in model.order)
        return Order(p, d, q, bool(model.with_intercept), log_unit, unit), [float(v) for v in model.params()]

    def _fitted(self, order: Order) -> tuple[Order, list[float]]:
        from pmdarima import ARIMA

        model = ARIMA((order.p, order.d, order.q), with_intercept=order.constant, suppress_warnings=True)
        seen = order.seen(np.array(self.values))
        if self.params is None:
            model.fit(seen)
        else:
            model.fit(seen, start_params=np.array(self.params), maxiter=max(5, self.new // 10))
        return order, [float(v) for v in model.params()]


def _plain(order: Order) -> dict[str, Any]:
    return {name: getattr(order, name) for name in Order.__slots__}
