"""Times between tokens, counted in fine buckets."""

from __future__ import annotations

import math
from typing import Final

FIRST_S: Final = 1e-4
GROWTH: Final = 1.05
MOST: Final = 250
"""Buckets: from 0.1 ms to 19 s, each 5 % above the one before."""

_STEP: Final = math.log(GROWTH)


class Gaps:
    """How many there were, their sum in seconds, and any quantile to within 5 %.

    It is told between the ends of its bucket, by how many of those in it lie before.
    """

    __slots__ = ("_counts", "count", "seconds")

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0
        self._counts = [0] * MOST

    def add(self, seconds: float, times: int = 1) -> None:
        """Count a gap that was seen `times` times."""
        place = math.ceil(math.log(seconds / FIRST_S) / _STEP) if seconds > FIRST_S else 0
        self._counts[min(place, MOST - 1)] += times
        self.count += times
        self.seconds += seconds * times

    @property
    def mean(self) -> float | None:
        """None if there were none."""
        return self.seconds / self.count if self.count else None

    def quantile(self, share: float) -> float | None:
        """The time that this share of them does not exceed; None if there were none."""
        if not self.count:
            return None
        wanted, before = share * self.count, 0
        for place, count in enumerate(self._counts):
            if count and before + count >= wanted:
                above = place - 1 + (wanted - before) / count
                return FIRST_S * math.exp(above * _STEP)
            before += count
        raise AssertionError("fewer gaps than were counted")
