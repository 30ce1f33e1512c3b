"""Histograms in plain numbers, rendered as Prometheus wants them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.samples import Sample


class Histogram:
    """Counts of observations per bucket. Not thread-safe: one thread observes and reads."""

    def __init__(self, name: str, help: str, bounds: Sequence[float]) -> None:
        self.name = name
        self.help = help
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0
        self._marks = [*(str(float(bound)) for bound in self.bounds), "+Inf"]
        self._labels: dict[str, list[dict[str, str]]] = {}

    def observe(self, value: float, times: int = 1) -> None:
        """Book a value that was seen `times` times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def family(
        self, name: str | None = None, labels: Mapping[str, str] | None = None
    ) -> HistogramMetricFamily:
        """Cumulative counts under the upper bounds; under another name if one is given.

        Labels of a name's buckets are made once: a page has hundreds of them.
        """
        name, labels = name or self.name, labels or {}
        bounds = self._labels.get(name)
        if bounds is None:
            bounds = self._labels[name] = [{**labels, "le": mark} for mark in self._marks]
        family = HistogramMetricFamily(name, self.help)
        cumulated = list(accumulate(self.counts))
        bucket = name + "_bucket"
        family.samples = [Sample(bucket, *each) for each in zip(bounds, cumulated, strict=True)]
        family.samples.append(Sample(name + "_count", dict(labels), cumulated[-1]))
        family.samples.append(Sample(name + "_sum", dict(labels), self.sum))
        return family
