"""Watches an engine: the shape of each step, what computing it took, and what all of it took."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from engine.batch import StepShape
from engine.cost import LearningCost
from engine.inbox import Message
from engine.loop import Engine


@dataclass(frozen=True, slots=True)
class Observation:
    """One step. at: when it ended, by the machine's monotonic clock.

    seconds: from one step to the next, mail, planning and hand-over included, as a saturated engine
    takes them; computing: those in which it was computed. Steps that moved blocks are not observed.
    """

    shape: StepShape
    at: float
    seconds: float
    computing: float


class ShapeWatch:
    """A cost model that passes everything on and remembers what it was told last."""

    def __init__(self, cost: LearningCost) -> None:
        self._cost = cost
        self._last: tuple[StepShape, float] | None = None

    def take(self) -> tuple[StepShape, float] | None:
        """The shape and the seconds of the last step, once; None if there was none since."""
        last, self._last = self._last, None
        return last

    @property
    def relative_error(self) -> float:
        return self._cost.relative_error

    @property
    def epoch(self) -> int:
        return self._cost.epoch

    def seconds(self, prefill: int, decodes: int, kv_read: int, chunk_context: int) -> float:
        return self._cost.seconds(prefill, decodes, kv_read, chunk_context)

    def of(self, shape: StepShape) -> float:
        return self._cost.of(shape)

    def observe(self, shape: StepShape, seconds: float) -> None:
        self._last = shape, seconds
        self._cost.observe(shape, seconds)


class WatchedEngine:
    """An engine that is stepped by who watches it. timer: tells the seconds."""

    def __init__(self, engine: Engine, timer: Callable[[], float] = time.perf_counter) -> None:
        self._engine = engine
        self.timer = timer
        self._watch = ShapeWatch(engine.cost)
        engine.cost = self._watch

    @property
    def busy(self) -> bool:
        """Whether somebody waits or runs."""
        return self._engine.scheduler.live > 0

    def now(self) -> float:
        """By the engine's clock."""
        return self._engine.clock.now()

    def step(self, mail: Iterable[Message] = ()) -> Observation | None:
        """Do one step; None if nothing was computed that can be observed."""
        began = self.timer()
        self._engine.step(mail)
        ended = self.timer()
        last = self._watch.take()
        if last is None:
            return None
        shape, computing = last
        return Observation(shape, ended, ended - began, computing)
