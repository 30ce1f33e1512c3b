"""Whether what was found live is what a simulation predicts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Final

import numpy as np

MEASURES: Final = ("ttft_s", "itl_p99_s", "output_tok_s")
"""Of the whole; of each tenant there is the first."""

TAILS: Final = (2.5, 97.5)


@dataclass(frozen=True, slots=True)
class Found:
    """A relative change, and the ends of its interval."""

    change: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Row:
    """One measure of the whole, or of a tenant, live and simulated; None where it is unknown."""

    of: str
    measure: str
    live: Found | None
    simulated: Found | None

    @property
    def agrees(self) -> bool | None:
        """Whether the intervals overlap; None if either change is unknown.

        So where both of them exclude zero, the signs are the same.
        """
        live, simulated = self.live, self.simulated
        if live is None or simulated is None:
            return None
        return live.low <= simulated.high and simulated.low <= live.high

    def facts(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "of": self.of,
            "measure": self.measure,
            "live": _facts(self.live),
            "simulated": _facts(self.simulated),
            "agrees": self.agrees,
        }


def rows(live: Mapping[str, Any], simulated: Sequence[Mapping[str, Any]]) -> Iterator[Row]:
    """Live beside simulated experiments, each the comparison of one arm with the first.

    The simulated interval is where the middle 95 % of them find the change: they differ in what
    arrives and in how steps scatter, as a repetition of the live one would.
    """
    for measure in MEASURES:
        path: tuple[str, ...] = ("measures", measure)
        yield Row("all", measure, _live(live, path), _spread(simulated, path))
    for tenant in live["by_tenant"]:
        path = ("by_tenant", tenant, "ttft_s")
        yield Row(tenant, "ttft_s", _live(live, path), _spread(simulated, path))


def _at(told: Mapping[str, Any], path: Sequence[str]) -> Mapping[str, Any]:
    found = told
    for key in path:
        found = found.get(key, {})
    return found


def _live(told: Mapping[str, Any], path: Sequence[str]) -> Found | None:
    """Through JSON an end that is infinite has become null."""
    found = _at(told, path)
    if found.get("change") is None:
        return None
    low, high = found["low"], found["high"]
    return Found(found["change"], -1.0 if low is None else low, math.inf if high is None else high)


def _spread(experiments: Sequence[Mapping[str, Any]], path: Sequence[str]) -> Found | None:
    changes = [
        change for each in experiments if (change := _at(each, path).get("change")) is not None
    ]
    if not changes:
        return None
    low, high = np.percentile(changes, TAILS)
    return Found(fmean(changes), float(low), float(high))


def _facts(found: Found | None) -> dict[str, float] | None:
    if found is None:
        return None
    return {"change": found.change, "low": found.low, "high": found.high}
