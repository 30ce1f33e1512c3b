"""Steps that scatter alike in both arms: common random numbers.

What a step takes beyond the prediction is the machine's doing, not the policy's, so both arms
should be unlucky at the same time; their difference then scatters less. Arms differ in how many
steps they take, so a step's factor has to be found by something that they share: the arrivals.

    factor of a step = f(requests arrived so far, steps since the last of them)

Each f is drawn once, independently, and used at most once in a run: which one is next depends on
the past only. So in each arm factors are independent draws of the machine's distribution, whatever
the policy does, and no arm gains by the coupling. After every arrival the arms are in step again.
Two others were looked at. By the number of the step alone: as good for a hundred requests, but arms
that differ by one step a minute are soon apart for good. By virtual time in cells: a cell of slow
steps has fewer of them than a cell of fast ones, so a factor's mean over steps would be below one,
and two steps in one cell would scatter together.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

Draw = Callable[..., float]
"""Draws a step's factor, from a generator, the step's shape and the time of its start."""


class CommonNoise:
    """A `Scatter`: the same for the same seed, as far as runs have arrivals in common."""

    def __init__(self, draw: Draw, seed: str) -> None:
        self._draw = draw
        self._seed = seed
        self._count = 0
        self._begin()

    def arrived(self) -> None:
        """Factors are those after this arrival from now on."""
        self._count += 1
        self._begin()

    def __call__(self, *step: Any) -> float:
        return self._draw(self._chance, *step)

    def _begin(self) -> None:
        self._chance = random.Random(f"{self._seed} {self._count}")


def log_normal(sigma: float) -> Draw:
    """Factors with a mean of one. sigma: standard deviation of the logarithm."""
    return lambda chance, *step: chance.lognormvariate(-sigma * sigma / 2, sigma)
