"""How many users there are at a time: steady, step, spike, soak."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final

RAMP: Final = 0.05
"""Part of a run within which all users of a steady load have come."""

STEPS: Final = 5
BREATH_S: Final = 600.0
"""Seconds in which a soaking load goes down to half and comes back."""

Shape = Callable[[float, float, int], int]
"""From the seconds since the start, the seconds of the run and the most users to how many are."""


def steady(at: float, duration: float, users: int) -> int:
    """All of them, after a short ramp."""
    return max(1, math.ceil(users * min(1.0, at / (RAMP * duration))))


def step(at: float, duration: float, users: int) -> int:
    """A fifth more after each fifth of the run."""
    done = min(STEPS - 1, int(STEPS * at / duration))
    return max(1, math.ceil(users * (done + 1) / STEPS))


def spike(at: float, duration: float, users: int) -> int:
    """A quarter of them, and all for a fifth of the run in its middle."""
    return users if 0.4 <= at / duration < 0.6 else max(1, math.ceil(users / 4))


def soak(at: float, duration: float, users: int) -> int:
    """Between half and all of them, up and down every ten minutes, for hours."""
    part = 0.75 - 0.25 * math.cos(2 * math.pi * at / BREATH_S)
    return max(1, math.ceil(users * part))


SHAPES: Final[Mapping[str, Shape]] = {
    "steady": steady,
    "step": step,
    "spike": spike,
    "soak": soak,
}
