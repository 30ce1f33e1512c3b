"""Clients on raw connections, which can leave at any moment."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable
from typing import Any

from support.serving import COMPLETIONS, House


class Socket:
    """A raw connection that has sent one request."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def post(cls, house: House, *, request_id: str = "r-7", **fields: Any) -> Socket:
        """Ask for a completion."""
        reader, writer = await asyncio.open_connection("127.0.0.1", house.port)
        body = json.dumps(fields).encode()
        head = (
            f"POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            f"x-request-id: {request_id}\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        await writer.drain()
        return cls(reader, writer)

    async def leave(self) -> None:
        """Reset the connection."""
        self.writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


def held_at(step: int) -> tuple[threading.Event, dict[int, Callable[[Any], Any]]]:
    """A gate that the engine waits at before it computes `step`, and the hooks for it."""
    gate = threading.Event()
    return gate, {step: lambda batch: gate.wait(60)}
