"""Arrays of numbers as short strings: a state is written with every tick, and decimal digits are twice as long."""

import base64
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def pack(values: Iterable[float] | Floats) -> str:
    """Little-endian doubles in base64; exact."""
    array = values if isinstance(values, np.ndarray) else np.fromiter(values, dtype=np.float64)
    return base64.b64encode(array.astype("<f8").tobytes()).decode("ascii")


def unpack(text: str, shape: tuple[int, ...] = (-1,)) -> Floats:
    """What `pack` was given. Raises ValueError (or TypeError) where `text` is not of it, or not of that shape."""
    return np.frombuffer(base64.b64decode(text, validate=True), dtype="<f8").astype(np.float64).reshape(shape)


def pack_short(values: Floats) -> str:
    """Singles in base64: exact for numbers that :func:`rounded` has seen."""
    return base64.b64encode(values.astype("<f4").tobytes()).decode("ascii")


def unpack_short(text: str) -> Floats:
    """What `pack_short` was given. Raises ValueError or TypeError."""
    return np.frombuffer(base64.b64decode(text, validate=True), dtype="<f4").astype(np.float64)


def rounded(value: float) -> float:
    """To single precision: 7 digits."""
    return float(np.float32(value))
