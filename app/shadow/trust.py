"""Whether scores are to be believed: by how well the policy in charge was predicted.

What is in charge is scored as all others are, and what it really did is known. The error that is
stated for a window is said before the window is looked at. It is the largest of

  - what the simulation says of itself: how far a measure moves if steps take 5 % more or less, by
    which a cost model may be off before anybody notices (`engine.cost.Epochs`), and twice the
    standard deviation of one live run beside the mean of the simulated ones; for the 99th
    percentile also what the buckets it is counted in may be off by;
  - what the windows before came to: the conformal quantile of their errors, the ⌈(n + 1)·level⌉-th
    smallest of n (Vovk, Gammerman and Shafer, "Algorithmic learning in a random world", 2005), and
    the largest of them while n is too small for that.

Scores are trusted if the error was within what was stated and both are within a limit, so that a
model which is always wrong is not believed for being so reliably.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from app.experiment.gaps import GROWTH

JUDGED: Final = ("ttft_s", "itl_p99_s")
"""Measures whose errors decide."""

KEPT: Final = 40
"""Windows whose errors are remembered."""

RESOLUTION: Final[Mapping[str, float]] = MappingProxyType({"itl_p99_s": GROWTH - 1})
"""Relative error of measures that are counted in buckets."""

COST_DOUBT: Final = 0.05
"""Relative error of the cost model that nobody would notice."""


@dataclass(frozen=True, slots=True)
class Error:
    """What was predicted of a measure, what it really was, and the relative error that was stated
    before."""

    measure: str
    predicted: float
    real: float
    stated: float

    @property
    def error(self) -> float:
        """Relative to what it really was."""
        if self.real:
            return self.predicted / self.real - 1
        return math.inf if self.predicted else 0.0

    @property
    def within(self) -> bool:
        """Whether it was no larger than stated."""
        return abs(self.error) <= self.stated

    def facts(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "predicted": self.predicted,
            "real": self.real,
            "error": self.error,
            "stated": self.stated,
            "within": self.within,
        }


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the scores of a window are to be trusted, and why not; the errors of those that
    decide."""

    errors: tuple[Error, ...]
    doubts: tuple[str, ...]

    @property
    def trusted(self) -> bool:
        return not self.doubts


class Trust:
    """Remembers how wrong predictions were. level: share of them that is to be within what was
    stated; limit: largest relative error that is trusted."""

    def __init__(self, level: float, limit: float) -> None:
        self._level = level
        self._limit = limit
        self._errors = {measure: deque[float](maxlen=KEPT) for measure in JUDGED}

    def judge(
        self,
        predicted: Mapping[str, float | None],
        real: Mapping[str, float | None],
        own: Mapping[str, float],
        bias: Mapping[str, float],
    ) -> Verdict:
        """Judge a window, and remember its errors. own: what the simulation says of its errors.
        bias: by kind of step, what they took over what the cost model had said, less one."""
        errors: list[Error] = []
        doubts: list[str] = []
        for measure in JUDGED:
            said, was = predicted.get(measure), real.get(measure)
            if said is None or was is None:
                doubts.append(f"{measure}: nothing to compare")
                continue
            error = Error(measure, said, was, self.stated(measure, own.get(measure, 0.0)))
            self._errors[measure].append(abs(error.error))
            errors.append(error)
            doubts += self._doubts(error)
        doubts += [
            f"{kind} steps took {_more(share)} than the cost model says"
            for kind, share in bias.items()
            if abs(share) > self._limit
        ]
        return Verdict(tuple(errors), tuple(doubts))

    def stated(self, measure: str, own: float) -> float:
        """The relative error that is stated for the next window."""
        errors = sorted(self._errors[measure])
        own += RESOLUTION.get(measure, 0.0)
        if not errors:
            return own
        place = math.ceil((len(errors) + 1) * self._level)
        return max(own, errors[min(place, len(errors)) - 1])

    def _doubts(self, error: Error) -> Iterator[str]:
        if not error.within or abs(error.error) > self._limit:
            words = f"{error.measure}: predicted {_told(error.predicted)}, really"
            words += f" {_told(error.real)}: off by {abs(error.error):.0%}"
            if not error.within:
                yield f"{words}, stated error {error.stated:.0%}"
            else:
                yield f"{words}, more than the {self._limit:.0%} that are trusted"
        elif error.stated > self._limit:
            yield (
                f"{error.measure}: may be off by {error.stated:.0%}, more than the"
                f" {self._limit:.0%} that are trusted"
            )


def own_error(mean: float, slower: float, faster: float, spread: float, seeds: int) -> float:
    """What a simulation says of its own relative error.

    mean, spread: of `seeds` simulations. slower, faster: what they come to where steps take
    COST_DOUBT more, and less.
    """
    if mean <= 0:
        return math.inf
    moved = max(abs(slower - mean), abs(faster - mean))
    return (moved + 2 * spread * math.sqrt(1 + 1 / seeds)) / mean


def _told(seconds: float) -> str:
    return f"{seconds:.3g} s"


def _more(share: float) -> str:
    return f"{abs(share):.0%} {'more' if share > 0 else 'less'}"
