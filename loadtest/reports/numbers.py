"""Numbers as people read them: three digits that mean something, and one unit for a column."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

NONE: Final = "–"
"""What nothing was measured for."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How the numbers of a unit are written: times `factor`, with `suffix` behind the heading."""

    factor: float = 1.0
    suffix: str = ""


AS_IT_IS: Final = Scale()


def scale_of(unit: str, values: Iterable[float]) -> Scale:
    """The scale for numbers that stand together.

    unit: "s" for seconds, which are written in milliseconds where none reaches one; "ratio" for
    shares, written in percent; anything else is written as it is.
    """
    if unit == "s":
        largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
        return Scale(1e3, "ms") if 0 < largest < 1 else Scale(1.0, "s")
    if unit == "ratio":
        return Scale(100.0, "%")
    return Scale(suffix=unit)


def written(value: float | None, scale: Scale = AS_IT_IS, *, signed: bool = False) -> str:
    """A number with three digits or so; a real minus, and thousands set apart."""
    if value is None or math.isnan(value):
        return NONE
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    scaled = value * scale.factor
    whole = isinstance(value, int) and scale.factor == 1
    digits = 0 if whole else _decimals(scaled)
    text = f"{abs(scaled):,.{digits}f}"
    if scaled < 0 and text.strip("0.,"):
        return f"−{text}"
    return f"+{text}" if signed and text.strip("0.,") else text


def _decimals(value: float) -> int:
    """So many that three digits are seen, of small numbers at most four."""
    size = abs(value)
    if size == 0 or size >= 100:
        return 0
    return min(4, max(0, 2 - math.floor(math.log10(size))))


def rounded(value: float | None, digits: int = 6) -> float | None:
    """A number as it is drawn: six digits are more than a screen has; None for what is none."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{digits}g}")
