"""The server's end of a child: started when it is needed, asked one thing after the other."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

from app.child.bounds import stand_back
from app.child.frames import READY, read_frame, write_frame

START_S: Final = 60.0
"""Seconds after which a child that does not get ready is given up."""

SHUTTING_DOWN: Final = "the server is shutting down"


class NoChild(Exception):
    """No process could be had, whatever it was to be asked."""


class Child:
    """One process, started when it is needed first and again after it ended.

    module: what it runs. greeting: is sent to it first, and answered with READY. name: what it is
    called where none could be had. Used by one thread at a time, but for `close`.
    """

    def __init__(self, module: str, greeting: bytes, name: str) -> None:
        self._module = module
        self._greeting = greeting
        self._name = name
        self._closed = False
        self._changing = threading.Lock()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Of the process, if there is one."""
        process = self.process
        return None if process is None else process.pid

    def ask(self, request: bytes, timeout_s: float) -> bytes | None:
        """What it answers; None if it ended instead.

        Raises NoChild, or TimeoutError after it has ended a process that took longer.
        """
        process = self._ready()
        assert process.stdin is not None
        try:
            write_frame(process.stdin, request)
            return _answer(process, timeout_s)
        except TimeoutError:
            self.end()
            raise
        except OSError:
            return None

    def end(self) -> int | None:
        """End the process, if there is one. What it ended with, by itself or now."""
        with self._changing:
            process, self.process = self.process, None
        if process is None:
            return None
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        return process.returncode

    def close(self) -> None:
        """End the process, whatever it does, and start no other. From any thread."""
        with self._changing:
            self._closed = True
        self.end()

    def _ready(self) -> subprocess.Popen[bytes]:
        """The process, which waits to be asked. Raises NoChild."""
        process = self.process
        if process is not None:
            if process.poll() is None:
                return process
            self.end()
        process = self._start()
        assert process.stdin is not None
        with suppress(OSError):
            write_frame(process.stdin, self._greeting)
            if _answer(process, START_S) == READY:
                return process
        self.end()
        if self._closed:
            raise NoChild(SHUTTING_DOWN)
        raise NoChild(f"{self._name} ended with {process.returncode}")

    def _start(self) -> subprocess.Popen[bytes]:
        """In a group of its own, since signals for the server's are not for it.

        In the same session: Linux shares processors between sessions first, and looks at who stands
        back only within one.
        """
        path = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}
        with self._changing:
            if self._closed:
                raise NoChild(SHUTTING_DOWN)
            try:
                self.process = subprocess.Popen(
                    [sys.executable, "-P", "-m", self._module],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    env=environment,
                    process_group=0,
                )
            except OSError as error:
                raise NoChild(f"{self._name} does not start: {error}") from None
            stand_back(self.process.pid)
            return self.process


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
