"""HTTP/1.1 as a load generator needs it: bytes as they come, each with the time when it came."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, cast
from urllib.parse import urlsplit

import httptools

Take = Callable[[bytes, float], None]
"""Gets a piece of a reply's body, and when it came (`time.perf_counter`)."""

_LOST: Final = "connection_lost"


class Lost(Exception):
    """The connection ended before the reply did."""


@dataclass(slots=True)
class Head:
    """A reply's status and headers, by lower-case name; sent_at: when the request was sent."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    sent_at: float = 0.0


class Client:
    """Requests to one server, each on a connection that nobody else uses meanwhile."""

    def __init__(self, url: str) -> None:
        """Raises ValueError for what is no http URL."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url}: is no http URL")
        self.url = url
        self._secure = parts.scheme == "https"
        self._host = parts.hostname
        self._port = parts.port or (443 if self._secure else 80)
        self._base = parts.path.rstrip("/").removesuffix("/v1")
        self._authority = parts.netloc.rpartition("@")[2]
        self._idle: list[_Connection] = []

    async def exchange(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str], take: Take
    ) -> Head:
        """Send a request and hand on the reply's body, piece by piece, until it is complete.

        Raises Lost, and OSError where there is no connection to be had.
        """
        request = self._request(method, path, body, headers)
        while self._idle:
            kept = self._idle.pop()
            if kept.usable:
                return await self._on(kept, request, take, again=True)
        return await self._on(await self._connect(), request, take)

    async def fetch(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> tuple[Head, bytes]:
        """The same, with the body as a whole."""
        pieces: list[bytes] = []
        head = await self.exchange(
            method, path, body, headers or {}, lambda piece, _: pieces.append(piece)
        )
        return head, b"".join(pieces)

    def close(self) -> None:
        """Close what is idle; connections in use belong to their exchanges."""
        while self._idle:
            self._idle.pop().close()

    async def _on(
        self, connection: _Connection, request: bytes, take: Take, *, again: bool = False
    ) -> Head:
        """again: the server may have closed the connection meanwhile; then a new one is tried."""
        try:
            head = await connection.exchange(request, take)
        except Lost:
            if not again or connection.answered:
                raise
            return await self._on(await self._connect(), request, take)
        except BaseException:
            connection.close()
            raise
        if connection.usable:
            self._idle.append(connection)
        return head

    async def _connect(self) -> _Connection:
        context = ssl.create_default_context() if self._secure else None
        _, connection = await asyncio.get_running_loop().create_connection(
            _Connection, self._host, self._port, ssl=context
        )
        return connection

    def _request(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> bytes:
        lines = [f"{method} {self._base}{path} HTTP/1.1", f"Host: {self._authority}"]
        if body:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return "\r\n".join((*lines, "", "")).encode() + body


class _Connection(asyncio.Protocol):
    """A connection, and at most one exchange on it."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._take: Take = lambda piece, at: None
        self._at = 0.0
        self._head = Head()
        self._done: asyncio.Future[None] | None = None
        self.answered = False
        """Whether anything of the latest reply came."""

    @property
    def usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def exchange(self, request: bytes, take: Take) -> Head:
        """As `Client.exchange`."""
        if self._transport is None:
            raise Lost(_LOST)
        self._take, self._head, self.answered = take, Head(), False
        self._done = asyncio.get_running_loop().create_future()
        self._head.sent_at = time.perf_counter()
        self._transport.write(request)
        await self._done
        return self._head

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # ── what asyncio calls ────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._at = time.perf_counter()
        self.answered = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self._done is not None and not self._done.done():
            self._done.set_exception(Lost(_LOST))

    # ── what the parser calls ─────────────────────────────────────────────────────────────────

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._head.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self._take(body, self._at)

    def on_message_complete(self) -> None:
        if not self._parser.should_keep_alive():
            self.close()
        if self._done is not None and not self._done.done():
            self._done.set_result(None)
