"""Let a server score windows of its own traffic, and print what was predicted and what was real."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

import click
import httpx2
import orjson
from rich.console import Console
from rich.table import Table

from loadtest.live import Settings, replay_live
from loadtest.load.server import own_server
from loadtest.programs import run
from loadtest.progress import bar
from loadtest.shadow import server_config
from loadtest.shadow.windows import Row, holds, rows
from loadtest.switchback.workload import NOISY, QUIET, Traffic, workload

KEYS: Final = {NOISY: "key-of-noisy", QUIET: "key-of-quiet"}
HEADERS: Final = {"authorization": "Bearer shadow"}
"""As the configuration has them."""

PATIENCE_S: Final = 60.0
"""How long the last window's scores are waited for."""


@click.command()
@click.option("--seconds", default=300.0, show_default=True, help="How long requests arrive.")
@click.option("--seed", default=0, show_default=True, help="Of what arrives.")
@click.option("--every", default=8.0, show_default=True, help="Seconds between bursts, on average.")
@click.option(
    "--falsify",
    default=1.0,
    show_default=True,
    help="Multiply the cost model by this; then nothing may be trusted.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
@click.pass_context
def shadow(
    context: click.Context, seconds: float, seed: int, every: float, falsify: float, as_json: bool
) -> None:
    """Serve a noisy tenant and a quiet one, and hold the shadow of what is in charge to it.

    Exit code 1 if more errors were larger than stated than are to be (1 - shadow.level); with a
    falsified cost model, if any window was to be trusted; and if no window was scored.

    \b
    Example:
      python -m loadtest.shadow --seconds 300
      python -m loadtest.shadow --seconds 110 --falsify 2
    """
    found = _scored(seconds, seed, every, falsify)
    if as_json:
        click.echo(orjson.dumps(found, option=orjson.OPT_INDENT_2))
    else:
        _print(found)
    if not holds(found, falsified=falsify != 1.0):
        context.exit(1)


def _scored(seconds: float, seed: int, every: float, falsify: float) -> dict[str, Any]:
    """What GET /admin/shadow says when the last window of the traffic has been scored."""
    arrivals = workload(seconds, seed, Traffic(burst_every_s=every))
    with (
        own_server([f"shadow.cost_factor={falsify}"], server_config()) as url,
        bar("requests", len(arrivals)) as tick,
    ):
        seen = replay_live(url, arrivals, Settings(keys=KEYS, look_s=0.0), tick)
        failed = [each.error for each in seen.requests if each.error is not None]
        if failed:
            raise click.ClickException(f"{len(failed)} requests failed: {failed[0]}")
        until = time.monotonic() + PATIENCE_S
        while (found := _document(url))["scoring"] and time.monotonic() < until:
            time.sleep(0.5)
        return found


def _document(url: str) -> dict[str, Any]:
    answer = httpx2.get(f"{url}/admin/shadow", headers=HEADERS)
    told: dict[str, Any] = answer.raise_for_status().json()
    return told


def _print(found: Mapping[str, Any]) -> None:
    console = Console()
    console.print(_predictions(list(rows(found))))
    if found["latest"] is not None:
        console.print(_policies(found))
    for skip in found["skips"]:
        console.print(f"not scored: {skip['why']}", highlight=False)
    trusted = "to be trusted" if found["trusted"] else "not to be trusted: "
    console.print(trusted + "; ".join(found["doubts"]), highlight=False)


def _predictions(found: list[Row]) -> Table:
    table = _table("what is in charge", "window", "measure", "predicted", "really", "off by")
    for name in ("stated", "within", "trusted"):
        table.add_column(name, justify="right")
    for row in found:
        table.add_row(
            str(row.window),
            row.measure,
            f"{row.predicted:.4f}",
            f"{row.real:.4f}",
            f"{row.error:+.0%}",
            f"{row.stated:.0%}",
            "yes" if row.within else "no",
            "yes" if row.trusted else "no",
        )
    return table


def _policies(found: Mapping[str, Any]) -> Table:
    table = _table("the latest window", "policy", "measure", "really", "in charge", "this policy")
    table.add_column("change", justify="right")
    latest = found["latest"]
    for policy in found["policies"]:
        for measure, told in policy.get("measures", {}).items():
            change = told["change"]
            table.add_row(
                policy["name"],
                measure,
                _told(latest["real"][measure]),
                _told(latest["predicted"][measure]),
                _told(told["value"]),
                "–" if change is None else f"{change:+.0%}" + ("" if told["clear"] else " (?)"),
            )
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=None)
    for place, name in enumerate(columns):
        table.add_column(name, justify="left" if place < 2 else "right")
    return table


def _told(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


if __name__ == "__main__":
    run(shadow, "loadtest.shadow")
