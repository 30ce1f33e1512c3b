"""Measure the engine on this machine."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from app.model_files import ensure_default_model
from engine.backends import int8_weight_bits
from loadtest import accuracy_table, allocation_bench, queue_bench
from loadtest.accuracy import DOMAINS, KEPT, WINDOWS, measure_accuracy
from loadtest.allocation_bench import POOL_TOKENS, PROFILE, Usage, compare, demands
from loadtest.cache_bench import (
    BLOCKS,
    REQUESTS,
    Prompt,
    conversations,
    measure_block_layer,
    read_trace,
)
from loadtest.host_bench import ROWS, Repeats, measure_host, probes_of
from loadtest.machine import cpu, versions
from loadtest.queue_bench import SHAPES, Added, built_in, growth, measure_queues


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
@click.option(
    "--trace",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Mooncake trace (.jsonl or .jsonl.gz) for the block layer, of which the first"
    f" {REQUESTS:,} rows are replayed.  [default: made-up conversations]",
)
@click.option(
    "--accuracy",
    is_flag=True,
    help="Instead, the perplexity of shipped texts with weights and KV cache in each format.",
)
@click.option(
    "--model",
    type=click.Path(exists=True, path_type=Path),
    help="GGUF file or Hugging Face folder for --accuracy.  [default: the default model]",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def bench(
    rounds: int,
    steps: int,
    waiting: tuple[int, ...],
    trace: Path | None,
    accuracy: bool,
    model: Path | None,
    as_json: bool,
) -> None:
    """Measure what the engine's own work costs, without a model.

    Scheduling, packing and hand-over at 64 rows, rows a second with the simulated backend,
    planning behind long queues, and the prefix cache, in CPU time; what waiting requests add to a
    step under every policy, in one flow, in a flow each, and behind one prefix that nobody has
    computed; and in virtual time what paging saves against reserving blocks. Needs no weights and
    takes some three minutes, most of it to make the crowds (--waiting 10000 is quicker).

    With --accuracy: the perplexity of two texts under the model, computed as prompts are served,
    with weights in float32, int8 and int8 of 7 bits, and the KV cache in each format. Takes some
    five minutes on two cores.

    \b
    Examples:
      octavo bench
      octavo bench --json --rounds 5 > before.json
      octavo bench --waiting 100000
      octavo bench --accuracy
    """
    if accuracy:
        report, tables = _accuracy(model)
    else:
        report, tables = _host(rounds, steps, waiting, _prompts(trace))
    if as_json:
        click.echo(json.dumps(report, indent=2))
    else:
        Console().print(*tables, sep="\n\n")


def _host(
    rounds: int, steps: int, waiting: tuple[int, ...], prompts: list[Prompt]
) -> tuple[dict[str, Any], list[Table]]:
    """The report, as JSON and as tables."""
    with _progress() as progress:
        policies = built_in()
        crowds = len(policies) * len(SHAPES)
        task = progress.add_task("host path", total=rounds * (probes_of(waiting) + 1) + 1 + crowds)
        figures = measure_host(Repeats(rounds, steps), waiting, lambda: progress.advance(task))
        figures["block_layer"] = measure_block_layer(
            prompts, rounds, lambda: progress.advance(task)
        )
        usages = compare(demands())
        progress.advance(task)
        queues = measure_queues(policies, waiting, steps, lambda: progress.advance(task))
    figures["queues"] = queue_bench.as_json(queues)
    figures["allocation"] = allocation_bench.report(usages)
    report = {**figures, "rounds": rounds, "steps": steps, "versions": versions(), "cpu": cpu()}
    return report, [_host_table(report), _queue_table(queues), _allocation_table(usages)]


def _accuracy(model: Path | None) -> tuple[dict[str, Any], list[Table]]:
    """The report, as JSON and as tables."""
    path = model or ensure_default_model(Path("models"), console=Console(stderr=True))
    with _progress() as progress:
        task = progress.add_task("accuracy", total=len(KEPT) * len(DOMAINS) * WINDOWS)
        try:
            scores = measure_accuracy(path, lambda: progress.advance(task), folder=Path("models"))
        except ValueError as error:
            raise click.BadParameter(f"{path}: {error}", param_hint="--model") from error
    measured = path.name, scores, int8_weight_bits(path)
    return accuracy_table.report(*measured), [accuracy_table.table(*measured)]


def _prompts(trace: Path | None) -> list[Prompt]:
    """What the block layer replays."""
    if trace is None:
        return conversations(REQUESTS)
    try:
        prompts = read_trace(trace, REQUESTS)
    except (ValueError, OSError) as error:
        raise click.BadParameter(f"{trace}: {error}", param_hint="--trace") from error
    if max(map(len, prompts)) > BLOCKS:
        raise click.BadParameter(
            f"{trace}: a prompt has more than {BLOCKS:,} blocks", param_hint="--trace"
        )
    return prompts


def _progress() -> Progress:
    """A bar on stderr, and only if that is a terminal."""
    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _caption(report: dict[str, Any]) -> str:
    processor, version = report["cpu"], report["versions"]
    machine = f"{processor['model']}, {processor['cores']} cores"
    return f"{machine}, octavo {version['octavo']}, Python {version['python']}"


def _host_table(report: dict[str, Any]) -> Table:
    table = Table(title=f"Host path at {ROWS} rows", caption=_caption(report))
    table.add_column("median of rounds, CPU time")
    table.add_column("measured", justify="right")
    table.add_column("goal", justify="right")
    table.add_row("schedule + land", _ms(report["scheduler_step_ms"]), "≤ 0.3 ms")
    table.add_row("the whole step, hand-over included", _ms(report["host_step_ms"]), "< 1 ms")
    table.add_row("rows a second, simulated", f"{report['rows_per_s']:,.0f}", "≥ 150,000")
    churn = f"{report['churn_rows_per_s']:,.0f}"
    table.add_row("rows a second, short requests coming and going", churn, "")
    for number, milliseconds in report["waiting_ms"].items():
        table.add_row(f"schedule with {int(number):,} waiting", _ms(milliseconds), "")
    layer = report["block_layer"]
    table.add_row("block layer, requests a second", f"{layer['requests_per_s']:,.0f}", "")
    table.add_row("block layer, blocks a second", f"{layer['blocks_per_s']:,.0f}", "")
    return table


def _queue_table(queues: Mapping[str, Mapping[str, Mapping[int, Added]]]) -> Table:
    """A row for each policy and shape of the crowd, a column for each number that waits."""
    table = Table(
        title=f"What waiting requests add to a step at {ROWS} rows, ms (goal: < 0.5)",
        caption="CPU time with an arrival, an end and an admission in each step, less that of FCFS"
        " with nobody else waiting",
    )
    table.add_column("policy")
    table.add_column("they wait")
    sizes = next(iter(next(iter(queues.values())).values()))
    for size in sizes:
        table.add_column(f"{size:,}", justify="right")
    table.add_column("growth", justify="right")
    for name, by_shape in queues.items():
        for shape, by_size in by_shape.items():
            cells = (f"{1e3 * added.median:.3f}" for added in by_size.values())
            table.add_row(name, shape, *cells, f"{1e3 * growth(by_size):+.3f}")
    return table


def _allocation_table(usages: Mapping[str, Usage]) -> Table:
    """One column for each allocation."""
    table = Table(
        title="KV blocks paged, and reserved for the longest answer",
        caption=f"{allocation_bench.REQUESTS} requests over {POOL_TOKENS:,} tokens of KV, "
        f"profile {PROFILE}",
    )
    table.add_column("means over virtual time")
    for name in usages:
        table.add_column(name, justify="right")
    rows: list[tuple[str, Callable[[Usage], str]]] = [
        ("requests that run at once", lambda usage: f"{usage.running:.1f}"),
        ("output tokens a second", lambda usage: f"{usage.output_tok_s:,.0f}"),
        ("held, tokens", lambda usage: f"{usage.held_tokens:,.0f}"),
        ("held and empty, tokens", lambda usage: f"{usage.waste_tokens:,.0f}"),
        ("that is of what is held", lambda usage: f"{usage.waste_fraction:.1%}"),
        ("empty, tokens a sequence", lambda usage: f"{usage.waste_per_sequence:,.1f}"),
        ("at most", lambda usage: f"{usage.most_waste_per_sequence:,}"),
        ("preemptions", lambda usage: f"{usage.preemptions:,}"),
    ]
    for name, cell in rows:
        table.add_row(name, *map(cell, usages.values()))
    return table


def _ms(milliseconds: float) -> str:
    return f"{milliseconds:.3f} ms"
