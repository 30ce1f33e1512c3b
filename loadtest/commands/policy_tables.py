"""Compare policies on published traces, in virtual time."""

from __future__ import annotations

from pathlib import Path

import click
import orjson
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from loadtest.policy_tables import EXPERIMENTS, Experiment, Row, markdown
from loadtest.traces import Arrival, TraceError, read_arrivals


@click.command("policy-tables")
@click.argument(
    "traces", type=click.Path(exists=True, file_okay=False, path_type=Path), metavar="DIR"
)
@click.option(
    "--only",
    multiple=True,
    type=click.Choice(sorted(EXPERIMENTS)),
    help="An experiment; may be repeated.  [default: all]",
)
@click.option(
    "--requests",
    default=3_000,
    type=click.IntRange(2),
    show_default=True,
    help="How many requests of each trace, the first ones.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of Markdown.")
def policy_tables(traces: Path, only: tuple[str, ...], requests: int, as_json: bool) -> None:
    """Run the comparisons of the documentation: each policy where it matters.

    DIR holds the traces, plain or gzipped, under these names. Takes a few minutes.

    \b
      azure2023_conv_first40min.csv.gz  github.com/Azure/AzurePublicDataset: the first
                                        rows of AzureLLMInferenceTrace_conv.csv
      vtc_arena_10min.csv.gz            github.com/Ying1123/VTC-artifact: its requests
                                        of the Chatbot Arena over 600 s, as tenant CSV
                                        (octavo sim --help says which columns)

    \b
    Examples:
      octavo policy-tables traces/arrivals
      octavo policy-tables traces/arrivals --only slo --requests 1000 --json
    """
    chosen = only or tuple(EXPERIMENTS)
    files = {traces / EXPERIMENTS[name].trace for name in chosen}
    if missing := sorted(file.name for file in files if not file.is_file()):
        words = (
            f"{' and '.join(missing)} must be there; octavo policy-tables --help says what that is"
        )
        raise TraceError(f"{traces}: {words}")
    read = {name: read_arrivals(traces / EXPERIMENTS[name].trace)[:requests] for name in chosen}
    answers = {name: _run(EXPERIMENTS[name], read[name]) for name in chosen}
    if as_json:
        click.echo(orjson.dumps(answers, option=orjson.OPT_INDENT_2))
        return
    for name, rows in answers.items():
        experiment, number = EXPERIMENTS[name], len(read[name])
        head = f"{experiment.title}\n\n{experiment.setting}; {number:,} requests."
        click.echo(f"{head}\n\n{markdown(rows)}\n")


def _run(experiment: Experiment, arrivals: list[Arrival]) -> list[Row]:
    """All rows, with a bar on stderr if that is a terminal."""
    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
    disable = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=disable) as progress:
        task = progress.add_task(experiment.title, total=experiment.runs)
        rows: list[Row] = []
        for row in experiment.run(arrivals):
            rows.append(row)
            progress.advance(task)
    return rows
