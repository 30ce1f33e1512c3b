"""Tables of a report: numbers on the right, intervals, verdicts that are read without colours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from html import escape
from typing import Final

from loadtest.reports.data import DataBlock
from loadtest.reports.numbers import NONE, Scale, scale_of, written


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate between its bounds, in the unit of its column; None: it has no bounds."""

    estimate: float
    low: float | None = None
    high: float | None = None


class Verdict(Enum):
    """What a comparison says of a metric. Each has a sign of its own beside its colour."""

    BETTER = "better"
    WORSE = "worse"
    NO_DIFFERENCE = "no difference shown"
    PASSED = "passed"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Word:
    """A verdict in other words, such as "22% faster"."""

    verdict: Verdict
    words: str


Cell = str | int | float | None | Interval | Verdict | Word

_SIGNS: Final = {
    Verdict.BETTER: ("good", "▲"),
    Verdict.WORSE: ("bad", "▼"),
    Verdict.NO_DIFFERENCE: ("even", "≈"),
    Verdict.PASSED: ("good", "✓"),
    Verdict.FAILED: ("bad", "✗"),
}


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its heading; the unit of its numbers ("s", "ratio", "tokens/s", …; seconds and
    shares are written in what suits them); whether numbers have a sign, as differences do; and
    whether each row has a unit of its own, given in the table's `row_units`."""

    heading: str
    unit: str = ""
    signed: bool = False
    by_row: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under columns; the first cell of a row is its name.

    row_units: the unit of each row's numbers, for columns that are `by_row`. note: what stands
    below. Raises ValueError where a row has another number of cells than there are columns.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    title: str = ""
    note: str = ""
    row_units: Sequence[str] = ()

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"{len(row)} cells under {len(self.columns)} columns: {row[:1]}")
        if self.row_units and len(self.row_units) != len(self.rows):
            raise ValueError(f"{len(self.row_units)} units for {len(self.rows)} rows")

    def html(self, data: DataBlock) -> str:
        """The table as it stands in a report; it needs no script."""
        head = "".join(self._heading(place) for place in range(len(self.columns)))
        body = "".join(self._row(place) for place in range(len(self.rows)))
        title = f"<h3>{escape(self.title)}</h3>" if self.title else ""
        note = f'<p class="note">{escape(self.note)}</p>' if self.note else ""
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        return f'<div class="table wide">{title}<div class="scroll">{table}</div>{note}</div>'

    def _heading(self, place: int) -> str:
        column = self.columns[place]
        suffix = "" if column.by_row else _suffix(self._column_scale(place), column)
        unit = f' <span class="unit">{escape(suffix)}</span>' if suffix else ""
        aligned = ' class="n"' if self._numeric(place) else ""
        return f'<th scope="col"{aligned}>{escape(column.heading)}{unit}</th>'

    def _row(self, number: int) -> str:
        cells = []
        for place, (column, cell) in enumerate(zip(self.columns, self.rows[number], strict=True)):
            scale = self._row_scale(number) if column.by_row else self._column_scale(place)
            text, kind = _cell(cell, scale, column)
            if place == 0:
                cells.append(f'<th scope="row">{text}</th>')
            else:
                style = kind or ("n" if self._numeric(place) else "")
                cells.append(f'<td class="{style}">{text}</td>' if style else f"<td>{text}</td>")
        return f"<tr>{''.join(cells)}</tr>"

    def _numeric(self, place: int) -> bool:
        return any(isinstance(row[place], (int, float, Interval)) for row in self.rows)

    def _column_scale(self, place: int) -> Scale:
        numbers = (row[place] for row in self.rows)
        return scale_of(self.columns[place].unit, _numbers(numbers))

    def _row_scale(self, number: int) -> Scale:
        cells = (
            cell
            for column, cell in zip(self.columns, self.rows[number], strict=True)
            if column.by_row
        )
        unit = self.row_units[number] if self.row_units else ""
        return scale_of(unit, _numbers(cells))


def decision_table(
    rows: Sequence[tuple[str, str, Cell, Cell, Cell, Cell]],
    arms: tuple[str, str] = ("A", "B"),
    *,
    title: str = "",
    note: str = "",
    difference: str = "difference",
) -> Table:
    """A table to decide by: a row a metric, as (metric, unit, A, B, difference, verdict).

    Each row's numbers are in its own unit; the difference is an Interval where it has one.
    """
    columns = (
        Column("metric"),
        Column(arms[0], by_row=True),
        Column(arms[1], by_row=True),
        Column(difference, signed=True, by_row=True),
        Column("verdict"),
    )
    cells = [(metric, a, b, apart, verdict) for metric, _, a, b, apart, verdict in rows]
    return Table(columns, cells, title, note, [unit for _, unit, *_ in rows])


def _numbers(cells: Iterator[Cell]) -> Iterator[float]:
    for cell in cells:
        if isinstance(cell, Interval):
            found = (cell.estimate, cell.low, cell.high)
            yield from (each for each in found if each is not None)
        elif isinstance(cell, (int, float)):
            yield cell


def _suffix(scale: Scale, column: Column) -> str:
    """The unit as it is written: two shares in percent differ by so many points."""
    return "points" if scale.suffix == "%" and column.signed else scale.suffix


def _cell(cell: Cell, scale: Scale, column: Column) -> tuple[str, str]:
    """The text of a cell as HTML, and a class for it."""
    if isinstance(cell, (Verdict, Word)):
        verdict = cell.verdict if isinstance(cell, Word) else cell
        words = cell.words if isinstance(cell, Word) else cell.value
        kind, sign = _SIGNS[verdict]
        return f'<span aria-hidden="true">{sign}</span> {escape(words)}', f"verdict {kind}"
    if isinstance(cell, str):
        return escape(cell), ""
    estimate = cell.estimate if isinstance(cell, Interval) else cell
    text = written(estimate, scale, signed=column.signed)
    suffix = _suffix(scale, column)
    if column.by_row and suffix and text != NONE:
        text += f' <span class="unit">{escape(suffix)}</span>'
    return text + (_bounds(cell, scale, column) if isinstance(cell, Interval) else ""), ""


def _bounds(cell: Interval, scale: Scale, column: Column) -> str:
    if cell.low is None or cell.high is None:
        return ""
    low, high = (written(each, scale, signed=column.signed) for each in (cell.low, cell.high))
    return f'<span class="bounds">{low} … {high}</span>'
