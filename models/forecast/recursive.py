"""Least squares that goes on: a line whose coefficients follow the data, pulled to zero where the data say little."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.models.forecast.pack import Floats, pack, unpack

FORGET = 0.998  # of what was learned, kept with each new row: about the last 500 rows count
PULL = 20.0  # rows of the typical size that say "zero" for every coefficient
FARTHEST = 1000.0  # typical sizes; a row further out says no more than that
SCALE_WEIGHT = 0.05  # of a new target in the typical size


@dataclass(slots=True)
class Line:
    """target = features · coefficients, by recursive least squares with forgetting, ridge, and the weights of a median.

    Minimises, with `s` the typical size of the targets, r the residual of each row before it was learned,

        Σ FORGET^age (target - features·c)² / (s max(s/2, |r|))  +  PULL c·c

    The weights approximate least absolute error (iterated reweighting, one step a row), so one burst does not bend the
    line; the ridge makes it begin at "nothing changes" and leave that only for a reason. The line scales with the data.
    """

    normal: Floats  # features x features
    right: Floats  # features
    scale: float = 0.0  # typical |target|; 0: none yet

    @classmethod
    def empty(cls, features: int) -> "Line":
        return cls(np.eye(features) * PULL, np.zeros(features))

    def predict(self, features: Floats) -> float:
        return float(features @ np.linalg.solve(self.normal, self.right))

    def learn(self, features: Floats, target: float) -> None:
        size = abs(target)
        self.scale = size if self.scale == 0 else self.scale + SCALE_WEIGHT * (size - self.scale)
        if self.scale < 1e-300:  # nothing has ever changed
            return
        residual = abs(target - self.predict(features)) / self.scale
        weight = 1.0 / max(0.5, residual)
        scaled = np.clip(features / self.scale, -FARTHEST, FARTHEST)
        self.normal *= FORGET
        self.normal += weight * np.outer(scaled, scaled)
        self.normal[np.diag_indices_from(self.normal)] += (1 - FORGET) * PULL
        self.right *= FORGET
        self.right += weight * scaled * min(max(target / self.scale, -FARTHEST), FARTHEST)

    def to_state(self) -> dict[str, Any]:
        return {"normal": pack(self.normal), "right": pack(self.right), "scale": self.scale}

    @classmethod
    def from_state(cls, state: dict[str, Any], features: int) -> "Line":
        """Raises KeyError, TypeError or ValueError where `state` is not one of `to_state`."""
        return cls(
            unpack(state["normal"], (features, features)), unpack(state["right"], (features,)), float(state["scale"])
        )
