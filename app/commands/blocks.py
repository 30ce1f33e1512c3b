"""Draw which request owns which KV block of a live server."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

import click
from rich.console import Console
from rich.live import Live

from app.admin_client import AdminClient, Unanswered
from app.pool_picture import PoolPicture

PATH: Final = "/admin/blocks"
INTERVAL_S: Final = 1.0


@click.command()
@click.option(
    "--url",
    default="http://localhost:8000",
    show_default=True,
    metavar="URL",
    help="Where the server listens.",
)
@click.option(
    "--key",
    envvar="OCTAVO_ADMIN_KEY",
    show_envvar=True,
    metavar="KEY",
    help="Its server.admin_key; better given in the environment, where nobody else reads it.",
)
@click.option("--json", "as_json", is_flag=True, help="Print what the server says, as JSON.")
@click.option("--watch", is_flag=True, help="Go on once a second, until Ctrl-C.")
def blocks(url: str, key: str | None, as_json: bool, watch: bool) -> None:
    """Draw which request owns which KV block of a live server.

    A letter for each block of a request, capital where sequences share it; ~ is cached, a dot is
    free, ? is owned by somebody whom the legend does not name. Below come the requests that own
    blocks and the totals.
    Exit code 1 if the server does not answer, 2 if the command line cannot be used.

    \b
    Examples:
      OCTAVO_ADMIN_KEY=... octavo blocks
      octavo blocks --url http://gpu-7:8000 --watch
      octavo blocks --json | jq .free
    """
    try:
        client = AdminClient(url, key or None)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    looks = _looks(client, watch)
    try:
        with suppress(KeyboardInterrupt):
            if as_json:
                for document in looks:
                    click.echo(json.dumps(document, separators=(",", ":")))
            else:
                _draw(looks, watch)
    except Unanswered as error:
        raise click.ClickException(str(error)) from error
    except (LookupError, TypeError, ValueError) as error:
        raise click.ClickException(
            f"{client.url} does not speak of blocks as Octavo does"
        ) from error


def _looks(client: AdminClient, watch: bool) -> Iterator[dict[str, Any]]:
    """What the server says: once, or once a second."""
    yield client.get(PATH)
    while watch:
        time.sleep(INTERVAL_S)
        yield client.get(PATH)


def _draw(looks: Iterator[dict[str, Any]], watch: bool) -> None:
    """Pictures one below the other, or in one place where that is a terminal."""
    console = Console(highlight=False)
    if not (watch and console.is_terminal):
        for document in looks:
            console.print(PoolPicture(document), crop=False)
        return
    with Live(console=console, auto_refresh=False) as live:
        for document in looks:
            live.update(PoolPicture(document), refresh=True)
