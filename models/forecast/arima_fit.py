"""The slow half of `arima`: pmdarima chooses an order, or goes on fitting the parameters of one."""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.models.forecast.fitting import FitResult
from headrace.models.forecast.pack import Floats

KIND = "arima"
UNFIT = (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError)  # what its libraries throw at odd series
LOG_POINT = 100.0  # where raw values are compressed, their mean is as if it were this many


@dataclass(frozen=True, slots=True)
class Order:
    """What was selected: (p, d, q), with a constant or not, on which scale."""

    p: int
    d: int
    q: int
    constant: bool
    log_unit: float | None = None  # the model sees log(1 + value / log_unit) / unit; None: value / unit
    unit: float = 1.0

    def seen(self, values: Floats) -> Floats:
        """Values as the model sees them."""
        logged = values if self.log_unit is None else np.log1p(values / self.log_unit)
        result: Floats = logged / self.unit
        return result


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
