"""What became of a window that was scored: reality, what is in charge, and its shadows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.config.schema import SchedulerConfig
from app.shadow.measures import MEASURES, OF_GROUPS, Score, Values
from app.shadow.scorer import Simulated


@dataclass(frozen=True, slots=True)
class Scored:
    """A window. real: what happened; control: what is predicted of `policy`, which was in charge.

    own: what the simulation says of its relative errors. bias: as of Scatter. others: by name, or
    why there is no score.
    """

    opens: float
    closes: float
    policy: SchedulerConfig
    real: Score
    control: Simulated
    own: Mapping[str, float]
    bias: Mapping[str, float]
    others: Mapping[str, Simulated | str]

    def about(self, name: str, seeds: int) -> dict[str, Any]:
        """A shadow beside what is in charge, both simulated."""
        other = self.others[name]
        if isinstance(other, str):
            return {"fault": other}
        control = self.control
        return {
            "fault": None,
            "faults": other.faults,
            "measures": {
                measure: _compared(
                    control.score.whole[measure],
                    other.score.whole[measure],
                    _noise(control.spread[measure], other.spread[measure], seeds),
                )
                for measure in MEASURES
            },
            "by_tenant": _groups(control.score.by_tenant, other.score.by_tenant),
            "by_class": _groups(control.score.by_class, other.score.by_class),
        }


def _groups(base: Mapping[str, Values], other: Mapping[str, Values]) -> dict[str, Any]:
    """Each group beside itself; who got nothing under one of them has no change."""
    nothing: Values = {}
    return {
        name: {
            measure: _compared(
                base.get(name, nothing).get(measure), other.get(name, nothing).get(measure)
            )
            for measure in OF_GROUPS
        }
        for name in sorted({*base, *other})
    }


def _compared(
    base: float | None, other: float | None, noise: float | None = None
) -> dict[str, Any]:
    """A value, its relative change, and whether that is more than simulations scatter."""
    told: dict[str, Any] = {"value": other, "change": None}
    if base is not None and other is not None:
        told["change"] = other / base - 1 if base else None
        if noise is not None:
            told["clear"] = abs(other - base) > noise
    return told


def _noise(base: float, other: float, seeds: int) -> float:
    """Twice the standard error of the difference between two means of so many."""
    return 2 * math.hypot(base, other) / math.sqrt(seeds)
