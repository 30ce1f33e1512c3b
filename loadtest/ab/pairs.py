"""The same request in both arms.

A request of a seed is the same in both: its place in the resampled trace names it. What is compared
request by request are those that both arms completed; means over all of an arm's own would change
with who was refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np

from loadtest.ab.intervals import Estimate, Floats, estimate

LATENCIES: Final = ("ttft_s", "tpot_s", "e2e_s")

Latencies = Mapping[str, Floats]
"""Seconds of each request of a seed, by LATENCIES; NaN of one that was not completed."""


class Finished(Protocol):
    """A request that was sent, simulated or real."""

    @property
    def completed(self) -> bool: ...
    @property
    def ttft(self) -> float: ...
    @property
    def tpot(self) -> float: ...
    @property
    def e2e(self) -> float: ...


def latencies(records: Sequence[Finished]) -> Latencies:
    """The latencies of a seed's requests, in order of arrival."""
    rows = [(r.ttft, r.tpot, r.e2e) if r.completed else (np.nan,) * 3 for r in records]
    columns = np.array(rows, np.float64).reshape(-1, 3).T
    return dict(zip(LATENCIES, columns, strict=True))


@dataclass(frozen=True, slots=True)
class Paired:
    """How one latency differs, request by request, second arm minus first, in seconds.

    estimate: of the mean over a seed's pairs. pairs: over all seeds; quantiles: of their
    differences, by name; faster, slower: parts of them.
    """

    estimate: Estimate
    pairs: int
    quantiles: Mapping[str, float]
    faster: float
    slower: float

    def to_json(self) -> dict[str, Any]:
        """For JSON."""
        found = self.estimate
        return {
            "pairs": self.pairs,
            "mean": found.mean if self.pairs else None,
            "low": found.low,
            "high": found.high,
            **self.quantiles,
            "faster": self.faster,
            "slower": self.slower,
        }


_QUANTILES: Final = {"p1": 0.01, "p10": 0.1, "p50": 0.5, "p90": 0.9, "p99": 0.99}


def paired(first: Sequence[Latencies], second: Sequence[Latencies]) -> dict[str, Paired]:
    """The differences of each latency; one item a seed, in the same order."""
    return {
        name: _paired([b[name] - a[name] for a, b in zip(first, second, strict=True)])
        for name in LATENCIES
    }


def _paired(seeds: Sequence[Floats]) -> Paired:
    """From the differences of each seed's requests."""
    kept = [differences[~np.isnan(differences)] for differences in seeds]
    means = np.array([differences.mean() for differences in kept if len(differences)])
    pooled = np.concatenate(kept) if kept else np.empty(0)
    if not len(pooled):
        return Paired(estimate(means), 0, {}, 0.0, 0.0)
    values = np.quantile(pooled, list(_QUANTILES.values()))
    return Paired(
        estimate(means),
        len(pooled),
        dict(zip(_QUANTILES, map(float, values), strict=True)),
        float(np.mean(pooled < 0)),
        float(np.mean(pooled > 0)),
    )
