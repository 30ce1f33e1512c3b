"""What an experiment has found: every arm beside the first, over the blocks that are complete."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from app.experiment.intervals import Interval, always_valid
from app.experiment.measures import MEASURES, OF_GROUPS, Better, as_change, difference
from app.experiment.periods import Period

Values = Mapping[str, float | None]

NOTHING_SHOWN: Final = "no difference shown"
NOTHING_KNOWN: Final = "not measured"


@dataclass(frozen=True, slots=True)
class Result:
    """What a period came to: of the whole, of each class, of each tenant."""

    whole: Values
    of_class: Mapping[str, Values]
    of_tenant: Mapping[str, Values]
    seconds: float
    requests: int
    spanned: int

    @classmethod
    def of(cls, period: Period) -> Result:
        """Of a period that has settled."""
        assert period.closes is not None, "the period is not over"
        seconds = period.seconds(period.closes)
        return cls(
            period.whole.measured(seconds),
            {name: tally.measured(seconds) for name, tally in period.of_class.items()},
            {name: tally.measured(seconds) for name, tally in period.of_tenant.items()},
            seconds,
            period.requests,
            period.spanned,
        )


Block = Mapping[int, Result]
"""The results of the arms, by number."""


def effect(blocks: Sequence[Block], arm: int, measure: str, level: float) -> Interval | None:
    """Relative change of a measure under an arm against the first; None where it is unknown."""
    pairs = ((block[0].whole.get(measure), block[arm].whole.get(measure)) for block in blocks)
    return _change(pairs, level)


def _change(pairs: Iterable[tuple[float | None, float | None]], level: float) -> Interval | None:
    """Blocks in which either arm has no value say nothing."""
    values = [difference(a, b) for a, b in pairs if a is not None and b is not None]
    found = always_valid(values, level)
    if found is None:
        return None
    return Interval(as_change(found.estimate), as_change(found.low), as_change(found.high))


def verdict(measure: str, found: Interval | None) -> str:
    """better, worse, or that nothing is shown."""
    if found is None:
        return NOTHING_KNOWN
    if found.low <= 0 <= found.high:
        return NOTHING_SHOWN
    lower = found.high < 0
    return "better" if lower == (MEASURES[measure] is Better.LOWER) else "worse"


def comparison(blocks: Sequence[Block], arm: int, level: float) -> dict[str, Any]:
    """An arm against the first, as a document: all measures, and some of each class and tenant."""
    return {
        "measures": {
            measure: _told(measure, effect(blocks, arm, measure, level)) for measure in MEASURES
        },
        "by_class": _of_groups([(b[0].of_class, b[arm].of_class) for b in blocks], level),
        "by_tenant": _of_groups([(b[0].of_tenant, b[arm].of_tenant) for b in blocks], level),
    }


def _of_groups(
    blocks: Sequence[tuple[Mapping[str, Values], Mapping[str, Values]]], level: float
) -> dict[str, Any]:
    """Each group beside itself; in blocks where it was not there it says nothing."""
    names = sorted({name for pair in blocks for side in pair for name in side})
    nothing: Values = {}
    return {
        name: {
            measure: _told(
                measure,
                _change(
                    (
                        (a.get(name, nothing).get(measure), b.get(name, nothing).get(measure))
                        for a, b in blocks
                    ),
                    level,
                ),
            )
            for measure in OF_GROUPS
        }
        for name in names
    }


def _told(measure: str, found: Interval | None) -> dict[str, Any]:
    told: dict[str, Any] = {"verdict": verdict(measure, found)}
    if found is not None:
        told |= {"change": found.estimate, "low": found.low, "high": found.high}
    return told
