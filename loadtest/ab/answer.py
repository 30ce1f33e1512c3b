"""What `octavo ab --json` prints, and what its tables and reports are made of."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from loadtest.ab.comparison import Comparison, Difference
from loadtest.ab.experiment import Result
from loadtest.ab.groups import Row
from loadtest.ab.intervals import LEVEL
from loadtest.ab.verdicts import Verdict


@dataclass(frozen=True, slots=True)
class Pair:
    """An arm against the first, at a load."""

    result: Result
    arm: int
    comparison: Comparison

    @property
    def first(self) -> str:
        """The name of the first arm."""
        return self.result.experiment.arms[0].name

    @property
    def second(self) -> str:
        """The name of the arm that is compared with it."""
        return self.result.experiment.arms[self.arm].name

    @property
    def load(self) -> float | None:
        """In parts of capacity, if that is known."""
        return self.result.experiment.load

    def find(self, row: Row) -> Difference | None:
        """The difference in a row; None where nothing was measured for it."""
        return next((each for each in self.comparison.differences if each.row == row), None)

    def to_json(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "first": self.first,
            "second": self.second,
            "load": self.load,
            "blocks": asdict(self.result.blocks),
            "differences": [each.to_json() for each in self.comparison.differences],
            "requests": {n: each.to_json() for n, each in self.comparison.requests.items()},
        }


@dataclass(frozen=True, slots=True)
class Answer:
    """All comparisons. facts: what was compared, on what, with which trace, for JSON."""

    results: Sequence[Result]
    primary: Sequence[Row]
    seeds: int
    facts: dict[str, Any]
    pairs: list[Pair] = field(default_factory=list)

    @classmethod
    def of(
        cls, results: Sequence[Result], primary: Sequence[Row], seeds: int, facts: dict[str, Any]
    ) -> Answer:
        """The comparisons of each arm with the first, at each load."""
        pairs = [
            Pair(result, arm, result.comparison(arm, primary))
            for result in results
            for arm in range(1, len(result.experiment.arms))
        ]
        return cls(results, primary, seeds, facts, pairs)

    def worse(self, rows: Sequence[Row]) -> list[tuple[Pair, Difference]]:
        """The differences in these rows whose verdict is worse."""
        found = ((pair, pair.find(row)) for pair in self.pairs for row in rows)
        return [(p, each) for p, each in found if each and each.verdict is Verdict.WORSE]

    def to_json(self) -> dict[str, Any]:
        """For JSON."""
        return {
            **self.facts,
            "seeds": self.seeds,
            "level": LEVEL,
            "comparisons": [pair.to_json() for pair in self.pairs],
        }


@dataclass(frozen=True, slots=True)
class Line:
    """One arm at one load among all. differences: to the first arm; empty for the first."""

    load: float | None
    arm: str
    means: Sequence[float | None]
    differences: Sequence[Difference | None]


def overview(answer: Answer) -> Iterator[Line]:
    """Every arm at every load, by the primary rows."""
    pairs = {(id(pair.result), pair.arm): pair for pair in answer.pairs}
    for result in answer.results:
        for number, arm in enumerate(result.experiment.arms):
            pair = pairs.get((id(result), number))
            yield Line(
                result.experiment.load,
                arm.name,
                [_mean(result, number, row) for row in answer.primary],
                [pair.find(row) if pair else None for row in answer.primary],
            )


def _mean(result: Result, arm: int, row: Row) -> float | None:
    values = [each.figures.get(row, math.nan) for each in result.played[arm]]
    known = [value for value in values if not math.isnan(value)]
    return float(np.mean(known)) if known else None
