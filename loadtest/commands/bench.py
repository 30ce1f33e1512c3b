"""Measure the engine on this machine."""

from __future__ import annotations

import json
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from loadtest.host_bench import ROWS, Repeats, measure_host, probes_of
from loadtest.machine import cpu, versions


@click.command()
@click.option(
    "--rounds",
    default=20,
    type=click.IntRange(1),
    show_default=True,
    help="Rounds over all measurements; figures are medians.",
)
@click.option(
    "--steps",
    default=50,
    type=click.IntRange(1),
    show_default=True,
    help="Steps of each measurement in a round.",
)
@click.option(
    "--waiting",
    multiple=True,
    type=click.IntRange(1),
    default=(100, 1_000, 10_000, 100_000),
    metavar="N",
    help="Requests that wait while a step is planned; may be repeated."
    "  [default: 100, 1000, 10000, 100000]",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def bench(rounds: int, steps: int, waiting: tuple[int, ...], as_json: bool) -> None:
    """Measure what the engine's own work costs, without a model.

    Scheduling, packing and hand-over at 64 rows, rows a second with the simulated backend, and
    planning behind long queues, in CPU time. Needs no weights and takes some twenty seconds.

    \b
    Examples:
      octavo bench
      octavo bench --json --rounds 5 > before.json
      octavo bench --waiting 100000
    """
    with _progress() as progress:
        task = progress.add_task("host path", total=rounds * probes_of(waiting))
        figures = measure_host(Repeats(rounds, steps), waiting, lambda: progress.advance(task))
    report = {**figures, "rounds": rounds, "steps": steps, "versions": versions(), "cpu": cpu()}
    if as_json:
        click.echo(json.dumps(report, indent=2))
    else:
        Console().print(_host_table(report))


def _progress() -> Progress:
    """A bar on stderr, and only if that is a terminal."""
    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _host_table(report: dict[str, Any]) -> Table:
    processor = report["cpu"]
    table = Table(
        title=f"Host path at {ROWS} rows",
        caption=f"{processor['model']}, {processor['cores']} cores, octavo "
        f"{report['versions']['octavo']}, Python {report['versions']['python']}",
    )
    table.add_column("median of rounds, CPU time")
    table.add_column("measured", justify="right")
    table.add_column("goal", justify="right")
    table.add_row("schedule + apply", _ms(report["scheduler_step_ms"]), "≤ 0.3 ms")
    table.add_row("the whole step, hand-over included", _ms(report["host_step_ms"]), "< 1 ms")
    table.add_row("rows a second, simulated", f"{report['rows_per_s']:,.0f}", "≥ 150,000")
    for number, milliseconds in report["waiting_ms"].items():
        table.add_row(f"schedule with {int(number):,} waiting", _ms(milliseconds), "")
    return table


def _ms(milliseconds: float) -> str:
    return f"{milliseconds:.3f} ms"
