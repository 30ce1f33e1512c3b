"""A comparison as an HTML report: what to decide by, how sure it is, and whose requests differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from loadtest import reports
from loadtest.ab.answer import Answer, Pair
from loadtest.ab.comparison import Difference
from loadtest.ab.intervals import Floats
from loadtest.ab.power import EFFECT, MOST, POWER
from loadtest.ab.tables import percent
from loadtest.ab.verdicts import Verdict

_VERDICTS = {
    Verdict.BETTER: reports.Verdict.BETTER,
    Verdict.WORSE: reports.Verdict.WORSE,
    Verdict.NO_DIFFERENCE: reports.Verdict.NO_DIFFERENCE,
}

_CORRECTED = (
    "Intervals are for 95%, each by itself. Verdicts on these figures are by Holm's correction: if"
    " nothing differed, any of them would be given in one comparison of twenty at most."
)
_EXPLORED = (
    "All other figures, classes and tenants. By Benjamini and Hochberg's correction at most one in"
    " twenty of these verdicts is wrong, on average."
)


def report(answer: Answer, command: str) -> reports.Report:
    """The report. command: the exact one that made it."""
    names = list(dict.fromkeys([answer.pairs[0].first, *(pair.second for pair in answer.pairs)]))
    return reports.Report(
        title=" against ".join(names[::-1]),
        question="Which is better for these requests, by how much, and how sure is that?",
        origin=reports.here(command),
        sections=list(_sections(answer)),
        answer=_in_a_sentence(answer.pairs),
        figures=answer.to_json(),
    )


def _sections(answer: Answer) -> Iterator[reports.Section]:
    if len({pair.load for pair in answer.pairs}) > 1:
        yield reports.Section("Over load", [*_over_load(answer)])
    for pair in answer.pairs:
        yield _section(pair)
    yield reports.Section("How it was compared", [reports.Text(each) for each in _method(answer)])


def _section(pair: Pair) -> reports.Section:
    comparison = pair.comparison
    blocks: list[Any] = [
        _table(pair, comparison.primary, _CORRECTED),
        _power(comparison.primary),
        *_charts(pair),
    ]
    if comparison.others:
        blocks.append(_table(pair, comparison.others, _EXPLORED))
    return reports.Section(_title(pair), blocks)


def _title(pair: Pair) -> str:
    at = "" if pair.load is None else f" at {pair.load:g} of capacity"
    return f"{pair.second} against {pair.first}{at}"


def _table(pair: Pair, differences: Sequence[Difference], note: str) -> reports.Table:
    return reports.decision_table(
        [
            (
                _named(each),
                each.row.about.unit,
                each.first,
                each.second,
                reports.Interval(each.estimate.mean, each.estimate.low, each.estimate.high),
                _verdict(each),
            )
            for each in differences
        ],
        (pair.first, pair.second),
        note=note,
    )


def _named(each: Difference) -> str:
    group = each.row.group
    return f"{each.row.about.words}{f' [{group.name}]' if group.name else ''}"


def _verdict(each: Difference) -> reports.Word | reports.Verdict:
    verdict = _VERDICTS[each.verdict]
    if each.relative is None or each.verdict is Verdict.NO_DIFFERENCE:
        return verdict
    return reports.Word(verdict, f"{verdict.value}, {percent(each.relative)}")


def _power(differences: Sequence[Difference]) -> reports.Text:
    """How many seeds each figure takes."""
    needs = [
        f"{_named(each)} {f'{each.needed:,}' if each.needed else f'more than {MOST:,}'}"
        for each in differences
        if each.first
    ]
    return reports.Text(
        f"Seeds that show a difference of {EFFECT:.0%} in {POWER:.0%} of all experiments, each"
        f" figure by itself: {'; '.join(needs)}."
    )


def _charts(pair: Pair) -> Iterator[reports.Chart]:
    """Whose first token came when, and how far the same requests are apart."""
    first, second = (_pooled(pair, arm) for arm in (0, pair.arm))
    arms = {pair.first: _known(first), pair.second: _known(second)}
    yield reports.cdf("Time to first token", arms)
    apart = _known(second - first)
    yield reports.cdf(
        f"The same requests: {pair.second} minus {pair.first}",
        {"difference": apart},
        label="time to first token, difference",
        marks=[reports.Mark(0.0, "no difference", "x")],
        note="Left of zero are requests that wait less; completed in both arms.",
    )


def _pooled(pair: Pair, arm: int) -> Floats:
    return np.concatenate([each.requests["ttft_s"] for each in pair.result.played[arm]])


def _known(values: Floats) -> Floats:
    return values[~np.isnan(values)]


def _over_load(answer: Answer) -> Iterator[reports.Chart]:
    """Each primary figure of each arm, with the differences' intervals as bands."""
    loads = sorted({pair.load for pair in answer.pairs if pair.load is not None})
    seconds = list(dict.fromkeys(pair.second for pair in answer.pairs))
    at = {(pair.second, pair.load): pair for pair in answer.pairs}
    for row in answer.primary:
        found = {name: [at[name, load].find(row) for load in loads] for name in seconds}
        baseline = [each.first if each else None for each in found[seconds[0]]]
        series = [reports.Series(answer.pairs[0].first, loads, baseline, quiet=True)]
        series += [
            reports.Series(
                name,
                loads,
                [each.second if each else None for each in differences],
                low=[_end(each, each.estimate.low) if each else None for each in differences],
                high=[_end(each, each.estimate.high) if each else None for each in differences],
            )
            for name, differences in found.items()
        ]
        unit = row.about.unit
        title = f"{row.about.words}{f' [{row.group.name}]' if row.group.name else ''}"
        yield reports.Chart(
            title,
            reports.Axis("load in parts of capacity"),
            reports.Axis(title, unit),
            series,
            note="Bands: the first arm's figure and the interval of the difference to it.",
        )


def _end(each: Difference, end: float | None) -> float | None:
    return None if end is None or not np.isfinite(end) else each.first + end


def _method(answer: Answer) -> Iterator[str]:
    blocks = answer.results[0].blocks
    yield (
        f"{answer.seeds} seeds. Each is the trace in blocks of {blocks.requests} consecutive"
        f" requests drawn anew (the longest busy period is {blocks.busy_s:,.1f} s), the same for"
        " all arms, and steps scatter alike in them. Intervals are of mean differences over seeds:"
        " bootstrap-t, on neither side shorter than Student's. They are about requests like"
        " these; what other traffic would do they do not know."
    )
    if any(result.blocks.cut for result in answer.results):
        yield (
            "Blocks are shorter than the longest busy period, because the trace is too short for"
            " enough longer ones: seeds differ less than days would."
        )


def _in_a_sentence(pairs: Sequence[Pair]) -> str:
    """The verdicts on the primary figures of the one comparison; of several, none in a sentence."""
    if len(pairs) != 1:
        return ""
    parts = []
    for verdict in (Verdict.BETTER, Verdict.WORSE, Verdict.NO_DIFFERENCE):
        named = [_named(each) for each in pairs[0].comparison.primary if each.verdict is verdict]
        if named:
            parts.append(f"{verdict.value} in {'; '.join(named)}")
    return f"{pairs[0].second} beside {pairs[0].first}: {'. '.join(parts)}." if parts else ""
