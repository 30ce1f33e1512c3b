"""A simulated run as an HTML report: latencies, whose they are, and how it went over time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from engine.simulation import Record
from loadtest.metrics import SPREAD, TIMES
from loadtest.reports import (
    Chart,
    Column,
    Origin,
    Report,
    Section,
    Table,
    Text,
    Tiles,
    cdf,
    service,
    timeline,
)
from loadtest.simulation_tables import queue_reasons
from loadtest.traces.offer import in_words

Figures = Mapping[str, Any]

MOMENTS: Final = 400
"""Points of a line over time."""

MOST: Final = 8
"""Tenants or classes with a line of their own, those with most requests."""


def page(answer: Figures, records: Sequence[Record], origin: Origin) -> Report:
    """The report. answer: what `--json` prints."""
    return Report(
        title=f"{answer['policy']} on {answer['trace']}",
        question="What would these requests have got under this policy, on this machine?",
        answer=_answer(answer),
        origin=origin,
        sections=[
            Section("At a glance", [_tiles(answer)]),
            Section("Latencies", [_latencies(answer), *_distributions(records)]),
            Section("Over time", [_queues(records), *_reasons(answer), _service(records)]),
            *(_groups(kind, answer[f"by_{kind}"]) for kind in ("class", "tenant")),
        ],
        figures=answer,
    )


def _answer(answer: Figures) -> str:
    steps = f"step times of {answer['profile']}"
    estimate = " (an estimate from public figures, not a measurement)" if answer["estimate"] else ""
    done = f"{answer['completed']:,} of {answer['requests']:,} requests completed"
    return f"{done}; {in_words(answer)}, {steps}{estimate}."


def _tiles(answer: Figures) -> Tiles:
    attained = answer["slo_attainment"]
    return Tiles(
        [
            ("Output", f"{answer['output_tok_s']:,.0f}", "tokens/s"),
            ("Goodput", f"{answer['goodput_req_s']:.3g}", "requests/s that met every promise"),
            ("SLO attainment", "" if attained is None else f"{attained:.1%}", "of all requests"),
            ("Fairness", f"{answer['jain']:.3f}", "Jain's index of competing tenants"),
            ("Preemptions", f"{answer['preemptions']:,}", _again(answer)),
            ("Shed", f"{answer['shed']:,}", "requests"),
        ]
    )


def _again(answer: Figures) -> str:
    return f"{answer['recomputed_tokens']:,} tokens computed again"


def _latencies(answer: Figures) -> Table:
    rows = [[words, *(answer[key][each] for each in SPREAD)] for key, words in TIMES.items()]
    columns = [Column("latency"), *(Column(each, by_row=True) for each in SPREAD)]
    return Table(columns, rows, row_units=["s"] * len(rows))


def _distributions(records: Sequence[Record]) -> Iterator[Chart]:
    done = [record for record in records if record.completed]
    groups = _largest(done, "slo_class")
    gaps = {
        name: np.concatenate([np.diff(np.frombuffer(each.token_times)) for each in members])
        for name, members in groups.items()
    }
    ttft = {name: [each.ttft for each in members] for name, members in groups.items()}
    yield cdf("Time to first token", ttft, log=True)
    yield cdf("Inter-token latency", gaps, log=True)


def _queues(records: Sequence[Record]) -> Chart:
    """Requests that wait for their first admission, and those that were admitted and go on."""
    arrived, admitted, ended = [], [], []
    for record in records:
        if record.admitted_at is not None and record.token_times:
            arrived.append(record.arrival.at)
            admitted.append(record.admitted_at)
            ended.append(record.token_times[-1])
    times = np.linspace(0, max(ended, default=1.0), MOMENTS)
    came, began, went = (
        np.searchsorted(np.sort(each), times) for each in (arrived, admitted, ended)
    )
    lines = {"waiting": (came - began).tolist(), "running": (began - went).tolist()}
    return timeline("Requests waiting and running", times.tolist(), lines, stacked=True)


def _reasons(answer: Figures) -> Iterator[Text]:
    if reasons := queue_reasons(answer):
        yield Text(f"What kept the head of the queue out, by time that requests waited: {reasons}.")


def _service(records: Sequence[Record]) -> Chart:
    """Tokens generated for each tenant, as they came."""
    tenants = _largest(records, "tenant")
    times = {
        name: np.sort(np.concatenate([np.frombuffer(each.token_times) for each in members]))
        for name, members in tenants.items()
    }
    return service(times, title="Tokens generated for each tenant")


def _largest(records: Sequence[Record], which: str) -> dict[str, list[Record]]:
    """The records of the largest groups, by name."""
    groups: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        groups[getattr(record.arrival, which)].append(record)
    return dict(sorted(groups.items(), key=lambda group: -len(group[1]))[:MOST])


def _groups(kind: str, groups: Mapping[str, Figures]) -> Section:
    columns = [
        Column(kind),
        Column("requests"),
        Column("shed"),
        Column("TTFT mean", "s"),
        Column("TTFT p95", "s"),
        Column("TTFT p99", "s"),
        Column("ITL p99", "s"),
        Column("E2E mean", "s"),
        Column("output", "tokens/s"),
        Column("SLO attainment", "ratio"),
        Column("preemptions"),
        Column("most bypassed by"),
    ]
    largest = sorted(groups.items(), key=lambda group: -group[1]["requests"])
    rows = [
        [
            name,
            each["requests"],
            each["shed"],
            each["ttft_s"]["mean"],
            each["ttft_s"]["p95"],
            each["ttft_s"]["p99"],
            each["itl_s"]["p99"],
            each["e2e_s"]["mean"],
            each["output_tok_s"],
            each["slo_attainment"],
            each["preemptions"],
            each["max_bypass"],
        ]
        for name, each in largest
    ]
    return Section(f"By {kind}", [Table(columns, rows)])
