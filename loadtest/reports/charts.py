"""Charts of a report as data: axes, series and marks. The page's script draws them with uPlot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final, Literal

from loadtest.reports.data import DataBlock
from loadtest.reports.numbers import rounded

Style = Literal["line", "step", "area", "points"]

MOST_POINTS: Final = 1500
"""Of a series: more than a chart has pixels. Of what is left out the extremes stay."""


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis: what it says; its unit, as in `numbers.scale_of`; whether it is logarithmic;
    most: where it ends, if that is not for the numbers to say."""

    label: str
    unit: str = ""
    log: bool = False
    most: float | None = None


@dataclass(frozen=True, slots=True)
class Series:
    """A line, steps, a filled area under steps, or points. x ascends; None in y is a gap.

    low, high: a band around it. quiet: drawn in grey, for what is there to compare with.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float | None]
    style: Style = "line"
    low: Sequence[float | None] = ()
    high: Sequence[float | None] = ()
    quiet: bool = False

    def __post_init__(self) -> None:
        lengths = {len(self.x), len(self.y)}
        lengths |= {len(each) for each in (self.low, self.high) if len(each)}
        if len(lengths) > 1:
            raise ValueError(f"{self.name}: series of {sorted(lengths)} numbers")

    def drawn(self) -> dict[str, Any]:
        """What the script gets: thinned, and rounded."""
        kept = _thinned(self.y, MOST_POINTS)
        columns = {"x": self.x, "y": self.y, "low": self.low, "high": self.high}
        numbers = {
            name: [rounded(column[place]) for place in kept]
            for name, column in columns.items()
            if len(column)
        }
        return {"name": self.name, "style": self.style, "quiet": self.quiet, **numbers}


@dataclass(frozen=True, slots=True)
class Mark:
    """A line across a chart at a value of x or y, with a word: a target, a limit."""

    at: float
    words: str
    axis: Literal["x", "y"] = "y"


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart. stacked: series lie one upon the other, the first at the bottom. wide: it takes
    the whole width of the page. note: what stands below it."""

    title: str
    x: Axis
    y: Axis
    series: Sequence[Series]
    marks: Sequence[Mark] = ()
    stacked: bool = False
    wide: bool = False
    note: str = ""

    def html(self, data: DataBlock) -> str:
        """The figure as it stands in a report; the script fills it."""
        number = data.add(self._drawn())
        note = f'<p class="note">{escape(self.note)}</p>' if self.note else ""
        kind = "figure wide" if self.wide else "figure"
        return (
            f'<figure class="{kind}" data-chart="{number}"><figcaption>'
            f"<h3>{escape(self.title)}</h3>"
            f'<p class="legend"></p></figcaption><div class="plot" role="img"'
            f' aria-label="{escape(self._spoken(), quote=True)}"></div>{note}</figure>'
        )

    def _drawn(self) -> dict[str, Any]:
        return {
            "x": _axis(self.x),
            "y": _axis(self.y),
            "series": [each.drawn() for each in self.series],
            "marks": [[mark.axis, rounded(mark.at), mark.words] for mark in self.marks],
            "stacked": self.stacked,
        }

    def _spoken(self) -> str:
        """What who does not see the chart is told of it."""
        names = ", ".join(each.name for each in self.series)
        return f"{self.title}: {names}. {self.y.label} over {self.x.label}."


def _axis(axis: Axis) -> dict[str, Any]:
    return {"label": axis.label, "unit": axis.unit, "log": axis.log, "most": axis.most}


def _thinned(values: Sequence[float | None], most: int) -> list[int]:
    """Places to keep: all, or of each of `most` / 2 stretches the lowest and the highest."""
    count = len(values)
    if count <= most:
        return list(range(count))
    kept = {0, count - 1}
    stretches = most // 2
    for stretch in range(stretches):
        places = range(stretch * count // stretches, (stretch + 1) * count // stretches)
        known = [place for place in places if values[place] is not None]
        if known:
            kept.add(min(known, key=lambda place: values[place] or 0.0))
            kept.add(max(known, key=lambda place: values[place] or 0.0))
        else:
            kept.add(places[0])
    return sorted(kept)
