"""Fits that other processes can run, some of which go wrong; a module of its own so that they can be sent there."""

import os
import time
from dataclasses import dataclass

from headrace.models.forecast.fitting import FitResult


@dataclass(frozen=True, slots=True)
class Job:
    """Ends with its own number, after `seconds`; or in an `error`, or with its worker (`dies`)."""

    at: int
    kind: str = "arima"
    seconds: float = 0.0
    error: str = ""
    dies: bool = False

    @property
    def newest(self) -> float:
        return float(self.at)

    def run(self) -> FitResult:
        time.sleep(self.seconds)
        if self.dies:
            os._exit(3)
        if self.error:
            raise RuntimeError(self.error)
        return FitResult(self.kind, self.at, self.newest, {"pid": os.getpid()})
