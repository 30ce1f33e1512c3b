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

from engine.outputs import Output, Stats
from engine.simulation.residuals import DECODE, PROMPT, Residuals, quantiles

KEPT: Final = 4096
"""Factors of each kind, the latest ones."""


@dataclass(frozen=True, slots=True)
class Scatter:
    """factors: by kind of step. bias: what all steps of a window took together over what was
    predicted, less one; None if there were none."""

    factors: Mapping[str, tuple[float, ...]]
    bias: float | None

    def residuals(self) -> Residuals:
        """For simulated steps. Sorts: not for the event loop."""
        found = {kind: quantiles(f - 1 for f in values) for kind, values in self.factors.items()}
        return Residuals({kind: levels for kind, levels in found.items() if levels})


class Steps:
    """Observes the engine's snapshots (`app.bridge.Observer`), on the event loop."""

    def __init__(self) -> None:
        self._factors = {kind: deque[float](maxlen=KEPT) for kind in (DECODE, PROMPT)}
        self._before: float | None = None
        self._took = 0.0
        self._predicted = 0.0

    def observe(self, outputs: Sequence[Output], stats: Stats) -> None:
        """Take a snapshot in; those that come of mail alone say nothing."""
        if not stats.step_rows:
            return
        if self._before is not None and stats.step_predicted > 0:
            seconds = stats.now - self._before
            kind = PROMPT if stats.step_tokens > stats.step_rows else DECODE
            self._factors[kind].append(seconds / stats.step_predicted)
            self._took += seconds
            self._predicted += stats.step_predicted
        self._before = stats.now if stats.running else None

    def cut(self) -> Scatter:
        """What was found of late, and the bias since the last call."""
        bias = self._took / self._predicted - 1 if self._predicted else None
        self._took = self._predicted = 0.0
        return Scatter({kind: tuple(values) for kind, values in self._factors.items()}, bias)
