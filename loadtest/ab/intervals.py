"""Intervals for mean differences over seeds: bootstrap-t, on neither side shorter than Student's.

Twenty differences of latencies are few, and skewed: most seeds differ little, some a lot. Student's
interval is too short towards the long tail, the bootstrap-t (equal tails) where tails are heavy
without being skewed. The wider of the two on each side was measured to keep what it promises; parts
of 1,500 trials of 20 differences in which an interval for 95% covered the truth:

    differences                          skewness   Student's   bootstrap-t   this
    mean TTFT, one policy twice             0.1       0.957        0.944      0.961
    mean TTFT, shortest first - fcfs       -2.7       0.911        0.939      0.951
    TTFT p99, shortest first - fcfs         2.9       0.933        0.934      0.945
    mean E2E, shortest first - fcfs        -3.6       0.902        0.941      0.953
    mean TTFT, 192 - 256 tokens a step      1.9       0.917        0.928      0.943
    log-normal, sigma 1                     6.2       0.873        0.927      0.931
    exponential                             2.0       0.926        0.947      0.951
    normal                                  0         0.950        0.950      0.961
    Student's with 3 degrees                -         0.948        0.913      0.948

It is 5% longer than Student's for normal differences. No method sees what happens in one seed of
fifty: where nearly all differences are zero, take more seeds.
Bootstrap-t: B. Efron, R. J. Tibshirani, An Introduction to the Bootstrap, 1993, chapter 12.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from loadtest.ab.student import student_p, student_quantile

Floats = npt.NDArray[np.float64]

LEVEL: Final = 0.95
FEWEST: Final = 5
"""Differences that an interval is made of; with fewer there is no telling how they scatter."""

RESAMPLES: Final = 9_999
_TAIL: Final = round((1 - LEVEL) / 2 * (RESAMPLES + 1))
"""The so-maniest of the largest resamples is an interval's end."""

_SAME: Final = 1e-12
"""Differences that scatter by less than this part of their mean are one number."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean difference with its 95% interval.

    low, high: None where there are too few differences; infinite where nearly all are one number,
    so that there is no telling how far the others may go. p: the smallest 1 - level at which an
    interval made this way leaves zero out; so it does at 95% where p is at most 0.05. spread:
    standard deviation of the differences. seeds: how many there are.
    """

    mean: float
    low: float | None
    high: float | None
    p: float
    spread: float
    seeds: int


def estimate(differences: Floats) -> Estimate:
    """The estimate for differences of independent seeds; the same ones give the same."""
    n = len(differences)
    if not n:
        return Estimate(math.nan, None, None, 1.0, 0.0, 0)
    mean = float(differences.mean())
    if n < FEWEST:
        return Estimate(mean, None, None, 1.0, 0.0, n)
    spread = float(differences.std(ddof=1))
    if spread <= _SAME * abs(mean):
        return Estimate(mean, mean, mean, 2.0 ** (1 - n) if mean else 1.0, 0.0, n)
    error = spread / math.sqrt(n)
    ts = _resampled(differences - mean)
    usual = student_quantile((1 + LEVEL) / 2, n - 1)
    return Estimate(
        mean=mean,
        low=mean - error * max(usual, _end(ts)),
        high=mean + error * max(usual, _end(-ts)),
        p=_p(ts, mean / error, n - 1),
        spread=spread,
        seeds=n,
    )


def _resampled(centred: Floats) -> Floats:
    """t of each resample of differences without their mean; infinite where it does not scatter."""
    n = len(centred)
    counts = _counts(n)
    means = counts @ centred / n
    squares = counts @ centred**2 / n
    variances = np.maximum(squares - means**2, 0) * n / (n - 1)
    variances[variances < 1e-18 * float(np.mean(centred**2))] = 0
    with np.errstate(divide="ignore", invalid="ignore"):
        ts: Floats = means / np.sqrt(variances / n)
    return np.nan_to_num(ts, nan=np.inf, posinf=np.inf, neginf=-np.inf)


def _end(ts: Floats) -> float:
    """Standard errors from the mean to the end that large `ts` set."""
    return float(np.partition(ts, len(ts) - _TAIL)[len(ts) - _TAIL])


def _p(ts: Floats, t: float, degrees: int) -> float:
    further = int(np.count_nonzero(ts >= t if t > 0 else ts <= t))
    resampled = min(1.0, 2 * (1 + further) / (1 + len(ts)))
    return max(resampled, student_p(t, degrees))


@lru_cache(maxsize=8)
def _counts(n: int) -> Floats:
    """How often each of n values is drawn in each resample."""
    chance = np.random.default_rng(n)
    return chance.multinomial(n, np.full(n, 1 / n), RESAMPLES).astype(np.float64)
