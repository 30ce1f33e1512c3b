"""`octavo serve` as a process of its own, for as long as a load test takes."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from loadtest.machine import Unmeasured

CONFIG: Final = Path(__file__).with_name("server.yaml")
READY_S: Final = 300.0
"""Seconds that a server may take to load its model."""

BOUNDS: Final = 64
"""Buckets of a histogram, as many as a server may be told."""

RANGES: Final = {
    "ttft_s": (0.005, 60.0),
    "queue_s": (0.001, 60.0),
    "request_s": (0.02, 120.0),
    "token_s": (0.001, 2.0),
}
"""Seconds within which the server's histograms are fine, by the key of their buckets."""


def fine_buckets() -> list[str]:
    """Options for as many buckets as there may be, each longer than the last by the same ratio."""
    options = []
    for kind, (least, most) in RANGES.items():
        ratio = (most / least) ** (1 / (BOUNDS - 1))
        bounds = ", ".join(f"{least * ratio**place:.4g}" for place in range(BOUNDS))
        options += ["--set", f"metrics.buckets.{kind}=[{bounds}]"]
    return options


@contextmanager
def own_server(overrides: Sequence[str], config: Path = CONFIG) -> Iterator[str]:
    """The URL of a server that serves meanwhile; with more of its `--set`. Raises Unmeasured."""
    sets = [part for each in overrides for part in ("--set", each)]
    octavo = str(Path(sys.executable).with_name("octavo"))
    command = [octavo, "serve", "--config", str(config), *fine_buckets(), *sets]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    said: list[str] = []
    found = threading.Event()
    url: list[str] = []

    def read() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            said.append(line)
            del said[:-50]
            if not url and (match := re.search(r"http://127\.0\.0\.1:\d+", line)):
                url.append(match[0])
                found.set()
        found.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        found.wait(READY_S)
        if not url:
            raise Unmeasured("the server did not start:\n" + "".join(said))
        yield url[0]
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        reader.join()
        assert process.stderr is not None
        process.stderr.close()
