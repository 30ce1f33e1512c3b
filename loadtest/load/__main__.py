"""A load test from nothing to a report: `python -m loadtest.load` (`make load`, `make soak`)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import orjson
from rich import box
from rich.console import Console
from rich.table import Table

from loadtest.live.records import LiveRun
from loadtest.live.report import report
from loadtest.live.tables import tables
from loadtest.load.comparison import Pair, agree, compare
from loadtest.load.page import page
from loadtest.load.server import own_server
from loadtest.load.shapes import SHAPES
from loadtest.load.swarm import Load, Swarmed, swarm
from loadtest.load.users import USUAL, read_groups
from loadtest.programs import origin, run
from loadtest.progress import bar
from loadtest.reports import write
from loadtest.simulation_tables import seconds


@click.command()
@click.option("--url", help="A server that runs already.  [default: one of its own]")
@click.option("--shape", default="steady", type=click.Choice(list(SHAPES)), show_default=True)
@click.option("--users", default=8, type=click.IntRange(1), show_default=True, help="At most.")
@click.option(
    "--seconds", default=120.0, type=click.FloatRange(5), show_default=True, help="How long."
)
@click.option(
    "--file",
    default=USUAL,
    type=click.Path(dir_okay=False, path_type=Path),
    help="Who asks for what.  [default: loadtest/load/users.yaml]",
)
@click.option("--set", "overrides", multiple=True, help="A key of its own server's configuration.")
@click.option("--simulated", is_flag=True, help="Its own server has a simulated model.")
@click.option(
    "--html",
    default=Path("load-report.html"),
    type=click.Path(dir_okay=False, path_type=Path),
    show_default=True,
    help="Where the report goes.",
)
@click.option(
    "--csv",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where Locust's own CSV and HTML go: how their names begin.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
def load(
    url: str | None,
    simulated: bool,
    overrides: tuple[str, ...],
    html: Path,
    as_json: bool,
    **asked: Any,
) -> None:
    """Let Locust's users read streams from a server, and compare what they saw with its metrics.

    Exits with 1 if a request failed, and with 3 if the users' numbers and the server's are more
    than 5% apart. While it lasts the server should have no other users, and the machine nothing
    else to do: users, on the same cores, would be late.

    \b
    Examples:
      python -m loadtest.load
      python -m loadtest.load --shape spike --users 24 --set scheduler.policy=slo
      python -m loadtest.load --url http://localhost:8000 --seconds 30 --html load.html
    """
    wanted = Load(**asked)
    read_groups(wanted.file)
    own = [*(["engine.backend=simulated"] if simulated else []), *overrides]
    with _server(url, own) as at, bar(f"{wanted.shape} load", round(wanted.seconds)) as tick:
        found = swarm(at, wanted, tick)
        seen = LiveRun(found.requests, found.looks, at, _model(found))
    pairs = compare(found.rows, found.before, found.after)
    figures = {**report(seen), "agreement": [_as_json(pair) for pair in pairs]}
    if as_json:
        click.echo(orjson.dumps(figures, option=orjson.OPT_INDENT_2))
    else:
        Console().print(*tables(figures), _agreement(pairs), sep="\n")
    _report(html, seen, figures, pairs, wanted)
    sys.exit(_status(found, figures, pairs))


@contextmanager
def _server(url: str | None, overrides: list[str]) -> Iterator[str]:
    if url is not None:
        yield url
        return
    with own_server(overrides) as started:
        yield started


def _model(found: Swarmed) -> str:
    return found.after.label("octavo_build_info", "model") or "a model"


def _status(found: Swarmed, figures: dict[str, Any], pairs: list[Pair]) -> int:
    if found.status or figures["errors"] or not figures["requests"]:
        click.echo(found.said[-2000:] if found.status else "requests failed", err=True)
        return 1
    return 0 if agree(pairs) else 3


def _as_json(pair: Pair) -> dict[str, Any]:
    return {
        "latency": pair.name,
        "figure": pair.figure,
        "locust": pair.client,
        "server": pair.server,
        "apart": pair.apart,
        "agrees": pair.agrees,
    }


def _agreement(pairs: list[Pair]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title="Locust beside the server", title_justify="left")
    for heading in ("latency", "figure"):
        table.add_column(heading)
    for heading in ("Locust", "server", "apart"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for pair in pairs:
        words = f"{pair.client:,.0f}", f"{pair.server:,.0f}"
        if pair.figure != "count":
            words = seconds(pair.client), seconds(pair.server)
        verdict = "agrees" if pair.agrees else "APART"
        table.add_row(pair.name, pair.figure, *words, f"{pair.apart:+.1%}", verdict)
    return table


def _report(
    path: Path, seen: LiveRun, figures: dict[str, Any], pairs: list[Pair], wanted: Load
) -> None:
    title = f"A {wanted.shape} load of {wanted.users} users on {seen.model}"
    whence = origin("loadtest.load", seen.url)
    click.echo(f"report: {write(page(seen, figures, pairs, whence, title), path)}", err=True)


if __name__ == "__main__":
    run(load, "loadtest.load")
