"""Replay a trace against a server: `python -m loadtest.live URL --trace FILE`."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click
import orjson
from rich.console import Console

from engine.simulation import Targets
from loadtest.commands.options import NEW_FILE, POSITIVE, offer_options
from loadtest.live.page import page
from loadtest.live.records import LiveRun, jsonable
from loadtest.live.replay import Settings, replay_live
from loadtest.live.report import report
from loadtest.live.tables import tables
from loadtest.programs import origin, run
from loadtest.progress import bar
from loadtest.reports import write
from loadtest.traces.offer import Offer, in_words

INTERRUPTED_EXIT_CODE: Final = 130
"""What shells say of a command that Ctrl-C ended."""


@click.command()
@click.argument("url")
@offer_options
@click.option("--first", type=click.IntRange(1), metavar="N", help="Only the first N requests.")
@click.option("--model", metavar="NAME", help="The model to ask for.  [default: the first served]")
@click.option(
    "--key",
    "keys",
    multiple=True,
    metavar="[TENANT=]KEY",
    help="The API key of a tenant of the trace, or of everybody; may be repeated.",
)
@click.option("--no-classes", is_flag=True, help="Ask for no class (service_tier).")
@click.option(
    "--timeout", default=600.0, type=POSITIVE, show_default=True, help="Seconds of each request."
)
@click.option(
    "--seed",
    default=0,
    type=int,
    show_default=True,
    help="Of prompts and drawn arrivals. With the same seed prompts are found in the prefix cache.",
)
@click.option("--ttft", type=POSITIVE, metavar="S", help="Promised time to the first token,")
@click.option("--tpot", type=POSITIVE, metavar="S", help="time per output token after it,")
@click.option("--e2e", type=POSITIVE, metavar="S", help="and to the last token, for goodput.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
@click.option("--html", type=NEW_FILE, metavar="FILE", help="Write a report.")
@click.option("--records", type=NEW_FILE, metavar="FILE", help="Write each request, as JSON lines.")
def live(
    offer: Offer,
    /,
    url: str,
    first: int | None,
    keys: tuple[str, ...],
    seed: int,
    as_json: bool,
    html: Path | None,
    records: Path | None,
    **options: Any,
) -> None:
    """Send the requests of a trace to an OpenAI-compatible server, each when it is due.

    It is an open loop: nobody waits for an answer before the next is sent, and latencies count
    from when a request was due, so that neither a slow server nor a slow client hides in them. What
    they are since it was really sent, and how late the client was, is told as well. Prompts are
    random token ids of the wanted lengths; where a trace names their content, the same names are
    the same tokens. Answers are as long as the trace says (ignore_eos).

    Exits with 1 if a request failed or was refused, and with 130 if it was interrupted; what has
    ended by then is reported all the same.

    \b
    Examples:
      python -m loadtest.live http://localhost:8000 --trace arrivals.csv --html report.html
      python -m loadtest.live http://localhost:8000 --trace mooncake.jsonl --rate 2 --first 200
      python -m loadtest.live http://localhost:8000 --trace arrivals.csv --key acme=KEY --json
    """
    arrivals = offer.arrivals(seed)[:first]
    settings = _settings(_keys(keys), seed, **options)
    with bar("requests", len(arrivals)) as tick:
        found = replay_live(url, arrivals, settings, tick)
    figures = {**offer.facts(), "seed": seed, **report(found)}
    if as_json:
        click.echo(orjson.dumps(figures, option=orjson.OPT_INDENT_2))
    else:
        Console().print(*tables(figures), sep="\n")
    if records is not None:
        records.write_bytes(b"".join(orjson.dumps(jsonable(r)) + b"\n" for r in found.requests))
    if html is not None:
        _write_report(html, found, figures)
    if found.interrupted:
        click.echo(
            f"Interrupted: {len(found.requests)} of {found.due} requests had ended.", err=True
        )
        sys.exit(INTERRUPTED_EXIT_CODE)
    sys.exit(1 if figures["errors"] else 0)


def _settings(
    keys: Mapping[str, str],
    seed: int,
    *,
    model: str | None,
    no_classes: bool,
    timeout: float,
    ttft: float | None,
    tpot: float | None,
    e2e: float | None,
) -> Settings:
    promised = Targets(ttft or math.inf, tpot or math.inf, e2e or math.inf)
    return Settings(
        model=model,
        keys=keys,
        classes=not no_classes,
        timeout_s=timeout,
        seed=seed,
        usual_targets=promised,
    )


def _keys(given: tuple[str, ...]) -> dict[str, str]:
    """By tenant; a key may have an equals sign at its end, but a tenant's name has none."""
    keys = {}
    for each in given:
        tenant, equals, key = each.partition("=")
        keys[tenant if equals and key.strip("=") else ""] = (
            key if equals and key.strip("=") else each
        )
    return keys


def _write_report(path: Path, found: LiveRun, figures: Mapping[str, Any]) -> None:
    title = f"{in_words(figures)} against {found.model}"
    question = "How fast does this server answer these requests?"
    whence = origin("loadtest.live", found.url)
    click.echo(f"report: {write(page(found, figures, whence, title, question), path)}", err=True)


if __name__ == "__main__":
    run(live, "loadtest.live")
