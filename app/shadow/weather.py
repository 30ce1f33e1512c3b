"""How slow a machine was at what time, beside what the cost model says.

Machines are slow for a while: other processes, clocks. That is neither the policy's doing nor the
cost model's, and a queue feels it far more than the same slowness spread over all steps. So a
simulated step is as much slower than predicted as steps really were at that time, on average over a
slot, and scatters around that as they did.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

SLOT_S: Final = 1.0
"""Seconds of a slot: many steps of most machines, and few of a policy's decisions."""


def slot_of(at: float) -> int:
    """The slot of a time, by the engine's clock."""
    return int(at // SLOT_S)


@dataclass(frozen=True, slots=True)
class Weather:
    """factors: by slot, what its steps took over what was predicted; usual: where there is none."""

    factors: Mapping[int, float] = field(default_factory=dict)
    usual: float = 1.0

    def at(self, time: float) -> float:
        """The factor of a time by the engine's clock: that of its slot, or of the one before."""
        slot = slot_of(time)
        found = self.factors.get(slot)
        return self.factors.get(slot - 1, self.usual) if found is None else found


CALM: Final = Weather()
