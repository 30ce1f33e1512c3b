"""The server's side of a process that vets grammars (`app.structured.vetting`)."""

from __future__ import annotations

import logging
import os
import select
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

import orjson

from app.structured.bounds import Unfit
from app.structured.kinds import Kind
from app.structured.vetting import read_frame, stand_back, write_frame

log = logging.getLogger("octavo.structured")

START_S: Final = 60.0
"""Seconds after which a process that does not get ready is given up."""

SHUTTING_DOWN: Final = "the server is shutting down"

MODULE: Final = "app.structured.vetting"


class TookTooLong(Exception):
    """A grammar was given up after its time."""


class NotVetted(Exception):
    """No process could be had, whatever the grammar."""


class Vetter:
    """One process, started when it is needed first and again after it ended.

    vocabulary: a dump of one. timeout_s: of a grammar. Used by one thread at a time, but for
    `close`.
    """

    def __init__(self, vocabulary: bytes, timeout_s: float) -> None:
        self._vocabulary = vocabulary
        self._timeout_s = timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False
        self._changing = threading.Lock()

    @property
    def pid(self) -> int | None:
        """The process, if there is one."""
        process = self._process
        return None if process is None else process.pid

    def vet(self, kind: Kind, text: str) -> str:
        """A grammar in the library's notation that compiles within the limits.

        Raises Unfit, TookTooLong, or NotVetted.
        """
        request = orjson.dumps([kind, text])
        answer = self._ask(self._ready(), request)
        if answer is None and self._end() == -signal.SIGKILL:
            answer = self._ask(self._ready(), request)  # limits end it otherwise: not its fault
        if answer is None:
            self._end()
            raise Unfit("takes more memory, or a deeper stack, than is possible here")
        said = orjson.loads(answer)
        if "unfit" in said:
            raise Unfit(said["unfit"])
        grammar: str = said["grammar"]
        return grammar

    def close(self) -> None:
        """End the process, whatever it does. From any thread."""
        with self._changing:
            self._closed = True
        self._end()

    def _ready(self) -> subprocess.Popen[bytes]:
        """The process, which waits for a grammar. Raises NotVetted."""
        process = self._process
        if process is not None:
            if process.poll() is None:
                return process
            self._end()
        process = self._start()
        assert process.stdin is not None
        with suppress(OSError):
            write_frame(process.stdin, self._vocabulary)
            if _answer(process, START_S) == b"ready":
                return process
        self._end()
        if self._closed:
            raise NotVetted(SHUTTING_DOWN)
        raise NotVetted(f"the process that vets grammars ended with {process.returncode}")

    def _start(self) -> subprocess.Popen[bytes]:
        """In a group of its own, since signals for the server's are not for it.

        In the same session: Linux shares processors between sessions first, and looks at who stands
        back only within one.
        """
        path = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}
        with self._changing:
            if self._closed:
                raise NotVetted(SHUTTING_DOWN)
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", MODULE],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    env=environment,
                    process_group=0,
                )
            except OSError as error:
                raise NotVetted(f"the process that vets grammars does not start: {error}") from None
            stand_back(self._process.pid)
            return self._process

    def _ask(self, process: subprocess.Popen[bytes], request: bytes) -> bytes | None:
        """What it answers; None if it ended. Raises TookTooLong, and ends it."""
        assert process.stdin is not None
        try:
            write_frame(process.stdin, request)
            return _answer(process, self._timeout_s)
        except TimeoutError:
            self._end()
            raise TookTooLong from None
        except OSError:
            return None

    def _end(self) -> int | None:
        """End the process, if there is one. What it ended with, by itself or now."""
        with self._changing:
            process, self._process = self._process, None
        if process is None:
            return None
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        return process.returncode


def _answer(process: subprocess.Popen[bytes], timeout_s: float) -> bytes | None:
    """The next answer; None if there will be none. Raises TimeoutError."""
    assert process.stdout is not None
    if not _readable(process.stdout, timeout_s):
        raise TimeoutError
    return read_frame(process.stdout)


def _readable(stream: IO[bytes], timeout_s: float) -> bool:
    """Wait until there is something to read, or the end. Nothing is buffered between answers."""
    poll = select.poll()
    poll.register(stream, select.POLLIN)
    return bool(poll.poll(1000 * timeout_s))
