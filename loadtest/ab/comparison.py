"""Two arms over the same seeds: each figure's difference, with interval, verdict and power."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from loadtest.ab.groups import ALL, Row
from loadtest.ab.intervals import FEWEST, Estimate, Floats, estimate
from loadtest.ab.pairs import Paired, paired
from loadtest.ab.played import Played
from loadtest.ab.power import EFFECT, seeds_needed
from loadtest.ab.verdicts import Verdict, benjamini_hochberg, holm, verdict


@dataclass(frozen=True, slots=True)
class Difference:
    """One figure in both arms.

    first, second: means over seeds. estimate: of second minus first. primary: whether the verdict
    is by the correction for primary metrics. needed: seeds that would show a difference of EFFECT
    of the first arm's figure; None for more than anybody waits for, and where the figure is zero.
    """

    row: Row
    first: float
    second: float
    estimate: Estimate
    primary: bool
    verdict: Verdict
    needed: int | None

    @property
    def relative(self) -> float | None:
        """The difference as a part of the first arm's figure; None where that is zero."""
        return self.estimate.mean / abs(self.first) if self.first else None

    def to_json(self) -> dict[str, Any]:
        """For JSON."""
        found = self.estimate
        return {
            "metric": self.row.metric,
            "of": self.row.group.kind,
            "name": self.row.group.name,
            "primary": self.primary,
            "first": self.first,
            "second": self.second,
            "difference": found.mean,
            "low": found.low,
            "high": found.high,
            "relative": self.relative,
            "p": found.p,
            "verdict": self.verdict.value,
            "seeds": found.seeds,
            "spread": found.spread,
            "seeds_for_5_percent": self.needed,
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    """All differences of two arms, primary ones first, and their requests pair by pair."""

    differences: Sequence[Difference]
    requests: dict[str, Paired]

    @property
    def primary(self) -> list[Difference]:
        """What the comparison is about."""
        return [each for each in self.differences if each.primary]

    @property
    def others(self) -> list[Difference]:
        """Everything else that was measured."""
        return [each for each in self.differences if not each.primary]


def compare(
    first: Sequence[Played], second: Sequence[Played], primary: Sequence[Row]
) -> Comparison:
    """Compare two arms; one item a seed, in the same order.

    Rows that one of the arms has in no seed are left out; a seed counts for a row that both have.
    """
    rows = _rows(first, second, primary)
    columns = [(_column(first, row), _column(second, row)) for row in rows]
    found = [estimate(_known(b - a)) for a, b in columns]
    main = [row in primary for row in rows]
    shown = _shown([each.p for each in found], main)
    differences = [
        _difference(row, *both, each, is_primary, is_shown)
        for row, both, each, is_primary, is_shown in zip(
            rows, columns, found, main, shown, strict=True
        )
    ]
    requests = paired([each.requests for each in first], [each.requests for each in second])
    return Comparison(differences, requests)


def _rows(first: Sequence[Played], second: Sequence[Played], primary: Sequence[Row]) -> list[Row]:
    """The primary ones as they were asked for, then those of all requests, then of groups."""
    both = _measured(first) & _measured(second)
    others = sorted((row for row in both if row not in primary), key=_place)
    return [*(row for row in primary if row in both), *others]


def _measured(played: Iterable[Played]) -> set[Row]:
    return {row for each in played for row in each.figures}


def _place(row: Row) -> tuple[bool, str, str, str]:
    return row.group != ALL, row.group.kind, row.group.name, row.metric


def _column(played: Sequence[Played], row: Row) -> Floats:
    return np.array([each.figures.get(row, math.nan) for each in played], np.float64)


def _known(column: Floats) -> Floats:
    return column[~np.isnan(column)]


def _shown(ps: Sequence[float], main: Sequence[bool]) -> list[bool]:
    """Which differences are shown, by the correction of each family."""
    first = iter(holm([p for p, own in zip(ps, main, strict=True) if own]))
    others = iter(benjamini_hochberg([p for p, own in zip(ps, main, strict=True) if not own]))
    return [next(first) if own else next(others) for own in main]


def _difference(
    row: Row, a: Floats, b: Floats, found: Estimate, is_primary: bool, is_shown: bool
) -> Difference:
    both = ~np.isnan(a) & ~np.isnan(b)
    first, second = (float(each[both].mean()) if both.any() else math.nan for each in (a, b))
    return Difference(
        row=row,
        first=first,
        second=second,
        estimate=found,
        primary=is_primary,
        verdict=verdict(found.mean, is_shown, row.about.better),
        needed=seeds_needed(found.spread, EFFECT * first) if found.seeds >= FEWEST else None,
    )
