"""By what factors steps take longer than predicted."""

from __future__ import annotations

from typing import Protocol

from engine.batch import StepShape


class Scatter(Protocol):
    """Gives a step's factor (`Noise`), one after the other, and is told who arrives in between."""

    def arrived(self) -> None:
        """A request more is in the mail of the next step."""
        ...

    def __call__(self, shape: StepShape, now: float, /) -> float: ...
