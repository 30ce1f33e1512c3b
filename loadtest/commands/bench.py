"""Measure the engine on this machine."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from app.commands.options import config_options
from app.config import Config, LoadedConfig
from app.model_files import ensure_default_model
from engine.backends import int8_weight_bits
from engine.errors import ConfigurationError
from loadtest import (
    accuracy_table,
    allocation_bench,
    bench_tables,
    http_bench,
    http_tables,
    queue_bench,
    record_bench,
    speculation_bench,
    structured_bench,
)
from loadtest.accuracy import DOMAINS, KEPT, WINDOWS, measure_accuracy
from loadtest.allocation_bench import compare, demands
from loadtest.bench_tables import caption
from loadtest.cache_bench import (
    BLOCKS,
    REQUESTS,
    Prompt,
    conversations,
    measure_block_layer,
    read_trace,
)
from loadtest.calibration.job import RUN_SECONDS, RUNS_A_REPEAT, Job
from loadtest.calibration.tables import check_table
from loadtest.clients_bench import CLIENTS, measure_clients
from loadtest.host_bench import Repeats, measure_host, probes_of
from loadtest.http_bench import measure_http
from loadtest.machine import Unmeasured, cpu, versions
from loadtest.model_bench import TICKS, measure_model
from loadtest.queue_bench import SHAPES, built_in, measure_queues
from loadtest.scrape_bench import measure_scrapes
from loadtest.speculation_bench import MOST_GIVEN, measure_speculation, read_prompts, ticks
from loadtest.structured_bench import measure_structured

MODEL_ROUNDS: Final = 3
"""Rounds of what computes a model, at most."""

USUAL: Final = (
    "model",
    "clients",
    "http",
    "host",
    "queues",
    "allocation",
    "speculation",
    "structured",
    "record",
)
"""The parts that are measured if nobody says which."""


@click.command()
@config_options
@click.option(
    "--only",
    multiple=True,
    type=click.Choice([*USUAL, "prediction"]),
    help="Measure this part; may be repeated.  [default: all of them but prediction]",
)
@click.option(
    "--rounds",
    default=20,
    type=click.IntRange(1),
    show_default=True,
    help=f"Rounds over all measurements, at most {MODEL_ROUNDS} with a model; figures are medians.",
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
    "--prompts",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="More prompts for speculation: JSON lines with prompt or turns (or .gz), of which the"
    f" first {MOST_GIVEN} are answered; may be repeated.",
)
@click.option(
    "--accuracy",
    is_flag=True,
    help="Instead, the perplexity of shipped texts with weights and KV cache in each format.",
)
@click.option(
    "--model",
    type=click.Path(exists=True, path_type=Path),
    help="GGUF file or Hugging Face folder.  [default: the configured model]",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def bench(
    loaded: LoadedConfig,
    only: tuple[str, ...],
    rounds: int,
    steps: int,
    waiting: tuple[int, ...],
    trace: Path | None,
    prompts: tuple[Path, ...],
    accuracy: bool,
    model: Path | None,
    as_json: bool,
) -> None:
    """Measure how fast this machine serves, and what the engine's own work costs.

    \b
    model       prompt and output tokens a second of the engine driven directly, at 128
                tokens in and 64 out and at 2,000 in; how much of this machine that is
                (memory read, int8 products); what share of a step goes where
    clients     a step of the server while 256 clients stream, against nobody listening
    http        one-token frames a second to 256 clients, with a simulated model
    host        scheduling, packing and hand-over at 64 rows, rows a second with the
                simulated backend, planning behind long queues, the prefix cache, a scrape of
                /metrics (CPU time)
    queues      what waiting requests add to a step, under every policy
    allocation  what paging saves against reserving blocks, in virtual time
    speculation one sequence with guesses and without: where answers repeat their prompts,
                and where they do not; guesses as engine.speculation says, else ngram
    structured  guided requests beside free ones: steps, masks, and hostile schemas
    record      a step that is recorded against one that is not, and what writing takes
    prediction  steps are measured, a fresh workload is simulated, and it is run for real
                (octavo calibrate --check says more); some five minutes

    Takes some six minutes, half of it to make the crowds that wait (--waiting 10000 is quicker).
    The model is the configured one, under the configured engine. What cannot be measured is named,
    and the rest is measured.

    With --accuracy instead: the perplexity of two texts under the model, computed as prompts are
    served, with weights in float32, int8 and int8 of 7 bits, and the KV cache in each format. Takes
    some five minutes on two cores.

    \b
    Examples:
      octavo bench
      octavo bench --json --rounds 5 > before.json
      octavo bench --only model --set engine.threads=1
      octavo bench --only http
      octavo bench --only queues --waiting 100000
      octavo bench --only speculation --prompts mt_bench.jsonl
      octavo bench --accuracy
    """
    if accuracy:
        report, tables = _accuracy(model)
    else:
        parts = _Parts(
            _config(loaded, model), rounds, steps, waiting, _prompts(trace), _given(prompts)
        )
        report, tables = _measure(parts, only)
    if as_json:
        click.echo(json.dumps(report, indent=2))
    else:
        Console().print(*tables, sep="\n\n")


Figures = dict[str, Any]
Tick = Callable[[], None]


@dataclass(frozen=True, slots=True)
class _Parts:
    """What is measured, and how often. Each part gives figures, as JSON and as tables."""

    config: Config
    rounds: int
    steps: int
    waiting: tuple[int, ...]
    prompts: list[Prompt]
    given: dict[str, list[str]]

    @property
    def model_rounds(self) -> int:
        return min(self.rounds, MODEL_ROUNDS)

    def model(self, tick: Tick) -> tuple[Figures, list[Table]]:
        console = Console(stderr=True)
        found = measure_model(self.config, console, self.model_rounds, tick)
        return found, [bench_tables.model_table(found), bench_tables.share_table(found)]

    def clients(self, tick: Tick) -> tuple[Figures, list[Table]]:
        steps = measure_clients(self.config, self.model_rounds, tick=tick)
        clients = {
            "clients": CLIENTS,
            "alone_ms": 1e3 * steps.alone,
            "beside_ms": 1e3 * steps.beside,
        }
        found = {"beside_clients_ratio": steps.ratio, "clients": clients}
        return found, [bench_tables.clients_table(found)]

    def http(self, tick: Tick) -> tuple[Figures, list[Table]]:
        found = {"http": http_bench.report(measure_http(self.detokenising, tick=tick))}
        return found, [http_tables.http_table(found["http"])]

    @property
    def detokenising(self) -> Config:
        """The configuration with a model file, of which the simulated model has the tokenizer."""
        if self.config.model.path != "auto":
            return self.config
        console = Console(stderr=True)
        return _with_model(
            self.config, ensure_default_model(Path(self.config.model.directory), console=console)
        )

    def host(self, tick: Tick) -> tuple[Figures, list[Table]]:
        found = measure_host(Repeats(self.rounds, self.steps), self.waiting, tick)
        found["block_layer"] = measure_block_layer(self.prompts, self.rounds, tick)
        found |= measure_scrapes(self.rounds)
        return found, [bench_tables.host_table(found)]

    def queues(self, tick: Tick) -> tuple[Figures, list[Table]]:
        found = measure_queues(built_in(), self.waiting, self.steps, tick)
        return {"queues": queue_bench.as_json(found)}, [bench_tables.queue_table(found)]

    def allocation(self, tick: Tick) -> tuple[Figures, list[Table]]:
        usages = compare(demands())
        tick()
        found = {"allocation": allocation_bench.report(usages)}
        return found, [bench_tables.allocation_table(usages)]

    def speculation(self, tick: Tick) -> tuple[Figures, list[Table]]:
        console = Console(stderr=True)
        gains = measure_speculation(self.config, console, self.given, self.model_rounds, tick)
        found = {"speculation": speculation_bench.as_json(gains)}
        return found, [speculation_bench.table(gains, speculation_bench.method_of(self.config))]

    def structured(self, tick: Tick) -> tuple[Figures, list[Table]]:
        console = Console(stderr=True)
        found = measure_structured(self.config, console, self.model_rounds, tick)
        return {"structured": structured_bench.as_json(found)}, [structured_bench.table(found)]

    def record(self, tick: Tick) -> tuple[Figures, list[Table]]:
        console = Console(stderr=True)
        repeats = Repeats(self.rounds, self.steps)
        found = record_bench.measure_recording(self.config, console, repeats, tick)
        return {"record": found}, [record_bench.table(found)]

    def prediction(self, tick: Tick) -> tuple[Figures, list[Table]]:
        job = Job(self.config, Console(stderr=True))
        _, predictions = job.check(RUN_SECONDS, self.model_rounds, tick)
        found = {"prediction": [each.facts() for each in predictions]}
        return found, [check_table(predictions)]

    def __iter__(self) -> Iterator[tuple[str, Callable[[Tick], tuple[Figures, list[Table]]], int]]:
        """Each part's name, what measures it, and how often that ticks."""
        yield "model", self.model, self.model_rounds * TICKS
        yield "clients", self.clients, 2 * self.model_rounds
        yield "http", self.http, http_bench.USUAL_PHASES
        yield "host", self.host, self.rounds * (probes_of(self.waiting) + 1)
        yield "queues", self.queues, len(built_in()) * len(SHAPES)
        yield "allocation", self.allocation, 1
        yield "speculation", self.speculation, ticks(self.given)
        yield "structured", self.structured, structured_bench.ticks(self.model_rounds)
        yield "record", self.record, record_bench.ticks()
        yield "prediction", self.prediction, self.model_rounds * RUNS_A_REPEAT


def _measure(parts: _Parts, only: tuple[str, ...]) -> tuple[Figures, list[Table]]:
    """The report, as JSON and as tables. What cannot be measured is said on stderr, and `lacks`
    has the reason."""
    report: Figures = {}
    tables: list[Table] = []
    lacks: dict[str, str] = {}
    with _progress() as progress:
        for name, measure, ticks in parts:
            if name not in (only or USUAL):
                continue
            task = progress.add_task(name, total=ticks)
            try:
                found, shown = measure(lambda task=task: progress.advance(task))  # type: ignore[misc]
            except (ConfigurationError, Unmeasured) as error:
                lacks[name] = str(error)
                click.echo(f"{name} is not measured: {error}", err=True)
                continue
            report |= found
            tables += shown
    if report.get("native", "") is None:
        click.echo("products run in torch: there is no native library for this model", err=True)
    options = {"rounds": parts.rounds, "steps": parts.steps, "lacks": lacks}
    report |= {**options, "versions": versions(), "cpu": cpu()}
    if tables:
        tables[-1].caption = f"{tables[-1].caption or ''}\n{caption(report)}".strip()
    return report, tables


def _config(loaded: LoadedConfig, model: Path | None) -> Config:
    """The configuration, with the model that the command line names."""
    return loaded.config if model is None else _with_model(loaded.config, model)


def _with_model(config: Config, path: Path) -> Config:
    named = config.model.model_copy(update={"path": str(path)})
    return config.model_copy(update={"model": named})


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


def _given(files: tuple[Path, ...]) -> dict[str, list[str]]:
    """The prompts of files, by their names."""
    given: dict[str, list[str]] = {}
    for path in files:
        try:
            given[path.name.split(".")[0]] = read_prompts(path)
        except (ValueError, OSError) as error:
            raise click.BadParameter(f"{path}: {error}", param_hint="--prompts") from error
    return given


def _progress() -> Progress:
    """A bar on stderr, and only if that is a terminal."""
    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
