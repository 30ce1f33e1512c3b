"""How the steps of a machine scatter around what its cost model predicts, and how to draw from it.

A residual is actual over predicted seconds, minus one. Its quantiles are kept by kind of step, and
how much of the scatter lasts: machines are slow for a while (clocks, neighbours), not for a step.

    factor of a step = Q( √share · weather(time) + √(1 - share) · chance(step) )

Q maps a standard normal variable to the quantiles of the step's kind; `weather` is a stationary
normal process of virtual time with a correlation of about exp(-lag / seconds), and `chance` is
drawn anew for each step. `weather` depends on the seed and on the time alone: whatever is simulated
with one seed meets the same weather, which makes two runs comparable.
"""

from __future__ import annotations

import bisect
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Final

from engine.backends.simulated import Noise
from engine.batch import StepShape

DECODE: Final = "decode"
PROMPT: Final = "prompt"
ALL: Final = "all"
"""Kinds of steps: decodes only; with prompt tokens; where the two are not told apart."""

Draw = Callable[[random.Random, StepShape, float], float]

LEVELS: Final = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 1.0)

_REACH: Final = 4.0
_CELLS: Final = 64
"""A table has so many entries for each unit of a standard normal variable, up to _REACH of them."""

_SLICES: Final = 8
"""Of the time in which weather changes: it is constant in each."""

_MEMORY: Final = 3 * _SLICES
"""Slices that today's weather is made of."""


def kind_of(shape: StepShape) -> str:
    """DECODE or PROMPT."""
    return PROMPT if shape.prefill else DECODE


@dataclass(frozen=True, slots=True)
class Persistence:
    """share: of the scatter's variance that lasts; seconds: after which a third of that is left."""

    share: float = 0.0
    seconds: float = 1.0

    def __post_init__(self) -> None:
        if not (0 <= self.share <= 1 and 0 < self.seconds < math.inf):
            raise ValueError("persistence has a share from 0 to 1 and positive seconds")


@dataclass(frozen=True, slots=True)
class Residuals:
    """quantiles: by kind, residuals by level. Raises ValueError for what are no quantiles."""

    quantiles: Mapping[str, Mapping[float, float]] = field(default_factory=dict)
    persistence: Persistence = field(default_factory=Persistence)

    def __post_init__(self) -> None:
        for kind, levels in self.quantiles.items():
            if kind not in (DECODE, PROMPT, ALL):
                raise ValueError(f"residuals are of {DECODE}, {PROMPT} or {ALL} steps, not {kind}")
            if list(levels) != sorted(levels) or list(levels.values()) != sorted(levels.values()):
                raise ValueError("quantiles and their levels rise")
            if not all(0 <= level <= 1 and value > -1 for level, value in levels.items()):
                raise ValueError("levels are from 0 to 1, residuals above -1")

    def __bool__(self) -> bool:
        """Whether anybody measured any."""
        return any(self.quantiles.values())

    def noise(self, seed: int) -> Noise:
        """Factors for the steps of a run. The same seed gives the same ones."""
        draw, chance = self.draw(str(seed)), random.Random(f"step times {seed}")
        return lambda shape, now: draw(chance, shape, now)

    def draw(self, seed: str) -> Draw:
        """Draws a factor from a generator, for a step of a shape at a time. seed: of weather."""
        decode, prompt = _table(self._of(DECODE)), _table(self._of(PROMPT))
        weather = Weather(seed, self.persistence.seconds)
        lasting = math.sqrt(self.persistence.share)
        passing = math.sqrt(1 - self.persistence.share)
        last = len(decode) - 1

        def factor(chance: random.Random, shape: StepShape, now: float) -> float:
            value = passing * chance.gauss(0.0, 1.0)
            if lasting:
                value += lasting * weather(now)
            place = min(max(int((value + _REACH) * _CELLS), 0), last)
            return prompt[place] if shape.prefill else decode[place]

        return factor

    def _of(self, kind: str) -> Mapping[float, float]:
        """The quantiles of a kind, or of the other one if there are none."""
        found = (self.quantiles.get(each) for each in (kind, ALL, PROMPT, DECODE))
        return next((levels for levels in found if levels), {0.5: 0.0})


class Weather:
    """A standard normal process of time: a moving average of one draw for each slice of time."""

    def __init__(self, seed: str, seconds: float) -> None:
        self._seed = seed
        self._slice = seconds / _SLICES
        weights = [math.exp(-i / _SLICES) for i in range(_MEMORY)]
        size = math.sqrt(sum(weight * weight for weight in weights))
        self._weights = [weight / size for weight in weights]
        self._draws: dict[int, float] = {}
        self._now: tuple[int, float] | None = None

    def __call__(self, now: float) -> float:
        place = int(now / self._slice)
        if self._now is None or self._now[0] != place:
            self._now = place, self._at(place)
        return self._now[1]

    def _at(self, place: int) -> float:
        places = range(place, place - _MEMORY, -1)
        self._draws = {each: self._draw(each) for each in places}
        return sum(w * self._draws[p] for w, p in zip(self._weights, places, strict=True))

    def _draw(self, place: int) -> float:
        known = self._draws.get(place)
        return (
            random.Random(f"weather {self._seed} {place}").gauss(0, 1) if known is None else known
        )


def lognormal(sigma: float, seed: int) -> Noise:
    """Factors with a mean of one whose logarithm has a standard deviation of `sigma`."""
    chance = random.Random(f"step times {seed}").lognormvariate

    def factor(shape: StepShape, now: float) -> float:
        return chance(-sigma * sigma / 2, sigma)

    return factor


def quantiles(residuals: Iterable[float]) -> dict[float, float]:
    """Residuals by LEVELS, interpolated linearly."""
    ordered = sorted(residuals)
    return {level: round(_interpolated(ordered, level), 4) for level in LEVELS} if ordered else {}


def _interpolated(ordered: Sequence[float], level: float) -> float:
    place = level * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def _table(levels: Mapping[float, float]) -> list[float]:
    """Factors by the value of a standard normal variable, from -_REACH on."""
    steps, phi = round(2 * _REACH * _CELLS), NormalDist().cdf
    known, values = list(levels), list(levels.values())
    return [1 + _at_level(known, values, phi((i + 0.5) / _CELLS - _REACH)) for i in range(steps)]


def _at_level(known: Sequence[float], values: Sequence[float], level: float) -> float:
    """The residual at a level; beyond the levels that are known, the outermost."""
    above = bisect.bisect(known, level)
    if above == 0 or above == len(known):
        return values[max(0, above - 1)]
    part = (level - known[above - 1]) / (known[above] - known[above - 1])
    return values[above - 1] + part * (values[above] - values[above - 1])
