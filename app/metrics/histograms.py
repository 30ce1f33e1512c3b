"""Histograms in plain numbers, rendered as Prometheus wants them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TypeAlias

Before: TypeAlias = tuple[str, list[str], str, str]
"""What stands before the numbers of a histogram's lines: its head, each bucket, count, sum."""


class Histogram:
    """Counts of observations per bucket. Not thread-safe: one thread observes and reads."""

    def __init__(self, name: str, help: str, bounds: Sequence[float]) -> None:
        self.name = name
        self.help = help
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0
        self._marks = [*(str(float(bound)) for bound in self.bounds), "+Inf"]
        self._before: dict[str, Before] = {}

    def observe(self, value: float, times: int = 1) -> None:
        """Book a value that was seen `times` times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def lines(self, name: str | None = None, labels: Mapping[str, str] | None = None) -> str:
        """Cumulative counts under the upper bounds, in Prometheus's text format; under another name
        if one is given.

        What stands before the numbers is made once for each name: four of five lines of a page are
        of histograms, and it is rendered on the thread on which streams are written.
        """
        name = name or self.name
        before = self._before.get(name)
        if before is None:
            before = self._before[name] = self._lines_without_numbers(name, labels or {})
        head, buckets, count, total = before
        cumulated = list(accumulate(self.counts))
        pairs = zip(buckets, cumulated, strict=True)
        rows = "".join([f"{bucket} {number}.0\n" for bucket, number in pairs])
        return f"{head}{rows}{count} {cumulated[-1]}.0\n{total} {self.sum!r}\n"

    def _lines_without_numbers(self, name: str, labels: Mapping[str, str]) -> Before:
        """Head, buckets, count and sum."""
        told = [f'{label}="{_escaped(value)}"' for label, value in sorted(labels.items())]
        own = "{" + ",".join(told) + "}" if told else ""
        buckets = [
            f"{name}_bucket{{{','.join(sorted([*told, _bound(mark)]))}}}" for mark in self._marks
        ]
        head = f"# HELP {name} {self.help}\n# TYPE {name} histogram\n"
        return head, buckets, f"{name}_count{own}", f"{name}_sum{own}"


def _bound(mark: str) -> str:
    return f'le="{mark}"'


def _escaped(value: str) -> str:
    """A label's value between quotes."""
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
