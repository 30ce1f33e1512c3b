"""How many seeds a difference takes to be seen."""

from __future__ import annotations

from typing import Final

from loadtest.ab.intervals import LEVEL
from loadtest.ab.student import student_quantile

EFFECT: Final = 0.05
"""The difference that should be seen, as a part of the first arm's figure."""

POWER: Final = 0.8
"""How often it should be seen."""

LONGER: Final = 1.3
"""So many times the seeds that Student's interval takes: ours is longer, by a tenth or so, and the
spread that a pilot of 20 seeds finds is off by a sixth. Measured, with the seeds that pilots ask
for: 0.81 and more of experiments find a difference of 5% between two runs of one policy with noise
of their own, 0.83 and more between shortest first and fcfs, whose differences are skewed by up to
2.5 either way."""

FEWEST: Final = 20
"""Seeds; with fewer the interval is much longer than that, above all where they are skewed: ten
found a difference skewed by 2.5 in 0.63 of experiments, twenty in 0.92."""

MOST: Final = 100_000
"""Seeds; for more than that nobody waits."""


def seeds_needed(spread: float, effect: float) -> int | None:
    """Seeds that show a mean difference of `effect`, up or down, in POWER of all experiments.

    spread: standard deviation of the differences. None for more than MOST, and where there is no
    effect to see. One metric alone, at LEVEL: a correction for several asks for more.
    """
    if not abs(effect) > 0:
        return None
    ratio = LONGER * (spread / effect) ** 2
    low, high = FEWEST, MOST
    if _needed(ratio, high) > high:
        return None
    while low < high:
        middle = (low + high) // 2
        if _needed(ratio, middle) <= middle:
            high = middle
        else:
            low = middle + 1
    return low


def _needed(ratio: float, seeds: int) -> float:
    """Seeds by the quantiles of so many: falls as they grow."""
    degrees = seeds - 1
    quantiles = student_quantile((1 + LEVEL) / 2, degrees) + student_quantile(POWER, degrees)
    return ratio * quantiles**2
