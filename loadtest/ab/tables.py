"""Comparisons as tables: for a terminal, and as Markdown for documents."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from loadtest.ab.answer import Answer, Pair, overview
from loadtest.ab.comparison import Difference
from loadtest.ab.intervals import Estimate
from loadtest.ab.pairs import Paired
from loadtest.ab.power import EFFECT, MOST, POWER
from loadtest.ab.verdicts import Verdict

MOST_OTHERS: Final = 24
"""Differences beside the primary ones that are shown."""

_COLOURS: Final = {Verdict.BETTER: "green", Verdict.WORSE: "red", Verdict.NO_DIFFERENCE: "dim"}
_VERDICTS: Final = {**{each: each.value for each in Verdict}, Verdict.NO_DIFFERENCE: "none shown"}
_WORDS: Final = {"ttft_s": "first token", "tpot_s": "a token after it", "e2e_s": "last token"}


def tables(answer: Answer) -> Iterator[RenderableType]:
    """One comparison in full; of several, every arm beside the first."""
    yield from map(Text, _caveats(answer))
    if len(answer.pairs) > 1:
        yield _overview(answer)
        yield Text(
            "Behind each figure: its difference to the first arm's, and the interval of that."
        )
        return
    for pair in answer.pairs:
        yield _primary(pair)
        yield from _others(pair)
        yield _requests(pair.comparison.requests)
    yield Text(
        "Intervals are for 95%, one by one; verdicts are corrected for how many figures there are."
        f" Seeds: those that show a difference of {EFFECT:.0%} in {POWER:.0%} of all experiments."
    )


def markdown(answer: Answer) -> str:
    """Every arm, and its differences to the first, as a Markdown table."""
    head, *rows = _cells(answer)
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _caveats(answer: Answer) -> Iterator[str]:
    """What is to be known before any figure is read."""
    for result in answer.results:
        blocks, load = result.blocks, result.experiment.load
        if blocks.cut:
            where = "" if load is None else f" at {load:g} of capacity"
            yield (
                f"The longest busy period{where} is {blocks.busy_s:,.0f} s; for enough blocks they"
                f" are shorter than that, of {blocks.requests} requests. A longer trace is better."
            )


def _primary(pair: Pair) -> Table:
    table = _headed(pair, f"{pair.second} against {pair.first}{_at(pair.load)}")
    for each in pair.comparison.primary:
        table.add_row(*_row(each))
    return table


def _others(pair: Pair) -> Iterator[RenderableType]:
    """Those of the other figures that differ."""
    others = pair.comparison.others
    shown = [each for each in others if each.verdict is not Verdict.NO_DIFFERENCE]
    yield Text(f"{len(shown)} of {len(others)} other figures differ" + (":" if shown else "."))
    if shown:
        table = _headed(pair, None)
        for each in shown[:MOST_OTHERS]:
            table.add_row(*_row(each))
        yield table
    if len(shown) > MOST_OTHERS:
        yield Text(f"and {len(shown) - MOST_OTHERS} more; --json has them all")


def _headed(pair: Pair, title: str | None) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD,
        title=title,
        title_justify="left",
        title_style="bold",
        padding=(0, 1, 0, 0),
    )
    table.add_column("figure", overflow="fold")
    for heading in (pair.first, pair.second, "", "difference (interval)"):
        table.add_column(heading, justify="right")
    table.add_column("verdict")
    table.add_column("seeds", justify="right")
    return table


def _row(each: Difference) -> list[RenderableType]:
    found = each.estimate
    needed = f"> {MOST:,}" if each.needed is None else f"{each.needed:,}"
    return [
        str(each.row),
        number(each.first),
        number(each.second),
        "" if each.relative is None else percent(each.relative),
        f"{signed(found.mean)}{_interval(found)}",
        Text(_VERDICTS[each.verdict], style=_COLOURS[each.verdict]),
        needed if each.first else "",
    ]


def percent(relative: float) -> str:
    """A relative difference with its sign, the one of `signed`; none where it rounds to nothing."""
    text = f"{relative:+.1%}"
    return "0.0%" if text[1:] == "0.0%" else text.replace("-", "−")


def _interval(found: Estimate) -> str:
    """In brackets behind the estimate; nothing where there is none."""
    if found.low is None or found.high is None:
        return ""
    return f" ({signed(found.low)} … {signed(found.high)})"


def _requests(requests: dict[str, Paired]) -> Table:
    """How far the same requests are apart."""
    table = Table(
        box=box.SIMPLE_HEAD,
        title="The same requests, completed in both: seconds later",
        title_justify="left",
        padding=(0, 1, 0, 0),
    )
    for heading in ("", "pairs", "mean (interval)", "p10", "p50", "p90", "sooner", "later"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, each in requests.items():
        if not each.pairs:
            continue
        table.add_row(
            _WORDS[name],
            f"{each.pairs:,}",
            f"{signed(each.estimate.mean)}{_interval(each.estimate)}",
            *(signed(each.quantiles[q]) for q in ("p10", "p50", "p90")),
            f"{each.faster:.0%}",
            f"{each.slower:.0%}",
        )
    return table


def _overview(answer: Answer) -> Table:
    head, *rows = _cells(answer)
    table = Table(box=box.SIMPLE_HEAD)
    for heading in head:
        table.add_column(heading)
    for row in rows:
        table.add_row(*row)
    return table


def _cells(answer: Answer) -> Iterator[list[str]]:
    """Rows of text, the heading first; a column for the load only where there are several."""
    loads = any(each.experiment.load is not None for each in answer.results)
    yield [*(["load"] if loads else []), "arm", *map(str, answer.primary)]
    for line in overview(answer):
        figures = [
            _cell(mean, difference)
            for mean, difference in zip(line.means, line.differences, strict=True)
        ]
        yield [*([f"{line.load:g}"] if loads and line.load is not None else []), line.arm, *figures]


def _cell(mean: float | None, difference: Difference | None) -> str:
    if mean is None:
        return ""
    if difference is None:
        return number(mean)
    return f"{number(mean)}; {signed(difference.estimate.mean)}{_interval(difference.estimate)}"


def _at(load: float | None) -> str:
    return "" if load is None else f" at {load:g} of capacity"


def number(value: float) -> str:
    """Three significant digits or so."""
    size = abs(value)
    return f"{value:,.0f}" if size >= 1000 else f"{value:.3g}"


def signed(value: float) -> str:
    """The same with a sign, except for nothing."""
    return f"{'+' if value > 0 else '−' if value < 0 else ''}{number(abs(value))}"
