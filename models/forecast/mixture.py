"""Weights of several forecasts by how good each has been lately, with the last value as the safe default."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.models.forecast.pack import Floats, pack, unpack

KEEP = 0.995  # of a gain, with each new value: about the last 200 count
RATE = 0.5  # of the weights inside the mixture, per typical step of the series
TRUST_RATE = 2.0  # of the mixture against the last value
TRUST = 0.02  # in the mixture before anything is known
DOUBT = 0.25  # with less trust than this the forecast is the last value
LARGEST_GAIN = 3.0  # typical steps that one value may prove
MOST_TRUST = 16.0  # log odds: a mixture that turns bad is left within a few values
SCALE_WEIGHT = 0.05  # of a new step in the typical one


@dataclass(slots=True)
class Mixture:
    """For one horizon. Gains are how much smaller an absolute error was than that of the last value, in typical steps.

    Two layers. Inside, exponential weights (Freund and Schapire 1997) over discounted gains G:

        w_k ~ exp(RATE G_k)

    Outside, the mixture A against the last value B as in (A,B)-Prod (Sani, Neu and Lazaric 2014), which keeps the
    regret to B constant while A may win much. With the gain G of A itself,

        odds = TRUST / (1 - TRUST) exp(TRUST_RATE G)        share of A = (odds / (1 + odds) - DOUBT)+ / (1 - DOUBT)

    so that the forecast *is* the last value until the mixture has been better by more than luck.
    """

    gains: Floats  # one a member
    gain: float = 0.0  # of the mixture
    scale: float = 0.0  # typical change of the series over the horizon; 0: none yet

    def weights(self) -> Floats:
        """Of the members inside the mixture; sum 1."""
        powers = np.exp(RATE * (self.gains - self.gains.max()))
        result: Floats = powers / powers.sum()
        return result

    def trust(self) -> float:
        """The mixture's share of the forecast, 0..1; the rest is the last value's."""
        odds = TRUST / (1 - TRUST) * np.exp(TRUST_RATE * self.gain)
        return max(0.0, float(odds / (1 + odds)) - DOUBT) / (1 - DOUBT)

    def learn(self, value: float, base: float, forecasts: Floats, mixed: float) -> None:
        """What came, and what was foretold for it: the last value then, the members, the mixture."""
        step = float(abs(value - base))
        self.scale = step if self.scale == 0 else self.scale + SCALE_WEIGHT * (step - self.scale)
        if self.scale < 1e-300:  # nothing has ever changed
            return
        self.gains = KEEP * self.gains + self._gain(step, np.abs(forecasts - value))
        self.gain = KEEP * self.gain + float(self._gain(step, np.array(abs(mixed - value))))
        most = MOST_TRUST / TRUST_RATE
        self.gain = min(max(self.gain, -most), most)

    def _gain(self, step: float, errors: Floats) -> Floats:
        result: Floats = np.clip((step - errors) / self.scale, -LARGEST_GAIN, LARGEST_GAIN)
        return result

    def to_state(self) -> dict[str, Any]:
        return {"gains": pack(self.gains), "gain": self.gain, "scale": self.scale}

    @classmethod
    def from_state(cls, state: dict[str, Any], members: int) -> "Mixture":
        """Raises KeyError, TypeError or ValueError where `state` is not one of `to_state`."""
        return cls(unpack(state["gains"], (members,)), float(state["gain"]), float(state["scale"]))
