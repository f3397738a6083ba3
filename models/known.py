"""What is known and what is not, as values: unknown is never 0 and never NaN."""

import math
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Known(Generic[T]):
    """A value that was measured."""

    value: T


@dataclass(frozen=True, slots=True)
class Unknown:
    """No value, and why there is none: missing, not a number, unreadable."""

    why: str


Measure: TypeAlias = Known[float] | Unknown


def measure(value: float | None, why: str = "missing") -> Measure:
    """Name a number once, where it comes in: None is Unknown(`why`), NaN and infinities are Unknown("`why`: nan").

    >>> measure(0.0), measure(None, "no scrape"), measure(float("nan"), "kv_hit_rate")
    (Known(value=0.0), Unknown(why='no scrape'), Unknown(why='kv_hit_rate: nan'))
    """
    if value is None:
        return Unknown(why)
    number = float(value)
    return Known(number) if math.isfinite(number) else Unknown(f"{why}: {number}")
