"""uvicorn with an end of its own: the first signal drains, the second one cuts."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Callable, Coroutine
from functools import partial
from types import FrameType
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp

from app.bridge import Bridge
from app.config.schema import ServerConfig
from app.connection import LAST_WORDS_S, Connection, Patience
from app.errors import ApiError
from app.head import HeadLimits
from app.listener import BACKLOG, Listener

log = logging.getLogger("octavo")


def _nobody(error: ApiError) -> None:
    """For who does not count what came to no request."""


def uvicorn_config(
    application: ASGIApp,
    server: ServerConfig,
    rejected: Callable[[ApiError], None] = _nobody,
    **options: Any,
) -> uvicorn.Config:
    """How this server wants uvicorn to be. rejected: as of Connection."""
    connection = partial(
        Connection,
        patience=Patience(server.head_timeout_s, server.body_timeout_s, server.send_timeout_s),
        head_limits=HeadLimits(server.max_header_bytes, server.max_headers),
        rejected=rejected,
    )
    return uvicorn.Config(
        application,
        http=cast(Any, connection),
        ws="none",
        log_config=None,
        access_log=False,
        timeout_keep_alive=server.keep_alive_s,
        backlog=BACKLOG,
        **options,
    )


class DrainingServer(uvicorn.Server):
    """Serves on a listener until a signal comes; the exit code is 0.

    The first signal refuses new requests and lets those in flight end within `grace_s`; the second
    ends them at once; a third kills the process. reload: called on SIGHUP. give_up: called on the
    first signal, for those who wait for something else than the engine.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        listener: Listener,
        bridge: Bridge,
        grace_s: float,
        reload: Callable[[], Coroutine[Any, Any, None]],
        give_up: Callable[[], None],
    ) -> None:
        super().__init__(config)
        self._give_up = give_up
        self._reload = reload
        self._background: set[asyncio.Task[None]] = set()
        self._listener = listener
        self._bridge = bridge
        self._grace_s = grace_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._cutting = False

    def serve_to_the_end(self) -> None:
        """Serve, and return when everything has ended."""
        self.run(sockets=[self._listener.socket])

    def end(self) -> None:
        """Do as after a first signal. From any thread, also more than once."""
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.add_signal_handler(signal.SIGHUP, self._begin, self._reload)
        await super().startup(sockets)
        if self.started:
            log.info("listening on %s", self._listener.url)

    def _begin(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        task = asyncio.ensure_future(work())
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called in the main thread between two bytecodes: hand over, do nothing here."""
        if self.should_exit and self._loop is not None:
            for either in (signal.SIGINT, signal.SIGTERM):
                signal.signal(either, signal.SIG_DFL)
            self._loop.call_soon_threadsafe(self._cut)
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain. uvicorn stops listening first: new connections are refused from here on."""
        if not self._cutting:
            log.info(
                "draining: requests in flight, %d, may go on for %g s; a second signal cuts them",
                self._bridge.open_requests,
                self._grace_s,
            )
            self._end_within(self._grace_s)
        await super().shutdown(sockets)

    def _cut(self) -> None:
        self._cutting = True
        log.warning("cutting requests in flight: %d", self._bridge.open_requests)
        self._end_within(0)

    def _end_within(self, grace_s: float) -> None:
        """Requests that are open then are told so; clients who do not read that are hung up on."""
        self._give_up()
        self._bridge.drain(grace_s)
        asyncio.get_running_loop().call_later(grace_s, self._begin, self._hang_up)

    async def _hang_up(self) -> None:
        """Once the engine has ended, which is after its step, there are last words to read."""
        await self._bridge.ended()
        await asyncio.sleep(LAST_WORDS_S)
        for connection in list(self.server_state.connections):
            connection.transport.abort()
