"""Locust in a process of its own, and looks at the server while it works."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import orjson

from loadtest.live.records import LiveRecord, from_json
from loadtest.live.server_metrics import Look, Scrape
from loadtest.load.rows import LocustRow, read_rows
from loadtest.machine import Unmeasured

LOCUSTFILE: Final = Path(__file__).parents[1] / "locustfile.py"
RECORDS: Final = "records.jsonl"
LAST_REQUESTS_S: Final = 300
"""How long requests that are under way at the end are waited for."""

MOST_LOOKS: Final = 2000


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked of Locust. users: the most at a time; file: who asks for what; csv: where its
    own files go, by how their names begin (None: nowhere that stays)."""

    shape: str
    users: int
    seconds: float
    file: Path
    csv: Path | None = None


@dataclass(frozen=True, slots=True)
class Swarmed:
    """What came of it. rows: Locust's own statistics; requests: each with its times, in seconds
    from the first look; before, after: the server's metrics when nobody was there."""

    rows: list[LocustRow]
    requests: list[LiveRecord]
    looks: list[Look]
    before: Scrape
    after: Scrape
    status: int
    said: str


def scrape(url: str) -> Scrape:
    """The server's metrics now."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as reply:
        return Scrape(reply.read().decode())


def swarm(url: str, load: Load, tick: Callable[[], None]) -> Swarmed:
    """Let users come and go until the time is over. tick: called for each second of it.

    Raises Unmeasured if Locust cannot work at all.
    """
    with tempfile.TemporaryDirectory() as folder:
        prefix = load.csv or Path(folder) / "locust"
        before = scrape(url)
        with _locust(url, load, prefix, Path(folder)) as process:
            looks = list(_watched(url, load, process, tick))
        if process.returncode < 0:
            raise Unmeasured("Locust did not come to an end")
        after = scrape(url)
        said = (Path(folder) / "said").read_text(errors="replace")
        stats = Path(folder) / "stats.json"
        if not stats.exists():
            raise Unmeasured(f"Locust ended with {process.returncode}:\n{said[-3000:]}")
        return Swarmed(
            rows=read_rows(stats),
            requests=_read(Path(folder) / RECORDS),
            looks=looks,
            before=before,
            after=after,
            status=process.returncode,
            said=said,
        )


@contextmanager
def _locust(url: str, load: Load, prefix: Path, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Locust, ended with the `with`. prefix: of the files for people; folder: for ours."""
    command = [
        *(sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--host", url, "--headless"),
        *("--users", str(load.users), "--run-time", f"{round(load.seconds)}s", "--only-summary"),
        *("--stop-timeout", str(LAST_REQUESTS_S), "--csv", str(prefix), "--csv-full-history"),
        *("--html", str(prefix.with_name(f"{prefix.name}_locust.html"))),
        *("--json-file", str(folder / "stats"), "--exit-code-on-error", "1"),
    ]
    own = {
        "OCTAVO_LOAD_SHAPE": load.shape,
        "OCTAVO_LOAD_USERS": str(load.file),
        "OCTAVO_LOAD_RECORDS": str(folder / RECORDS),
    }
    with (folder / "said").open("wb") as output:
        process = subprocess.Popen(
            command,
            env={**os.environ, **own},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
            process.wait(60)


def _watched(
    url: str, load: Load, process: subprocess.Popen[bytes], tick: Callable[[], None]
) -> Iterator[Look]:
    """Looks at the server, once a second or, of hours, MOST_LOOKS times."""
    every = max(1, round(load.seconds / MOST_LOOKS))
    started = time.perf_counter()
    for second in range(round(load.seconds) + LAST_REQUESTS_S + 60):
        if second % every == 0:
            yield scrape(url).look(time.perf_counter() - started)
        try:
            process.wait(max(0.0, started + second + 1 - time.perf_counter()))
        except subprocess.TimeoutExpired:
            if second < load.seconds:
                tick()
            continue
        break
    yield scrape(url).look(time.perf_counter() - started)


def _read(records: Path) -> list[LiveRecord]:
    """The requests that were written down, in order of sending, from the first one at 0."""
    if not records.exists():
        return []
    found = [from_json(orjson.loads(line)) for line in records.read_bytes().splitlines()]
    found.sort(key=lambda record: record.sent_at)
    first = min((record.arrival.at for record in found), default=0.0)
    return [record.moved(-first) for record in found]
