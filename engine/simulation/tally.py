"""How far the steps of a run were from what the cost model predicted."""

from __future__ import annotations

from engine.batch import StepShape
from engine.cost import LinearCost


class Tally:
    """A `LearningCost` that learns nothing and adds up its errors."""

    epoch = 0

    def __init__(self, cost: LinearCost) -> None:
        self._cost = cost
        self._seconds = 0.0
        self._errors = 0.0
        self.relative_error = cost.relative_error

    @property
    def error(self) -> float:
        """Mean of |actual - predicted| over the mean of steps' seconds."""
        return self._errors / self._seconds if self._seconds else 0.0

    def seconds(self, prefill: int, decodes: int, kv_read: int, chunk_context: int) -> float:
        return self._cost.seconds(prefill, decodes, kv_read, chunk_context)

    def of(self, shape: StepShape) -> float:
        return self._cost.of(shape)

    def observe(self, shape: StepShape, seconds: float) -> None:
        self._seconds += seconds
        self._errors += abs(seconds - self._cost.of(shape))
