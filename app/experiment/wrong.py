"""What the policy of an arm did wrong, as the engine's guard counts it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Wrong:
    """faults: answers that the guard had to mend. fallback_steps: steps that FCFS did instead."""

    faults: int = 0
    fallback_steps: int = 0

    def __add__(self, other: Wrong) -> Wrong:
        return Wrong(self.faults + other.faults, self.fallback_steps + other.fallback_steps)

    def __sub__(self, other: Wrong) -> Wrong:
        return Wrong(self.faults - other.faults, self.fallback_steps - other.fallback_steps)


NOTHING_WRONG: Final = Wrong()
