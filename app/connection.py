"""A client's connection, and how it ends when the client takes nothing of what it is sent.

uvicorn waits for such a client for ever: it neither reads, so that `send` could go on, nor leaves,
so that the request could end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HANG_UP = "octavo.hang_up"
"""Key of an ASGI scope: a function that ends the connection, whatever has not been sent yet."""

LAST_WORDS_S = 1.0
"""Seconds that a client has to read how its request ended, before its connection ends too."""


class Connection(HttpToolsProtocol):
    """uvicorn's HTTP/1.1, which hangs up on a client that takes nothing for `send_timeout_s`."""

    def __init__(self, *args: Any, send_timeout_s: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._send_timeout_s = send_timeout_s
        self._stalled: asyncio.TimerHandle | None = None
        self._deaf = False

    def on_message_begin(self) -> None:
        super().on_message_begin()
        cast(Scope, self.scope)[HANG_UP] = self.transport.abort

    def on_headers_complete(self) -> None:
        """One request at a time: what is sent behind a request in progress is not answered.

        uvicorn would stop reading until its turn comes, and so not notice that the client has left.
        Instead the connection ends with the reply in progress, which HTTP allows (RFC 9112 9.3.2);
        the client sends the rest again.
        """
        running = self.cycle
        super().on_headers_complete()
        if self.pipeline:
            self.pipeline.clear()
            self.cycle = running
            running.keep_alive = False
            self.flow.resume_reading()
            self._deaf = True

    def on_body(self, body: bytes) -> None:
        if not self._deaf:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._deaf:
            super().on_message_complete()

    def data_received(self, data: bytes) -> None:
        if not self._deaf:
            super().data_received(data)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled = self.loop.call_later(self._send_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        self._no_longer_stalled()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._no_longer_stalled()
        super().connection_lost(exc)

    def _no_longer_stalled(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None


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
