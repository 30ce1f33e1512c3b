"""Intervals for a mean that may be looked at after every value, and stopped at.

The usual t-interval covers at one moment that was fixed before. Who looks after each block and
stops when it excludes zero is wrong far more often than it says. These cover at all moments
together: they are made of the Bayes factor of a t-test whose effect size is normal around zero,

    BF(t, n) = (1 + n·g²)^(-1/2) · ((1 + t²/ν) / (1 + t²/(ν·(1 + n·g²))))^(n/2)      ν = n - 1

(Gönen, Johnson, Lu and Westfall, "The Bayesian two-sample t test", 2005). It is an e-process, since
scales are left to the right Haar measure: whatever the unknown variance, it exceeds 1/α with a
chance of α at most, ever (Hendriksen, de Heide and Grünwald, "Optional stopping with Bayes
factors", https://arxiv.org/abs/1807.09077; Pérez-Ortiz et al., "E-statistics, group invariance and
anytime valid testing", https://arxiv.org/abs/2208.07610). The interval has the means that it does
not speak against so loudly. Exact for normal differences; of skewed ones a test measures how often
they cover.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Final

SCALE: Final = 1.0
"""g: the effect, in standard deviations of a block's difference, that intervals are made for."""


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate, and what it may be by then; infinite while too little is known."""

    estimate: float
    low: float
    high: float


def always_valid(values: Sequence[float], level: float) -> Interval | None:
    """Where the mean is that these are drawn around, at any time at once; None without values.

    level: the chance that all intervals of a growing sequence hold the mean.
    """
    count = len(values)
    if not count:
        return None
    mean = fmean(values)
    furthest = _reach(count, 1 - level)
    if math.isinf(furthest):
        return Interval(mean, -math.inf, math.inf)
    reach = furthest * stdev(values) / math.sqrt(count)
    return Interval(mean, mean - reach, mean + reach)


def _reach(count: int, alpha: float) -> float:
    """The largest |t| whose Bayes factor stays below 1/alpha; infinite if all of them do."""
    if count < 2:
        return math.inf
    spread = 1 + count * SCALE**2
    most = (math.sqrt(spread) / alpha) ** (2 / count)
    if most >= spread:
        return math.inf
    return math.sqrt((count - 1) * (most - 1) / (1 - most / spread))
