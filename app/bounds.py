"""How much may be open, or wait, at once: of the whole house, of a class, of a tenant."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bounds:
    """inf is no limit.

    open: sequences. waiting: those without a token yet. tokens: of the prompts of those. wait:
    seconds that a first token may be expected to take.
    """

    open: float = math.inf
    waiting: float = math.inf
    tokens: float = math.inf
    wait: float = math.inf


UNBOUNDED = Bounds()


def limit(value: float | None) -> float:
    """A knob of the configuration, where null is no limit."""
    return math.inf if value is None else value
