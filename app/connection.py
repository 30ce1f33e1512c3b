"""A client's connection, and how it ends when the client takes nothing of what it is sent.

uvicorn waits for such a client for ever: it neither reads, so that `send` could go on, nor leaves,
so that the request could end.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, cast

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from app.errors import ApiError, head_too_large, malformed
from app.head import Head, HeadLimits

HANG_UP = "octavo.hang_up"
"""Key of an ASGI scope: a function that ends the connection, whatever has not been sent yet."""

LAST_WORDS_S = 1.0
"""Seconds that a client has to read how its request ended, before its connection ends too."""

LINGER_S = 5.0
"""Seconds for which the rest of a body is read and dropped once its request has been answered. A
connection that ended at once would take the answer with it, before the client reads it."""


class Connection(HttpToolsProtocol):
    """uvicorn's HTTP/1.1, which hangs up on a client that takes nothing for `send_timeout_s`, and
    bounds what it reads that is no body."""

    def __init__(
        self, *args: Any, send_timeout_s: float, head_limits: HeadLimits, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._send_timeout_s = send_timeout_s
        self._head = Head(head_limits)
        self._stalled: asyncio.TimerHandle | None = None
        self._lingering: asyncio.TimerHandle | None = None
        self._deaf = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        _send_at_once(transport)

    # ---------------------------------------------------------------- reading

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        self._head.arrived(len(data))
        super().data_received(data)
        if self._head.overlong and not self.transport.is_closing():
            self._reject(head_too_large())

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head.begin()
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
        running = self.cycle
        super().on_headers_complete()
        if self.pipeline:
            self.pipeline.clear()
            self.cycle = running
            self.flow.resume_reading()
            self._end_with(running)

    def on_body(self, body: bytes) -> None:
        self._head.useful()
        if not self._deaf:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._head.useful()
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
            running.message_event.set()
        if running is None or not (running.response_started and running.more_body):
            self.transport.write(_whole(error))
        self.transport.close()

    def _end_with(self, running: RequestResponseCycle) -> None:
        """Hear nothing more; the connection ends with this reply."""
        running.keep_alive = False
        self._deaf = True

    # ---------------------------------------------------------------- writing

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.more_body and not self.transport.is_closing():
            self._lingering = self.loop.call_later(LINGER_S, self.transport.close)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled = self.loop.call_later(self._send_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        _cancel(self._stalled)
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
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
