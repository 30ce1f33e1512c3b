"""How the steps of late were beside what a cost model says of them.

A factor is what a step took over what is predicted. What a busy engine takes is from the end of
one step to the end of the next: mail, planning and handing over included, since all of that delays
tokens, too. A step behind a pause is left out: nobody knows when its pause ended.

A model that learns says something else of a step later. Simulations have the coefficients that
there are when a window closes, so shapes are kept, and factors are beside those.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from app.shadow.weather import Weather, slot_of
from engine.batch import StepShape
from engine.cost import LinearCost
from engine.outputs import Output, Stats
from engine.simulation.residuals import DECODE, PROMPT, Residuals, kind_of, quantiles

KEPT: Final = 4096
"""Steps of each kind that are kept one by one, the latest ones."""


class Step(NamedTuple):
    """A step. slot: in which it began; took: seconds."""

    slot: int
    took: float
    shape: StepShape


@dataclass(slots=True)
class Sums:
    """Of some steps: seconds that they took, how many they are, and what their shapes add up to."""

    took: float = 0.0
    steps: int = 0
    prefill: int = 0
    decodes: int = 0
    kv_read: int = 0
    chunk_context: int = 0

    def add(self, took: float, shape: StepShape) -> None:
        """Take a step in."""
        self.took += took
        self.steps += 1
        self.prefill += shape.prefill
        self.decodes += shape.decodes
        self.kv_read += shape.kv_read
        self.chunk_context += shape.chunk_context

    def predicted(self, cost: LinearCost) -> float:
        """What a model says that all of them take."""
        rest = cost.seconds(self.prefill, self.decodes, self.kv_read, self.chunk_context)
        return rest + (self.steps - 1) * cost.base


@dataclass(slots=True)
class Bias:
    """Of some steps: what they took, and what had been predicted when they began."""

    took: float = 0.0
    predicted: float = 0.0


@dataclass(frozen=True, slots=True)
class Scatter:
    """Steps of a window and the one before. steps: by kind, the latest ones; slots: all of them.

    bias: by kind, what all steps of the window took over what the model had said of them at the
    time, less one; of kinds that there were.
    """

    steps: Mapping[str, Sequence[Step]]
    slots: Mapping[int, Sums]
    bias: Mapping[str, float]

    def beside(self, cost: LinearCost) -> tuple[Weather, Residuals]:
        """How slow it was at what time, by a model, and how steps scattered around that.

        Takes its time: not for the event loop.
        """
        weather = _weather(self.slots, cost)
        factors = weather.factors
        found = {
            kind: quantiles(
                step.took / (cost.of(step.shape) * factors[step.slot]) - 1
                for step in steps
                if step.slot in factors
            )
            for kind, steps in self.steps.items()
        }
        return weather, Residuals({kind: levels for kind, levels in found.items() if levels})


def _weather(slots: Mapping[int, Sums], cost: LinearCost) -> Weather:
    factors = {
        slot: sums.took / predicted
        for slot, sums in slots.items()
        if (predicted := sums.predicted(cost)) > 0
    }
    known = [slots[slot] for slot in factors]
    return Weather(factors, _usual(known, cost)) if known else Weather()


def _usual(known: Iterable[Sums], cost: LinearCost) -> float:
    """The factor of all steps together."""
    both = [(sums.took, sums.predicted(cost)) for sums in known]
    return sum(took for took, _ in both) / sum(predicted for _, predicted in both)


class Steps:
    """Observes the engine's snapshots (`app.bridge.Observer`), on the event loop."""

    def __init__(self) -> None:
        self._steps = {kind: deque[Step](maxlen=KEPT) for kind in (DECODE, PROMPT)}
        self._slots: dict[int, Sums] = {}
        self._bias = {kind: Bias() for kind in self._steps}
        self._before: float | None = None
        self._opens = 0

    def observe(self, outputs: Sequence[Output], stats: Stats) -> None:
        """Take a snapshot in; those that come of mail alone say nothing."""
        if not stats.step_rows:
            return
        if self._before is not None and stats.step_shape is not None:
            self._take(self._before, stats.now, stats.step_shape, stats.step_predicted)
        self._before = stats.now if stats.running else None

    def _take(self, began: float, ended: float, shape: StepShape, predicted: float) -> None:
        took, kind, slot = ended - began, kind_of(shape), slot_of(began)
        self._steps[kind].append(Step(slot, took, shape))
        bias = self._bias[kind]
        bias.took += took
        bias.predicted += predicted
        sums = self._slots.get(slot)
        if sums is None:
            sums = self._slots[slot] = Sums()
        sums.add(took, shape)

    def cut(self) -> Scatter:
        """What was found of this window and the one before; the bias is of this one."""
        scatter = Scatter(
            steps={kind: tuple(steps) for kind, steps in self._steps.items()},
            slots=dict(self._slots),
            bias={
                kind: each.took / each.predicted - 1
                for kind, each in self._bias.items()
                if each.predicted
            },
        )
        self._turn()
        return scatter

    def _turn(self) -> None:
        """Forget what was before this window, and begin another in a slot of its own."""
        self._slots = {slot: sums for slot, sums in self._slots.items() if slot >= self._opens}
        self._opens = 1 + max(self._slots, default=self._opens)
        self._bias = {kind: Bias() for kind in self._steps}
