"""A simulated run as tables for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from loadtest.metrics import SPREAD, TIMES
from loadtest.traces.offer import in_words

MOST: Final = 12
"""Tenants or classes that are shown, those with most requests."""

LEAST: Final = 0.001
"""Parts of the time in the queue below this are not named."""

Figures = Mapping[str, Any]


def tables(answer: Figures) -> Iterator[RenderableType]:
    """What ran, its latencies, and whose they are. `answer` is what `--json` prints."""
    yield _facts(answer)
    yield latencies(answer)
    yield from groups(answer)


def groups(answer: Figures) -> Iterator[RenderableType]:
    """The figures of classes and of tenants, where there are several."""
    for kind in ("class", "tenant"):
        found = answer[f"by_{kind}"]
        if len(found) > 1:
            yield _groups(kind, found)
            if len(found) > MOST:
                yield Text(f"and {len(found) - MOST} more; --json has them all")


def _facts(answer: Figures) -> Table:
    grid = Table.grid(padding=(0, 2))
    for name, says in _lines(answer):
        grid.add_row(name, says)
    return grid


def _lines(answer: Figures) -> Iterator[tuple[str, str]]:
    estimate = ", an estimate from public figures" if answer["estimate"] else ""
    params = "".join(f" {name}={value}" for name, value in answer["params"].items())
    yield "policy", f"{answer['policy']}{params}"
    yield "trace", f"{in_words(answer)}, seed {answer['seed']}"
    yield "steps", f"{answer['profile']}{estimate}"
    yield "pool", f"{answer['pool_tokens']:,} tokens"
    ended = f"{answer['completed']:,} completed, {answer['shed']:,} shed"
    yield "requests", f"{answer['requests']:,} in {answer['duration_s']:,.0f} s: {ended}"
    yield "output", f"{answer['output_tok_s']:,.1f} tokens/s"
    attained = f", {answer['slo_attainment']:.1%} of requests"
    yield "goodput", f"{answer['goodput_req_s']:,.3f} requests/s{attained}"
    again = f"{answer['recomputed_tokens']:,} tokens computed again"
    part = f" ({answer['recomputed_fraction'] or 0:.1%})"
    yield "preemptions", f"{answer['preemptions']:,}, {again}{part}"
    if answer["prefix_hit_rate"]:
        yield "prefix hits", f"{answer['prefix_hit_rate']:.1%} of prompt tokens"
    yield "fairness", f"{answer['jain']:.3f} (Jain's index of competing tenants)"
    if gap := answer["service_gap"]:
        yield "service gap", f"{gap:,.0f} tokens' worth between them in a minute, at most"
    if reasons := queue_reasons(answer):
        yield "queued for", reasons
    yield "bypassed", f"by {answer['max_bypass'] or 0:,} later requests at most"
    if answer["forced_admissions"]:
        yield "guard", f"{answer['forced_admissions']:,} admissions forced"
    if faults := answer["policy_faults"]:
        saved = ", ".join(f"{count} {kind}" for kind, count in faults.items())
        yield "policy faults", saved


def queue_reasons(answer: Figures) -> str:
    """What the time in the queue went into, the largest parts first; empty if nobody waited."""
    seconds_by = answer.get("queue_seconds") or {}
    total = sum(seconds_by.values())
    if not total:
        return ""
    parts = sorted(((part / total, reason) for reason, part in seconds_by.items()), reverse=True)
    return ", ".join(f"{reason} {part:.1%}" for part, reason in parts if part >= LEAST)


def latencies(answer: Figures) -> Table:
    """Mean and percentiles of every latency."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("seconds")
    for heading in SPREAD:
        table.add_column(heading, justify="right")
    for key, words in TIMES.items():
        table.add_row(words, *(seconds(answer[key][each]) for each in SPREAD))
    return table


def _groups(kind: str, groups: Mapping[str, Figures]) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column(kind)
    for heading in ("requests", "shed", "TTFT", "p99", "ITL p99", "E2E", "tokens/s"):
        table.add_column(heading, justify="right")
    largest = sorted(groups.items(), key=lambda group: -group[1]["requests"])
    for name, figures in largest[:MOST]:
        table.add_row(
            name,
            f"{figures['requests']:,}",
            f"{figures['shed']:,}",
            seconds(figures["ttft_s"]["mean"]),
            seconds(figures["ttft_s"]["p99"]),
            seconds(figures["itl_s"]["p99"]),
            seconds(figures["e2e_s"]["mean"]),
            f"{figures['output_tok_s']:,.1f}",
        )
    return table


def seconds(value: float | None) -> str:
    """Three significant digits or so."""
    if value is None:
        return ""
    return f"{value:,.1f}" if value >= 10 else f"{value:.4f}" if value < 0.1 else f"{value:.3f}"
