"""What clients are told while the model is loaded: 503, and to come again."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

import uvicorn
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.config.schema import ServerConfig
from app.connection import LAST_WORDS_S
from app.draining_server import uvicorn_config
from app.errors import not_ready
from app.listener import Listener
from engine.outputs import Failure, FailureKind

LOADING = Failure(FailureKind.NOT_READY, "the model is being loaded", 5.0)
LIVE = "/health/live"

log = logging.getLogger("octavo")


async def turn_away(scope: Scope, receive: Receive, send: Send) -> None:
    """503 to everything but the question whether a new process is needed: none is."""
    response = Response() if scope["path"] == LIVE else not_ready(LOADING).response()
    response.headers["connection"] = "close"  # the next request is for whoever comes after us
    await response(scope, receive, send)


class WaitingRoom:
    """Within the `with`, who connects to the listener is turned away, on a thread of its own.

    Then nobody is left; who has not been accepted yet is for the server that takes over.
    """

    def __init__(self, listener: Listener, server: ServerConfig) -> None:
        self._listener = listener
        # Closing a duplicate leaves the listener as it is.
        self._socket = listener.socket.dup()
        options = uvicorn_config(turn_away, server, lifespan="off")
        self._server = _UntilTold(options)
        self._thread = threading.Thread(target=self._serve, name="octavo-loading", daemon=True)

    def __enter__(self) -> Self:
        log.info("loading: until that is done, requests to %s are answered 503", self._listener.at)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.over.set()
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        self._server.run(sockets=[self._socket])


class _UntilTold(uvicorn.Server):
    """Serves until `over` is set, from whatever thread."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.over = threading.Event()

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's, but it neither minds signals nor logs that a process begins and ends."""
        self.config.load()
        self.lifespan = self.config.lifespan_class(self.config)
        await self.startup(sockets)
        await asyncio.to_thread(self.over.wait)
        await self.shutdown(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Who was accepted gets its answer; who asks nothing is hung up on."""
        for server in self.servers:
            server.close()
        connections = self.server_state.connections
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_S):
                while connections:  # noqa: ASYNC110 - uvicorn tells nobody when the last one goes
                    await asyncio.sleep(0.01)
        for connection in list(connections):
            connection.transport.abort()
