"""One verdict a metric, with many metrics looked at.

Of twenty figures one differs by chance at the 5% level. So verdicts are not by each interval alone:

    primary metrics   Holm's correction: with no difference anywhere, the chance that any of them
                      gets a verdict is 5% at most. S. Holm, A simple sequentially rejective
                      multiple test procedure, Scand. J. Statist. 6 (1979).
    all others        Benjamini and Hochberg's: of the verdicts given, 5% are wrong on average, at
                      most. J. R. Statist. Soc. B 57 (1995).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from loadtest.ab.intervals import LEVEL

ALPHA: Final = round(1 - LEVEL, 12)


class Better(StrEnum):
    """Which way a metric is better."""

    LOWER = "lower"
    HIGHER = "higher"


class Verdict(StrEnum):
    """What is shown of the second arm."""

    BETTER = "better"
    WORSE = "worse"
    NO_DIFFERENCE = "no difference shown"


def verdict(difference: float, shown: bool, better: Better) -> Verdict:
    """The verdict on a difference, second arm minus first."""
    if not shown or difference == 0:
        return Verdict.NO_DIFFERENCE
    return Verdict.BETTER if (difference < 0) == (better is Better.LOWER) else Verdict.WORSE


def holm(ps: Sequence[float]) -> list[bool]:
    """Which are shown, so that the chance of any false one is ALPHA at most."""
    shown = [False] * len(ps)
    for rank, i in enumerate(_ascending(ps)):
        if ps[i] > ALPHA / (len(ps) - rank):
            break
        shown[i] = True
    return shown


def benjamini_hochberg(ps: Sequence[float]) -> list[bool]:
    """Which are shown, so that ALPHA of them are false on average, at most."""
    order = _ascending(ps)
    last = max((r for r, i in enumerate(order) if ps[i] <= ALPHA * (r + 1) / len(ps)), default=-1)
    shown = [False] * len(ps)
    for i in order[: last + 1]:
        shown[i] = True
    return shown


def _ascending(ps: Sequence[float]) -> list[int]:
    return sorted(range(len(ps)), key=lambda i: ps[i])
