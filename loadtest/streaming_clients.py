"""Clients that stream completions and throw away what they read, as cheaply as clients can be."""

from __future__ import annotations

import json
import selectors
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

AT_ONCE = 65536
"""Bytes of one read."""


def stream(host: str, port: int, bodies: Iterable[Mapping[str, Any]]) -> int:
    """POST each body to /v1/completions on a connection of its own, and read all replies to the
    end; returns how many bytes came. Raises RuntimeError if one of them is not answered 200."""
    total = 0

    def take(place: int, got: bytes) -> None:
        nonlocal total
        total += len(got)

    _read_all(host, port, bodies, take)
    return total


@dataclass(frozen=True, slots=True)
class Counted:
    """What clients saw. frames: events that they were sent but the last of each stream, which
    says that it is over. The rest is of the time in which all of them stream."""

    frames: int
    steady_frames: int
    seconds: float
    cpu_seconds: float


def count_frames(
    host: str, port: int, bodies: Iterable[Mapping[str, Any]], results: Connection
) -> None:
    """As `stream`, but counts the events; a `Counted` goes into `results`."""
    counting = FrameCount(len(bodies := list(bodies)))
    _read_all(host, port, bodies, counting.take)
    results.send(counting.found)


class FrameCount:
    """Counts the events of so many streams, and those between the last begin and the first end."""

    def __init__(self, streams: int) -> None:
        self._events = [0] * streams
        self._ends = [b""] * streams  # what each stream's last read ended with
        self._silent = streams
        self._total = 0
        self._marks: list[tuple[int, float, float]] = []

    def take(self, place: int, got: bytes) -> None:
        """Take in what came for one stream. An event ends with an empty line."""
        ends = self._ends
        new = got.count(b"\n\n")
        if ends[place] == b"\n" == got[:1]:
            new += 1
        ends[place] = got[-1:]
        self._total += new
        if not self._events[place] and new:
            self._silent -= 1
            if not self._silent:
                self._mark()
        self._events[place] += new
        if len(self._marks) == 1 and b"[DONE]" in got:
            self._mark()

    def _mark(self) -> None:
        self._marks.append((self._total, time.perf_counter(), time.process_time()))

    @property
    def found(self) -> Counted:
        """What was counted; all streams have ended. Zero where they never streamed together."""
        frames = self._total - len(self._events)
        if len(self._marks) < 2:
            return Counted(frames, 0, 0.0, 0.0)
        (events, at, cpu), (later, end, cpu_end) = self._marks
        return Counted(frames, later - events, end - at, cpu_end - cpu)


def _read_all(
    host: str,
    port: int,
    bodies: Iterable[Mapping[str, Any]],
    take: Callable[[int, bytes], None],
) -> None:
    """Send all bodies, and hand on what is read, with the place of its body."""
    with selectors.DefaultSelector() as waiting:
        for place, body in enumerate(bodies):
            connection = socket.create_connection((host, port))
            connection.sendall(_request(body))
            waiting.register(connection, selectors.EVENT_READ, data=(place, True))
        while waiting.get_map():
            for key, _ in waiting.select():
                connection = key.fileobj  # type: ignore[assignment]
                got = connection.recv(AT_ONCE)
                place, is_first = key.data
                if is_first and not got.startswith(b"HTTP/1.1 200"):
                    raise RuntimeError(f"a request was refused: {got[:500]!r}")
                if is_first:
                    waiting.modify(connection, selectors.EVENT_READ, data=(place, False))
                elif not got:
                    waiting.unregister(connection)
                    connection.close()
                    continue
                take(place, got)


def _request(body: Mapping[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    head = (
        "POST /v1/completions HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        "Connection: close",
        f"Content-Length: {len(content)}",
    )
    return "\r\n".join((*head, "", "")).encode() + content
