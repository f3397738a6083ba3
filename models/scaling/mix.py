"""How unequal prompts are, and what that does to the time that they take: E[S], E[S^2] and who is out of reach.

The time of a prompt is not proportional to its length (an iteration has a fixed cost, large ones cost more a token, and
one beyond the engine's budget of tokens is cut into chunks), so the mean time is not the time of the mean: both moments
are sums over the measured lengths. A queue needs exactly these two (Pollaczek 1930, Khinchine 1932; Kingman 1962).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

GUESSED = 16  # prompts that stand for lengths that nobody has measured


@dataclass(frozen=True, slots=True)
class Mix:
    """Prompt lengths as multiples of their mean, and the share of prompts of each: both sum up to a mean of 1."""

    multiples: tuple[float, ...] = (1.0,)
    shares: tuple[float, ...] = (1.0,)

    @classmethod
    def of(cls, lengths: Sequence[float], counts: Sequence[float]) -> "Mix":
        """The mix of `counts` prompts of `lengths` tokens; even where there are none, or they have no length."""
        total = math.fsum(counts)
        tokens = math.fsum(n * x for n, x in zip(counts, lengths, strict=True))
        if total <= 0 or tokens <= 0:
            return cls()
        mean = tokens / total
        return cls(tuple(x / mean for x in lengths), tuple(n / total for n in counts))

    @property
    def cv2(self) -> float:
        """Squared coefficient of variation of the lengths."""
        return max(0.0, math.fsum(p * m * m for m, p in zip(self.multiples, self.shares, strict=True)) - 1.0)


def exponential(parts: int = GUESSED) -> Mix:
    """Exponential lengths, as means of `parts` equally likely ranges: what is assumed where nobody has measured.

    The last range, above its lower quantile x, has the mean x + 1.
    """
    # The integral of x e^-x above x is (x + 1) e^-x, and e^-x is the probability above.
    above = [1.0 - i / parts for i in range(parts + 1)]
    tails = [p * (1.0 - math.log(p)) if p > 0 else 0.0 for p in above]
    multiples = [(a - b) * parts for a, b in pairwise(tails)]
    return Mix(tuple(multiples), (1.0 / parts,) * parts)


UNKNOWN = exponential()


@dataclass(frozen=True, slots=True)
class Service:
    """The time that prompts take on an idle engine: seconds of each part of the mix, and its share."""

    seconds: tuple[float, ...]
    shares: tuple[float, ...]
    mean_s: float
    cv2: float  # squared coefficient of variation of the time

    @classmethod
    def of(cls, mix: Mix, mean_tokens: float, time_s: Callable[[float], float]) -> "Service":
        """Of prompts with `mean_tokens` to compute on average; `time_s` is the time of a prompt of so many."""
        seconds = tuple(time_s(mean_tokens * m) for m in mix.multiples)
        mean_s = math.fsum(p * s for s, p in zip(seconds, mix.shares, strict=True))
        squares = math.fsum(p * s * s for s, p in zip(seconds, mix.shares, strict=True))
        return cls(seconds, mix.shares, mean_s, max(0.0, squares / mean_s**2 - 1.0) if mean_s > 0 else 0.0)

    def out_of_reach(self, target_s: float) -> float:
        """The share of prompts that take longer than `target_s` when they wait for nothing: no fleet saves them."""
        return min(1.0, math.fsum(p for s, p in zip(self.seconds, self.shares, strict=True) if s > target_s))

    def late(self, target_s: float, waits_longer: Callable[[float], float]) -> float:
        """Of the prompts within reach of `target_s`, the share that is late; 1 where there are none.

        `waits_longer` is the share of prompts that wait longer than so many seconds: a long prompt has less to spare,
        and P(W + S > T) is the mean of P(W > T - s) over the times s.
        """
        near = [(target_s - s, p) for s, p in zip(self.seconds, self.shares, strict=True) if s <= target_s]
        saved = math.fsum(p for _, p in near)
        return math.fsum(p * waits_longer(slack) for slack, p in near) / saved if saved > 0 else 1.0


def chunked(tokens: float, most: int, time_s: Callable[[float], float]) -> float:
    """Seconds of a prompt of `tokens` in iterations of at most `most`, the last one smaller; `time_s` is of one."""
    full, tail = divmod(max(0.0, tokens), max(1, most))
    whole = full * time_s(float(max(1, most))) if full else 0.0
    return whole + time_s(tail) if tail or not full else whole
