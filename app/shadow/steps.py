"""How the steps of late were beside what the cost model said of them.

A factor is what a step took over what was predicted. What a busy engine takes is from the end of
one step to the end of the next: mail, planning and handing over included, since all of that delays
tokens, too. A step behind a pause is left out: nobody knows when its pause ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from app.shadow.weather import Weather, slot_of
from engine.outputs import Output, Stats
from engine.simulation.residuals import DECODE, PROMPT, Residuals, quantiles

KEPT: Final = 4096
"""Factors of each kind, the latest ones."""


@dataclass(slots=True)
class Sums:
    """Seconds that steps took, and that were predicted."""

    took: float = 0.0
    predicted: float = 0.0

    def add(self, took: float, predicted: float) -> None:
        """Take a step in."""
        self.took += took
        self.predicted += predicted

    @property
    def factor(self) -> float:
        """Of all of them together; there must be some."""
        return self.took / self.predicted


@dataclass(frozen=True, slots=True)
class Scatter:
    """factors: by kind of step, beside its slot's. bias: by kind, what all steps of a window took
    together over what was predicted, less one; of kinds that there were."""

    weather: Weather
    factors: Mapping[str, Sequence[float]]
    bias: Mapping[str, float]

    def residuals(self) -> Residuals:
        """For simulated steps, beside the weather. Sorts: not for the event loop."""
        found = {kind: quantiles(f - 1 for f in values) for kind, values in self.factors.items()}
        return Residuals({kind: levels for kind, levels in found.items() if levels})


class Steps:
    """Observes the engine's snapshots (`app.bridge.Observer`), on the event loop."""

    def __init__(self) -> None:
        self._factors = {kind: deque[tuple[int, float]](maxlen=KEPT) for kind in (DECODE, PROMPT)}
        self._slots: dict[int, Sums] = {}
        self._kinds = {kind: Sums() for kind in self._factors}
        self._before: float | None = None
        self._opens = 0

    def observe(self, outputs: Sequence[Output], stats: Stats) -> None:
        """Take a snapshot in; those that come of mail alone say nothing."""
        if not stats.step_rows:
            return
        if self._before is not None and stats.step_predicted > 0:
            self._take(self._before, stats)
        self._before = stats.now if stats.running else None

    def _take(self, began: float, stats: Stats) -> None:
        seconds, predicted = stats.now - began, stats.step_predicted
        kind = PROMPT if stats.step_tokens > stats.step_rows else DECODE
        slot = slot_of(began)
        self._factors[kind].append((slot, seconds / predicted))
        self._kinds[kind].add(seconds, predicted)
        sums = self._slots.get(slot)
        if sums is None:
            sums = self._slots[slot] = Sums()
        sums.add(seconds, predicted)

    def cut(self) -> Scatter:
        """What was found of this window and the one before; the bias is of this one."""
        slots = {slot: sums.factor for slot, sums in self._slots.items()}
        scatter = Scatter(
            weather=Weather(slots, self._usual()),
            factors={
                kind: [factor / slots[slot] for slot, factor in values if slot in slots]
                for kind, values in self._factors.items()
            },
            bias={kind: sums.factor - 1 for kind, sums in self._kinds.items() if sums.predicted},
        )
        self._turn()
        return scatter

    def _usual(self) -> float:
        """The factor of all steps that are kept."""
        predicted = sum(sums.predicted for sums in self._slots.values())
        return sum(sums.took for sums in self._slots.values()) / predicted if predicted else 1.0

    def _turn(self) -> None:
        """Forget what was before this window, and begin another."""
        self._slots = {slot: sums for slot, sums in self._slots.items() if slot >= self._opens}
        self._opens = 1 + max(self._slots, default=self._opens)
        self._kinds = {kind: Sums() for kind in self._factors}
