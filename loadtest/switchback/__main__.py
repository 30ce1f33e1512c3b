"""Try `fcfs` against `fair-share` on a server of its own, and compare with simulations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import click
import httpx2
import orjson
from rich.console import Console
from rich.table import Table

from app.config import Config, load_config
from app.experiment.comparison import comparison
from loadtest.houses import House, house_of
from loadtest.live import Settings, replay_live
from loadtest.load.server import own_server
from loadtest.profiles import Profile, find_profile
from loadtest.programs import run
from loadtest.progress import bar
from loadtest.switchback import server_config
from loadtest.switchback.agreement import Found, Row, rows
from loadtest.switchback.predicted import simulated_blocks
from loadtest.switchback.workload import NOISY, QUIET, workload

CONFIG: Final = server_config()
KEYS: Final = {NOISY: "key-of-noisy", QUIET: "key-of-quiet"}
ADMIN_KEY: Final = "switchback"
"""As the configuration has them."""


@click.command()
@click.option("--seconds", default=600.0, show_default=True, help="How long requests arrive.")
@click.option("--seed", default=0, show_default=True, help="Of what arrives.")
@click.option("--simulations", default=10, show_default=True, help="How many to compare with.")
@click.option("--profile", "name", required=True, help="From octavo calibrate --out, here.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.pass_context
def switchback(
    context: click.Context, seconds: float, seed: int, simulations: int, name: str, as_json: bool
) -> None:
    """Let fcfs and fair-share take turns beside a noisy tenant, live and in virtual time.

    Exit code 1 if the interval of a change that was found live, and where simulations find it, have
    nothing in common.

    \b
    Example:
      octavo calibrate --set engine.max_rows=4 --out here.json
      python -m loadtest.switchback --profile here.json
    """
    config = load_config(CONFIG)
    profile = find_profile(name)
    found = _live(seconds, seed)
    blocks = found["blocks"]
    predicted = [
        _simulated(config, profile, seconds, blocks, 1 + number) for number in range(simulations)
    ]
    table = list(rows(found["comparisons"][0], predicted))
    if as_json:
        answer = {"experiment": found, "rows": [row.facts() for row in table]}
        click.echo(orjson.dumps(answer, option=orjson.OPT_INDENT_2))
    else:
        Console().print(_table(table, blocks))
    if not all(row.agrees for row in table if row.agrees is not None):
        context.exit(1)


def _live(seconds: float, seed: int) -> dict[str, Any]:
    """What GET /admin/experiment says when all that arrived has been served."""
    arrivals = workload(seconds, seed)
    with (
        own_server((), CONFIG) as url,
        bar("requests", len(arrivals)) as tick,
    ):
        seen = replay_live(url, arrivals, Settings(keys=KEYS, look_s=0.0), tick)
        failed = [each.error for each in seen.requests if each.error is not None]
        if failed:
            raise click.ClickException(f"{len(failed)} requests failed: {failed[0]}")
        headers = {"authorization": f"Bearer {ADMIN_KEY}"}
        answer = httpx2.get(f"{url}/admin/experiment", headers=headers)
        found: dict[str, Any] = answer.raise_for_status().json()
        return found


def _houses(config: Config, profile: Profile) -> Sequence[House]:
    """The arms, each the only one in charge."""
    return [
        house_of(
            config.model_copy(update={"scheduler": config.scheduler.model_copy(update=dict(arm))}),
            profile,
            noise=profile.residuals,
        )
        for arm in config.experiment.arms.values()
    ]


def _simulated(
    config: Config, profile: Profile, seconds: float, blocks: int, seed: int
) -> dict[str, Any]:
    """The same experiment on other arrivals of the same kind."""
    houses = _houses(config, profile)
    arrivals = workload(seconds, seed)
    done = simulated_blocks(houses, arrivals, config.experiment, blocks, seed)
    return comparison(done, 1, config.experiment.level)


def _table(found: Sequence[Row], blocks: int) -> Table:
    title = f"fair-share against fcfs, {blocks} blocks live"
    table = Table(title=title, title_justify="left", box=None)
    for name in ("of", "measure", "live", "simulated", "agree"):
        table.add_column(name, justify="left" if name in ("of", "measure") else "right")
    for row in found:
        agree = {True: "yes", False: "no", None: "–"}[row.agrees]
        table.add_row(row.of, row.measure, _told(row.live), _told(row.simulated), agree)
    return table


def _told(found: Found | None) -> str:
    if found is None:
        return "–"
    return f"{found.change:+.0%} ({found.low:+.0%} … {found.high:+.0%})"


if __name__ == "__main__":
    run(switchback, "loadtest.switchback")
