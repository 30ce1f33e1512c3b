"""What a server says of itself at /metrics: looks at its load, and histograms between two looks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

GAUGES: Final[Mapping[str, tuple[str, ...]]] = {
    "running": ("octavo_requests_running", "vllm:num_requests_running"),
    "waiting": ("octavo_requests_waiting", "vllm:num_requests_waiting"),
    "kv_usage": ("octavo_kv_usage_ratio", "vllm:kv_cache_usage_perc"),
    "memory_bytes": ("process_resident_memory_bytes",),
    "open_files": ("process_open_fds",),
}
"""What is looked at, by the names that it goes by; the first that is there counts."""


@dataclass(frozen=True, slots=True)
class Look:
    """A server's load at a time, in seconds from the start of a run; None where it does not say.

    kv_usage: the share of KV blocks that requests hold, 0 to 1.
    """

    at: float
    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None
    memory_bytes: float | None = None
    open_files: float | None = None


class Scrape:
    """One reading of /metrics."""

    def __init__(self, text: str) -> None:
        self._families: dict[str, Metric] = {
            family.name: family for family in text_string_to_metric_families(text)
        }

    def look(self, at: float) -> Look:
        """The load that it shows."""
        return Look(at, **{name: self._first(names) for name, names in GAUGES.items()})

    def value(self, name: str) -> float | None:
        """The sum over a gauge or counter (named without `_total`); None if it is not there."""
        family = self._families.get(name)
        if family is None:
            return None
        return sum(
            sample.value for sample in family.samples if not sample.name.endswith("_created")
        )

    def label(self, name: str, label: str) -> str | None:
        """A label of the first sample of a gauge; None if there is none."""
        family = self._families.get(name)
        return family.samples[0].labels.get(label) if family and family.samples else None

    def histogram(self, name: str) -> Histogram | None:
        """A histogram, over all its labels; None if it is not there."""
        family = self._families.get(name)
        if family is None or family.type != "histogram":
            return None
        buckets: dict[float, float] = {}
        total = 0.0
        for sample in family.samples:
            if sample.name.endswith("_bucket"):
                bound = float(sample.labels["le"])
                buckets[bound] = buckets.get(bound, 0.0) + sample.value
            elif sample.name.endswith("_sum"):
                total += sample.value
        bounds = sorted(buckets)
        return Histogram(tuple(bounds), tuple(buckets[bound] for bound in bounds), total)

    def _first(self, names: Iterable[str]) -> float | None:
        found = (self.value(name) for name in names)
        return next((value for value in found if value is not None), None)


@dataclass(frozen=True, slots=True)
class Histogram:
    """bounds: upper bounds, ascending, the last is inf; counts: samples at most each; total: their
    sum."""

    bounds: Sequence[float]
    counts: Sequence[float]
    total: float

    @property
    def count(self) -> float:
        return self.counts[-1] if self.counts else 0.0

    @property
    def mean(self) -> float | None:
        return self.total / self.count if self.count else None

    def since(self, before: Histogram | None) -> Histogram:
        """What came after an earlier reading of the same histogram."""
        if before is None:
            return self
        counts = tuple(now - then for now, then in zip(self.counts, before.counts, strict=True))
        return Histogram(self.bounds, counts, self.total - before.total)

    def bucket_of(self, share: float) -> tuple[float, float] | None:
        """The bounds between which the `share`-quantile lies; None where there are no samples."""
        if not self.count:
            return None
        lower = 0.0
        for bound, count in zip(self.bounds, self.counts, strict=True):
            if count >= share * self.count:
                return lower, bound
            lower = bound
        return lower, math.inf

    def quantile(self, share: float) -> float | None:
        """The quantile as Prometheus has it: as if samples lay evenly in their bucket."""
        place = self.bucket_of(share)
        if place is None:
            return None
        lower, upper = place
        if math.isinf(upper):
            return lower
        at = self.bounds.index(upper)
        before = self.counts[at - 1] if at else 0.0
        inside = self.counts[at] - before
        return lower + (upper - lower) * ((share * self.count - before) / inside if inside else 1.0)
