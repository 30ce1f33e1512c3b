"""A client's connection, and how it ends when the client takes nothing of what it is sent, or does
not come to an end with what it sends.

uvicorn waits for such a client for ever: it neither reads, so that `send` could go on, nor leaves,
so that the request could end.
"""

from __future__ import annotations

import asyncio
import enum
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, cast

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from app.errors import ApiError, head_too_large, malformed, too_slow
from app.head import Head, HeadLimits

HANG_UP = "octavo.hang_up"
"""Key of an ASGI scope: a function that ends the connection, whatever has not been sent yet."""

REJECTED = "octavo.rejected"
"""Key of an ASGI scope: the error that the connection ended with while the body was being read."""

SHORT_CUT = "octavo.short_cut"
"""Key of an ASGI scope: a `ShortCut`, by which parts of a body may go."""

LAST_WORDS_S = 1.0
"""Seconds that a client has to read how its request ended, before its connection ends too."""

LINGER_S = 5.0
"""Seconds for which the rest of a body is read and dropped once its request has been answered. A
connection that ended at once would take the answer with it, before the client reads it."""


class Expected(enum.Enum):
    """What has begun to come of a request and has not ended yet."""

    NOTHING = enum.auto()
    HEAD = enum.auto()
    BODY = enum.auto()


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds that a client may take: to send a head, to send a body, to read on."""

    head: float
    body: float
    reading: float


class ShortCut:
    """A way past `send` for parts of a body, of which a stream has thousands.

    `send` is a coroutine, and so is every middleware around it: a task would have to wake up for
    each part. What can be written at once needs no waiting; for all else there is `send`.
    """

    __slots__ = ("_cycle", "_flow", "_transport")

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._flow = cycle.flow
        self._transport = cycle.transport

    @property
    def clear(self) -> bool:
        """Whether `write` may be called: the reply has begun in chunks and not ended, and the
        client takes what it is sent."""
        cycle = self._cycle
        return (
            not self._flow.write_paused
            and cycle.response_started
            and not cycle.response_complete
            and not cycle.disconnected
            and bool(cycle.chunked_encoding)
        )

    def write(self, body: bytes) -> None:
        """Send a part of the body, which must not be empty, as `send` would: as a chunk (RFC 9112
        7.1)."""
        self._transport.write(b"%x\r\n%b\r\n" % (len(body), body))


class Connection(HttpToolsProtocol):
    """uvicorn's HTTP/1.1, which hangs up on a client that is too slow, and bounds what it reads
    that is no body.

    rejected: told of an error that ends a connection before there was a request.
    """

    def __init__(
        self,
        *args: Any,
        patience: Patience,
        head_limits: HeadLimits,
        rejected: Callable[[ApiError], None],
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._patience = patience
        self._rejected = rejected
        self._head = Head(head_limits)
        self._expected = Expected.NOTHING
        self._timed = Expected.NOTHING
        self._slow: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None
        self._lingering: asyncio.TimerHandle | None = None
        self._deaf = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        _send_at_once(transport)
        self._keep_alive()

    # ---------------------------------------------------------------- reading

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        self._head.arrived(len(data))
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._head.overlong:
            self._reject(head_too_large())
        else:
            self._hurry()

    def _hurry(self) -> None:
        """What has begun to come has to end in time. What came at once has ended already."""
        if self._expected is not self._timed:
            self._no_hurry()
            self._timed = self._expected
            if self._timed is not Expected.NOTHING:
                head = self._timed is Expected.HEAD
                seconds = self._patience.head if head else self._patience.body
                self._slow = self.loop.call_later(seconds, self._reject, too_slow())
        if self._expected is Expected.NOTHING:
            self._keep_alive()

    def _no_hurry(self) -> None:
        _cancel(self._slow)
        self._timed = Expected.NOTHING

    def _keep_alive(self) -> None:
        """A connection on which nothing is asked ends in time, also if it never was, or if
        something came that asks for nothing."""
        idle = self.cycle is None or self.cycle.response_complete
        if idle and self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head.begin()
        self._expected = Expected.HEAD
        cast(Scope, self.scope)[HANG_UP] = self.transport.abort

    def on_url(self, url: bytes) -> None:
        self._head.add(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Fields behind a body (trailers) are dropped: the request has been let in without them."""
        self._head.add_field(name, value)
        if not self._head.complete:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """One request at a time: what is sent behind a request in progress is not answered.

        uvicorn would stop reading until its turn comes, and so not notice that the client has left.
        Instead the connection ends with the reply in progress, which HTTP allows (RFC 9112 9.3.2);
        the client sends the rest again.
        """
        self._head.complete = True
        self._head.useful()
        self._no_hurry()
        self._expected = Expected.BODY
        running = self.cycle
        super().on_headers_complete()
        if self.pipeline:
            self.pipeline.clear()
            self.cycle = running
            self.flow.resume_reading()
            self._end_with(running)
        else:
            cast(Scope, self.scope)[SHORT_CUT] = ShortCut(self.cycle)

    def on_body(self, body: bytes) -> None:
        self._head.useful()
        if not self._deaf:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._head.useful()
        self._no_hurry()
        self._expected = Expected.NOTHING
        if not self._deaf:
            super().on_message_complete()
            self.cycle.more_body = False
            _cancel(self._lingering)

    def send_400_response(self, msg: str) -> None:
        """What the parser refuses, in the shape of all errors."""
        self._reject(head_too_large() if self._head.too_large else malformed())

    def _reject(self, error: ApiError) -> None:
        """End the connection because of what came; say why if that is not in an answer's place."""
        running = self.cycle
        if running is not None and not running.response_complete:
            if not running.more_body:  # it came behind a request that is in order
                self._end_with(running)
                return
            running.disconnected = True
            cast(Scope, running.scope)[REJECTED] = error
            running.message_event.set()
        else:
            self._rejected(error)
        if running is None or not (running.response_started and running.more_body):
            self.transport.write(_whole(error))
        self.transport.close()

    def _end_with(self, running: RequestResponseCycle) -> None:
        """Hear nothing more; the connection ends with this reply."""
        running.keep_alive = False
        self._deaf = True
        self._no_hurry()

    # ---------------------------------------------------------------- writing

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.more_body and not self.transport.is_closing():
            self._lingering = self.loop.call_later(LINGER_S, self.transport.close)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled = self.loop.call_later(self._patience.reading, self.transport.abort)

    def resume_writing(self) -> None:
        _cancel(self._stalled)
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._no_hurry()
        self._unset_keepalive_if_required()
        _cancel(self._stalled)
        _cancel(self._lingering)
        super().connection_lost(exc)


def _send_at_once(transport: asyncio.Transport) -> None:
    """Let what is small go out although what went before has not been acknowledged yet.

    Otherwise (Nagle's algorithm) a body waits for the acknowledgement of its head, and a token for
    that of the token before: 40 ms on Linux. asyncio switches this off only for sockets that were
    made with the protocol number of TCP; ours were made without any.
    """
    connected = transport.get_extra_info("socket")
    if connected is not None and connected.family in (socket.AF_INET, socket.AF_INET6):
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


def _whole(error: ApiError) -> bytes:
    """An error as the last reply of a connection, of a request that no application has seen."""
    body = error.body()
    head = (
        f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\n"
        "content-type: application/json\r\n"
        f"content-length: {len(body)}\r\n"
        "connection: close\r\n\r\n"
    )
    return head.encode("ascii") + body


@contextmanager
def last_words(scope: Scope) -> Iterator[Callable[[], None]]:
    """Gives a function that ends the connection of `scope` in LAST_WORDS_S.

    Unless the `with` is left before: then the reply has been sent to its end.
    """
    timers: list[asyncio.TimerHandle] = []

    def begin() -> None:
        if hang_up := scope.get(HANG_UP):
            timers.append(asyncio.get_running_loop().call_later(LAST_WORDS_S, hang_up))

    try:
        yield begin
    finally:
        for timer in timers:
            timer.cancel()
