"""Decide again, exactly, what a server decided while it was recorded."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click
import orjson
from rich.console import Console
from rich.table import Table

from loadtest.progress import bar
from loadtest.recordings.files import RecordingFiles, find_recording
from loadtest.recordings.verification import Verdict, verify


@click.command()
@click.argument("path", type=click.Path(path_type=Path), metavar="RECORDING")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.pass_context
def replay(context: click.Context, path: Path, as_json: bool) -> None:
    """Decide again what a recorded server decided, and compare.

    RECORDING is the directory of `record.directory`, of which the latest recording is taken, or a
    file of one. The real scheduler, guard and policies get the recorded mail, times and results,
    and the hash of all they decide must be the recorded one. Exit code 1 where it is not: another
    version of Octavo or of a policy decides otherwise, or a policy is random.

    As a trace under another policy or configuration: octavo sim --trace RECORDING.

    \b
    Examples:
      octavo replay recordings
      octavo replay recordings/20261130T152350Z-9f3a61c0-00000.jsonl.gz --json
    """
    recording = find_recording(path)
    with bar("turns", None) as tick:
        verdict = verify(recording, tick=tick)
    if as_json:
        click.echo(orjson.dumps(facts(recording, verdict), option=orjson.OPT_INDENT_2))
    else:
        Console().print(table(recording, verdict))
    if not verdict.exact:
        context.exit(1)


def facts(recording: RecordingFiles, verdict: Verdict) -> dict[str, object]:
    """The verdict for JSON."""
    header = recording.header
    return {
        "recording": header["recording"],
        "octavo": header["octavo"],
        "began": header["began"],
        "files": [path.name for path in recording.parts],
        "exact": verdict.exact,
        **asdict(verdict),
    }


ENDS = {
    "closed": "complete",
    "lost": "ended early: the disk was too slow",
    "cut": "cut off: the process was killed",
}


def table(recording: RecordingFiles, verdict: Verdict) -> Table:
    """The verdict for people."""
    header = recording.header
    found = Table(title=f"recording {header['recording']}, begun {header['began']}")
    found.add_column("")
    found.add_column("", overflow="fold")
    found.add_row("decided again", "the same, to the byte" if verdict.exact else "otherwise")
    if verdict.diverged:
        found.add_row("where", verdict.diverged)
        found.add_row("recorded by", f"octavo {header['octavo']}")
    elif not verdict.exact:
        found.add_row("where", "nothing could be compared: it was cut off before the first hash")
    found.add_row("end", ENDS.get(verdict.end, verdict.end))
    found.add_row("turns", f"{verdict.turns:,}, of them compared {verdict.verified:,}")
    found.add_row("steps, requests", f"{verdict.steps:,}, {verdict.requests:,}")
    found.add_row("decisions", f"{verdict.decisions:,}, hash {verdict.digest}")
    return found
