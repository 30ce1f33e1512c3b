"""A run against a server as an HTML report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from engine.simulation import Record
from loadtest.live.records import LiveRun
from loadtest.metrics import TIMES
from loadtest.reports import (
    Axis,
    Chart,
    Column,
    Origin,
    Report,
    Section,
    Series,
    Table,
    Text,
    Tiles,
    cdf,
    histogram,
    service,
    timeline,
)
from loadtest.reports.numbers import scale_of, written

LEAST_LAG_S: Final = 0.001
"""Less is not worth a line."""

MOST_LAG: Final = 0.05
"""Of the median time to the first token: a client that lags more is said to."""

MOST_TENANTS: Final = 7
"""Lines that a chart has colours for."""

Figures = Mapping[str, Any]


def page(run: LiveRun, figures: Figures, origin: Origin, title: str, question: str) -> Report:
    """The report of a run; `figures` are those of `live.report`."""
    return Report(title, question, origin, parts(run, figures), figures=figures)


def parts(run: LiveRun, figures: Figures) -> list[Section]:
    """The sections of the report of a run, the overview first."""
    records = run.records()
    completed = [record for record in records if record.completed]
    sections = [
        Section("At a glance", [tiles(figures), *_warnings(figures), latencies(figures)]),
        Section("Distributions", list(_distributions(run, figures, completed)), _COUNTED),
        Section("Over time", list(_over_time(run, records))),
        Section("Whose they are", list(_groups(figures, completed))),
    ]
    if figures["errors"]:
        rows = [[code, count] for code, count in figures["errors"].items()]
        errors = Table([Column("code"), Column("requests")], rows)
        sections.insert(1, Section("Errors", [errors]))
    return sections


_COUNTED: Final = (
    "Counted from when a request was due, and over requests that got all their tokens; gaps between"
    " tokens are pooled over all of them."
)


def tiles(figures: Figures) -> Tiles:
    """The figures that one looks for first."""
    ttft, itl = figures["ttft_s"], figures["itl_s"]
    wrong = f"{figures['refused']:,} refused"
    return Tiles(
        [
            ("requests", f"{figures['requests']:,}", f"in {figures['duration_s']:,.0f} s"),
            ("failed", f"{figures['failed']:,}", wrong),
            ("output", written(figures["output_tok_s"]), "tokens a second"),
            ("TTFT p50", _seconds(ttft["p50"]), f"p99 {_seconds(ttft['p99'])}"),
            ("ITL p50", _seconds(itl["p50"]), f"p99 {_seconds(itl['p99'])}"),
        ]
    )


def latencies(figures: Figures) -> Table:
    """Every latency; from when a request was due, and from when it was sent where that differs."""
    names = ("mean", "p50", "p99")
    rows: list[list[str | float | None]] = [
        [words, *(figures[key][name] for name in names)] for key, words in TIMES.items()
    ]
    if _lagged(figures):
        rows += [
            [f"{TIMES[key]}, since it was sent", *(values[name] for name in names)]
            for key, values in figures["since_sent"].items()
        ]
        rows.append(["lag of the client", *(figures["lag_s"][name] for name in names)])
    columns = [Column("latency"), *(Column(name, by_row=True) for name in names)]
    return Table(columns, rows, row_units=["s"] * len(rows))


def _lagged(figures: Figures) -> bool:
    """Whether it makes a difference from when latencies are counted. Users who ask when they please
    are never late."""
    lag = figures["lag_s"]["p99"]
    return lag is not None and lag >= LEAST_LAG_S


def _warnings(figures: Figures) -> Iterator[Text]:
    lag, ttft = figures["lag_s"]["p99"], figures["ttft_s"]["p50"]
    if lag is not None and ttft is not None and lag > MOST_LAG * ttft:
        yield Text(
            f"The client was late: one request in a hundred was sent {_seconds(lag)} after it was"
            f" due or later, beside a median time to the first token of {_seconds(ttft)}. That lag"
            " is in the latencies since a request was due; use another machine for the client, or"
            " a lower rate."
        )


def _distributions(run: LiveRun, figures: Figures, completed: Sequence[Record]) -> Iterator[Any]:
    ttft = {"since due": [record.ttft for record in completed]}
    if _lagged(figures):
        sent = run.records(since_sent=True)
        ttft["since sent"] = [record.ttft for record in sent if record.completed]
    gaps = [np.diff(np.frombuffer(record.token_times)) for record in completed]
    pooled = np.concatenate(gaps) if gaps else np.empty(0)
    yield cdf("Time to first token", ttft, log=True)
    yield cdf("End to end", {"since due": [record.e2e for record in completed]}, log=True)
    yield histogram("Inter-token latency", {"gaps": pooled})
    tpot = [record.tpot for record in completed if len(record.token_times) > 1]
    yield histogram("Time per output token", {"requests": tpot})


def _over_time(run: LiveRun, records: Sequence[Record]) -> Iterator[Any]:
    at = [look.at for look in run.looks]
    if at:
        lines = {
            "running": [look.running for look in run.looks],
            "waiting": [look.waiting for look in run.looks],
        }
        yield timeline("Requests at the server", at, lines, y=Axis("requests"), stacked=True)
        held = {"held": [look.kv_usage for look in run.looks]}
        yield timeline("KV blocks held", at, held, y=Axis("share of the pool", "ratio", most=1.0))
    first = [(record.arrival.at, record.ttft) for record in records if record.token_times]
    if first:
        due, ttft = zip(*first, strict=True)
        yield Chart(
            "Time to first token of each request",
            Axis("when it was due", "s"),
            Axis("TTFT", "s"),
            [Series("request", due, ttft, "points")],
            wide=True,
        )


def _groups(figures: Figures, completed: Sequence[Record]) -> Iterator[Any]:
    for kind in ("class", "tenant"):
        groups = figures[f"by_{kind}"]
        yield Table(
            [
                Column(kind),
                Column("requests"),
                Column("errors"),
                Column("TTFT p50", "s"),
                Column("TTFT p99", "s"),
                Column("ITL p99", "s"),
                Column("E2E mean", "s"),
                Column("tokens/s"),
                Column("goodput, requests/s"),
            ],
            [_group(name, group) for name, group in groups.items()],
        )
    tenants: dict[str, list[float]] = {}
    for record in completed:
        tenants.setdefault(record.arrival.tenant, []).extend(record.token_times)
    largest = sorted(tenants.items(), key=lambda item: (-len(item[1]), item[0]))[:MOST_TENANTS]
    if len(largest) > 1:
        yield service({name: sorted(times) for name, times in largest}, unit="output tokens")


def _group(name: str, figures: Figures) -> list[str | float | None]:
    return [
        name,
        figures["requests"],
        figures["shed"],
        figures["ttft_s"]["p50"],
        figures["ttft_s"]["p99"],
        figures["itl_s"]["p99"],
        figures["e2e_s"]["mean"],
        figures["output_tok_s"],
        figures["goodput_req_s"],
    ]


def _seconds(value: float | None) -> str:
    """A time with its unit."""
    if value is None:
        return written(None)
    scale = scale_of("s", [value])
    return f"{written(value, scale)} {scale.suffix}"
