"""Measure what a step takes on this machine, and whether simulations with it come true."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import orjson
from rich.console import Console, RenderableType

from app.commands.options import config_options
from app.config import LoadedConfig
from loadtest.calibration.checking import Prediction
from loadtest.calibration.job import REPEATS, RUN_SECONDS, RUNS_A_REPEAT, SECONDS, Job
from loadtest.calibration.tables import check_table, profile_tables
from loadtest.commands.options import FiniteRange, NewFileType
from loadtest.profiles import Profile, find_profile, to_json
from loadtest.progress import bar, bar_up_to


@click.command()
@config_options
@click.option(
    "--seconds",
    default=SECONDS,
    type=FiniteRange(1, 3600),
    show_default=True,
    help="How long to measure steps.",
)
@click.option(
    "--out",
    type=NewFileType(folders=False),
    metavar="FILE",
    help="Write the profile there, for octavo sim --profile FILE.",
)
@click.option("--name", default="calibrated", show_default=True, help="What the profile is called.")
@click.option(
    "--profile",
    "known",
    metavar="NAME",
    help="Measure nothing: print this profile, or check it with --check.",
)
@click.option(
    "--check", "checked", is_flag=True, help="Simulate a fresh workload, then run it for real."
)
@click.option(
    "--repeats",
    default=REPEATS,
    type=click.IntRange(1, 100),
    show_default=True,
    help="Of each real run of the check.",
)
@click.option(
    "--run-seconds",
    default=RUN_SECONDS,
    type=FiniteRange(1, 3600),
    show_default=True,
    help="Of one real run, roughly.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
@click.pass_context
def calibrate(
    context: click.Context,
    loaded: LoadedConfig,
    /,
    seconds: float,
    out: Path | None,
    name: str,
    known: str | None,
    checked: bool,
    repeats: int,
    run_seconds: float,
    as_json: bool,
) -> None:
    """Measure what a step takes on the configured backend: a profile for octavo sim.

    The engine is driven in this process through steps of all kinds: one row to engine.max_rows,
    short and long contexts, chunks of prompts beside decodes. A step's seconds are those from one
    step to the next of a busy engine, planning and hand-over included; HTTP, tokenizing and the
    network are not, and the engine of a server that streams has to share the machine with them.
    What other processes do to the machine meanwhile is measured too.

    --check simulates requests of other lengths that arrive in bursts, lets the same ones arrive at
    the engine in real time, at once and at 0.5, 0.7 and 0.9 of the capacity, and compares. Steps
    are measured in turns with the repeats, so that a slow time of the machine meets both. Exit code
    1 if a prediction misses: capacity by over 10%; mean TTFT or ITL p99 by over 10%, or twice
    the spread of the repeats if that is more, at 0.9 by over 25%.

    \b
    JSON keys: profile (as in the file), and with --check predictions, each with
      metric, load            capacity_req_s; ttft_mean_s, itl_p99_s at a load
      predicted, measured     the median of simulated runs; each repeat
      error, spread, allowed  relative to the median of the repeats
      holds                   whether the error is allowed

    \b
    Examples:
      octavo calibrate --out here.json
      octavo calibrate --set engine.max_rows=32 --check
      octavo calibrate --profile here.json --check --repeats 5 --json
    """
    console = Console(stderr=True)
    job = Job(loaded.config, console, seconds, name, find_profile(known) if known else None)
    predictions = None
    if checked:
        with bar("real runs", repeats * RUNS_A_REPEAT) as tick:
            profile, predictions = job.check(run_seconds, repeats, tick)
    else:
        with bar_up_to("measuring steps", seconds) as progressed:
            profile = job.measure(progressed)
    if out is not None:
        out.write_text(to_json(profile))
    if as_json:
        click.echo(orjson.dumps(_answer(profile, predictions), option=orjson.OPT_INDENT_2))
    else:
        Console().print(*_tables(profile, predictions), sep="\n")
    if predictions and not all(each.holds for each in predictions):
        context.exit(1)


def _answer(profile: Profile, predictions: list[Prediction] | None) -> dict[str, Any]:
    answer: dict[str, Any] = {"profile": orjson.loads(to_json(profile))}
    if predictions is not None:
        answer["predictions"] = [each.facts() for each in predictions]
    return answer


def _tables(profile: Profile, predictions: list[Prediction] | None) -> Iterator[RenderableType]:
    yield from profile_tables(profile)
    if predictions is not None:
        yield check_table(predictions)
