"""A load test as an HTML report: what users saw, whether the server agrees, and how it fared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from loadtest.live.page import Figures, parts
from loadtest.live.records import LiveRun
from loadtest.live.server_metrics import Look
from loadtest.load.comparison import Pair, agree
from loadtest.reports import Axis, Column, Origin, Report, Section, Table, Verdict, Word, timeline
from loadtest.reports.tables import Cell

MEBI: Final = 2**20

_WHY: Final = (
    "The server counts from a request's arrival to the step that made a token, clients from sending"
    " to reading: connection, parsing, frames and the clients' own turn on the processor are in"
    " their numbers alone. Locust rounds percentiles to two digits; that and the width of a bucket"
    " are allowed for beyond 5%."
)


_GROWTH: Final = (
    "Memory of the KV cache is taken when a block is first used, so it grows until every block was."
    " What goes on growing under an even load may leak."
)


def page(
    run: LiveRun, figures: Figures, pairs: Sequence[Pair], origin: Origin, title: str
) -> Report:
    """The report of a load test; `figures` are those of `live.report`."""
    overview, *rest = parts(run, figures)
    told = "agree" if agree(pairs) else "do not agree"
    return Report(
        title,
        "Does the server bear this load, and do the users' numbers agree with its own?",
        origin,
        [
            overview,
            Section("Locust and the server", [agreement(pairs)], _WHY),
            *rest,
            Section("The server itself", [resources(run.looks), *_resource_charts(run.looks)]),
        ],
        answer=f"{figures['failed'] + figures['refused']:,} of {figures['requests']:,} requests"
        f" failed; Locust's numbers and the server's {told}.",
        figures=figures,
    )


def agreement(pairs: Sequence[Pair]) -> Table:
    """Every number from both sides."""
    columns = [
        Column("latency"),
        Column("figure"),
        Column("Locust", by_row=True),
        Column("server", by_row=True),
        Column("apart", "ratio", signed=True),
        Column("verdict"),
    ]
    rows: list[list[Cell]] = [
        [pair.name, pair.figure, pair.client, pair.server, pair.apart, _verdict(pair)]
        for pair in pairs
    ]
    units = ["" if pair.figure == "count" else "s" for pair in pairs]
    return Table(columns, rows, row_units=units)


def _verdict(pair: Pair) -> Word:
    return Word(Verdict.PASSED, "agrees") if pair.agrees else Word(Verdict.FAILED, "apart")


def resources(looks: Sequence[Look]) -> Table:
    """What the server held early on, late, and when everybody had left.

    Early and late are medians: of the second fifth of the looks, and of the last fifth.
    """
    columns = [Column("what"), *(Column(name) for name in ("early", "late", "at the end", "most"))]
    kinds = (
        ("memory, MiB", "memory_bytes", MEBI),
        ("open files", "open_files", 1),
        ("KV blocks held, %", "kv_usage", 0.01),
        ("requests running", "running", 1),
        ("requests waiting", "waiting", 1),
    )
    rows: list[list[str | float | None]] = [
        [words, *_stages(looks, name, unit)] for words, name, unit in kinds
    ]
    return Table(columns, rows, note=_GROWTH)


def _stages(looks: Sequence[Look], name: str, unit: float) -> list[float | None]:
    values = [value / unit for look in looks if (value := getattr(look, name)) is not None]
    if len(values) < 5:
        return [None] * 4
    fifth = len(values) // 5
    early, late = values[fifth : 2 * fifth], values[-fifth - 1 : -1]
    return [float(np.median(early)), float(np.median(late)), values[-1], max(values)]


def _resource_charts(looks: Sequence[Look]) -> list[Any]:
    at = [look.at for look in looks]
    memory = [None if look.memory_bytes is None else look.memory_bytes / MEBI for look in looks]
    files = [look.open_files for look in looks]
    charts = (
        ("Memory of the server", {"resident": memory}, Axis("memory", "MiB")),
        ("Open files of the server", {"files": files}, Axis("open files")),
    )
    return [
        timeline(title, at, lines, y=axis)
        for title, lines, axis in charts
        if any(value is not None for value in next(iter(lines.values())))
    ]
