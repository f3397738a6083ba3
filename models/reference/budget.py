"""GPU budgets, as the reference shares them: in proportion, prefill first."""

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Band:
    """GPUs, and the least replicas of a role. A negative bound is none."""

    min_gpus: int = -1
    max_gpus: int = -1
    min_endpoint: int = 1

    @property
    def bounded(self) -> bool:
        return self.min_gpus >= 0 or self.max_gpus >= 0

    @property
    def both(self) -> bool:
        return self.min_gpus >= 0 and self.max_gpus >= 0

    def holds(self, total: int, tolerance: int = 0) -> bool:
        """Is a total within it? Only the floor may be missed, by the tolerance."""
        if 0 <= self.max_gpus < total:
            return False
        return not self.min_gpus >= 0 or total >= self.min_gpus - tolerance


def tolerance(gpus: Iterable[int]) -> int:
    """The GPUs by which a floor may be missed: those of the largest replica."""
    return max((g for g in gpus if g > 0), default=0)


def clamp_single(replicas: int, gpus: int, band: Band) -> int:
    if not band.bounded or gpus <= 0 or band.holds(replicas * gpus, gpus if band.both else 0):
        return replicas
    if 0 <= band.max_gpus < replicas * gpus:
        return 0 if band.max_gpus < band.min_endpoint * gpus else max(band.min_endpoint, band.max_gpus // gpus)
    return max(band.min_endpoint, math.ceil(band.min_gpus / gpus))


def clamp_pair(ask: tuple[int, int], gpus: tuple[int, int], band: Band) -> tuple[int, int]:
    """Prefill and decode together. Decode gets what rounding prefill leaves, be it more or less than it asked for."""
    p, d = ask
    total = p * gpus[0] + d * gpus[1]
    if not band.bounded or min(gpus) <= 0 or band.holds(total, max(gpus) if band.both else 0):
        return ask
    if 0 <= band.max_gpus < total:
        return _below(ask, gpus, band, band.max_gpus / total)
    return _above(ask, gpus, band, total)


def _below(ask: tuple[int, int], gpus: tuple[int, int], band: Band, scale: float) -> tuple[int, int]:
    least, most = band.min_endpoint, band.max_gpus
    if most < least * sum(gpus):
        return 0, 0
    p = max(least, min((most - least * gpus[1]) // gpus[0], math.floor(ask[0] * scale)))
    return p, max(least, (most - p * gpus[0]) // gpus[1])


def _above(ask: tuple[int, int], gpus: tuple[int, int], band: Band, total: int) -> tuple[int, int]:
    least, floor = band.min_endpoint, band.min_gpus
    wanted = math.ceil(floor / 2 / gpus[0]) if total <= 0 else math.ceil(ask[0] * (floor / total))
    p = max(least, wanted)
    d = max(least, math.ceil(max(0, floor - p * gpus[0]) / gpus[1]))
    return ask if 0 <= band.max_gpus < p * gpus[0] + d * gpus[1] else (p, d)
