"""`octavo serve` as a process of its own."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

OCTAVO = Path(sys.executable).with_name("octavo")

HANG_S = 100
"""Seconds after which something hangs, on however busy a machine."""


class Process:
    """`octavo serve` with its stderr read in the background."""

    def __init__(
        self,
        directory: Path,
        *arguments: str,
        program: Sequence[str | Path],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.process = subprocess.Popen(
            [*program, "serve", *arguments],
            cwd=directory,
            env={**os.environ, **(environment or {})},
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []
        self.url = ""
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if found := re.search(r"http://127\.0\.0\.1:\d+", line):
                self.url = found[0]
                self._ready.set()
        self._ready.set()

    def ready(self) -> str:
        assert self._ready.wait(HANG_S)
        assert self.url, "".join(self.lines)
        return self.url

    def wait(self) -> int:
        code = self.process.wait(HANG_S)
        self._reader.join()
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code

    def told(self, words: str) -> str:
        """The first line with these words in it; waits for it."""
        deadline = time.monotonic() + HANG_S
        while time.monotonic() < deadline:
            for line in list(self.lines):
                if words in line:
                    return line
            time.sleep(0.02)
        raise AssertionError("".join(self.lines))


@contextlib.contextmanager
def serving(
    directory: Path,
    *arguments: str,
    program: Sequence[str | Path] = (OCTAVO,),
    environment: Mapping[str, str] | None = None,
) -> Iterator[Process]:
    """A server that is killed at the end, if it has not ended itself. environment: what is added
    to ours."""
    process = Process(directory, *arguments, program=program, environment=environment)
    try:
        yield process
    finally:
        process.process.kill()
        process.wait()
