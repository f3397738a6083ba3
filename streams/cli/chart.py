"""Curves in a terminal, drawn with the dots of braille characters: two by four a character."""

from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 56, 8  # characters
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # bit of the dot in row, column
_BLANK = 0x2800

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Axis:
    """What an axis shows, in which unit."""

    name: str
    low: float
    high: float

    @classmethod
    def of(cls, name: str, values: Sequence[float], *, from_zero: bool = False) -> "Axis":
        """From the least (or 0) to the most of the values, of which there is at least one."""
        return cls(name, 0.0 if from_zero else min(values), max(values))

    def at(self, value: float, steps: int) -> int:
        """Which of so many steps a value falls on; the ends for values beyond them."""
        share = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.0
        return min(steps - 1, max(0, round(share * (steps - 1))))


def draw(points: Sequence[Point], x: Axis, y: Axis, width: int = WIDTH, height: int = HEIGHT) -> list[str]:
    """The points as lines of text, with the ends of both axes beside them.

    >>> print("\\n".join(draw([(0, 0), (1, 1)], Axis("x", 0, 1), Axis("y", 0, 1), 4, 1)))
    1 y │⡀  ⠈
      0 └────
         0 x 1
    """
    canvas = [[_BLANK] * width for _ in range(height)]
    for px, py in points:
        column, row = x.at(px, 2 * width), 4 * height - 1 - y.at(py, 4 * height)
        canvas[row // 4][column // 2] |= _DOTS[row % 4][column % 2]
    left = [f"{y.high:.4g} {y.name}", *[""] * (height - 1), f"{y.low:.4g}"]
    margin = max(len(text) for text in left)
    body = ["".join(" " if c == _BLANK else chr(c) for c in line).rstrip() for line in canvas]
    lines = [f"{text:>{margin}} │{line}" for text, line in zip(left, body, strict=False)]
    lines.append(f"{left[-1]:>{margin}} └{'─' * width}")
    first, last = f"{x.low:.6g} {x.name}", f"{x.high:.6g}"
    lines.append(" " * (margin + 2) + first + last.rjust(max(len(last) + 1, width - len(first))))
    return lines
