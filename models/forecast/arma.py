"""The exact forecast of an ARIMA whose parameters are known: a Kalman filter, one step a value."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headrace.models.forecast.pack import Floats

MOST_DIFFERENCES = 2


@dataclass(frozen=True, slots=True)
class Parameters:
    """w_t = constant + Σ phi_i w_(t-i) + e_t + Σ theta_j e_(t-j), where w is the series differenced `d` times."""

    d: int
    phi: tuple[float, ...]
    theta: tuple[float, ...]
    constant: float


class Arma:
    """State space of Harvey (1989, 3.3), started in its stationary distribution; the noise variance cancels.

    Raises numpy's LinAlgError where the autoregression is not stationary: there is no such distribution then.
    """

    def __init__(self, parameters: Parameters) -> None:
        phi, theta = parameters.phi, parameters.theta
        size = max(len(phi), len(theta) + 1)
        self._move = np.eye(size, k=1)
        self._move[: len(phi), 0] = phi
        if phi and np.abs(np.linalg.eigvals(self._move)).max() >= 1:
            raise np.linalg.LinAlgError(f"the autoregression {phi} is not stationary")
        noise = np.zeros(size)
        noise[0], noise[1 : len(theta) + 1] = 1.0, theta
        self._noise = np.outer(noise, noise)
        self._constant = np.zeros(size)
        self._constant[0] = parameters.constant
        self.state: Floats = np.asarray(np.linalg.solve(np.eye(size) - self._move, self._constant), dtype=np.float64)
        kronecker = np.eye(size * size) - np.kron(self._move, self._move)
        variance = np.linalg.solve(kronecker, self._noise.ravel()).reshape(size, size)
        self.variance: Floats = np.asarray(variance, dtype=np.float64)

    def observe(self, value: float) -> None:
        gain = self.variance[:, 0] / self.variance[0, 0]
        seen = self.state + gain * (value - self.state[0])
        variance = self.variance - np.outer(gain, self.variance[0])
        self.state = self._move @ seen + self._constant
        variance = self._move @ variance @ self._move.T + self._noise
        self.variance = (variance + variance.T) / 2

    def forecast(self, steps: int) -> list[float]:
        """The next `steps` values."""
        state, path = self.state, []
        for _ in range(steps):
            path.append(float(state[0]))
            state = self._move @ state + self._constant
        return path


def differenced(values: Sequence[float], d: int) -> Floats:
    """The series differenced `d` times, that many values shorter."""
    return np.diff(np.array(values, dtype=np.float64), n=d)


def summed(path: Sequence[float], tail: Sequence[float], d: int) -> list[float]:
    """Forecasts of the series from those of its `d`-th difference; `tail` is its last `d` values, newest last.

    >>> summed([1.0, 1.0], [2.0, 5.0], 2)
    [9.0, 14.0]
    """
    result = np.array(path, dtype=np.float64)
    for level in range(d - 1, -1, -1):
        result = differenced(tail, level)[-1] + np.cumsum(result)
    return [float(v) for v in result]
