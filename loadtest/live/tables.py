"""A run against a server as tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich import box
from rich.console import RenderableType
from rich.table import Table

from loadtest.simulation_tables import groups, latencies, seconds

Figures = Mapping[str, Any]


def tables(figures: Figures) -> Iterator[RenderableType]:
    """What happened, latencies, and whose they are; `figures` are those of `live.report`."""
    yield _facts(figures)
    yield latencies(figures)
    if figures["errors"]:
        yield _errors(figures["errors"])
    yield from groups(figures)


def _facts(figures: Figures) -> Table:
    grid = Table.grid(padding=(0, 2))
    ended = f"{figures['completed']:,} completed, {figures['failed']:,} failed"
    duration = f"{figures['duration_s']:,.0f} s"
    grid.add_row("server", f"{figures['url']}, {figures['model']}")
    grid.add_row(
        "requests",
        f"{figures['requests']:,} in {duration}: {ended}, {figures['refused']:,} refused",
    )
    grid.add_row("output", f"{figures['output_tok_s']:,.1f} tokens/s")
    grid.add_row("goodput", f"{figures['goodput_req_s']:,.3f} requests/s")
    sent, lag = figures["since_sent"]["ttft_s"], figures["lag_s"]
    since = f"p50 {seconds(sent['p50'])}, p99 {seconds(sent['p99'])}"
    grid.add_row("TTFT since sent", since)
    late = f"p50 {seconds(lag['p50'])}, p99 {seconds(lag['p99'])}, most {seconds(lag['most'])}"
    grid.add_row("client's lag", late)
    return grid


def _errors(errors: Mapping[str, int]) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("error")
    table.add_column("requests", justify="right")
    for code, count in errors.items():
        table.add_row(code, f"{count:,}")
    return table
