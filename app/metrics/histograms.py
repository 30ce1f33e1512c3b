"""Histograms in plain numbers, rendered as Prometheus wants them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily


class Histogram:
    """Counts of observations per bucket. Not thread-safe: one thread observes and reads."""

    def __init__(self, name: str, help: str, bounds: Sequence[float]) -> None:
        self.name = name
        self.help = help
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0
        self._marks = [*(str(float(bound)) for bound in self.bounds), "+Inf"]

    def observe(self, value: float, times: int = 1) -> None:
        """Book a value that was seen `times` times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def family(
        self, name: str | None = None, labels: Mapping[str, str] | None = None
    ) -> HistogramMetricFamily:
        """Cumulative counts under the upper bounds; under another name if one is given."""
        labels = labels or {}
        family = HistogramMetricFamily(name or self.name, self.help, labels=tuple(labels))
        buckets = list(zip(self._marks, map(float, accumulate(self.counts)), strict=True))
        family.add_metric(tuple(labels.values()), buckets, self.sum)
        return family
