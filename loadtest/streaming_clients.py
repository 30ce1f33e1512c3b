"""Clients that stream completions and throw away what they read, as cheaply as clients can be."""

from __future__ import annotations

import json
import selectors
import socket
from collections.abc import Iterable, Mapping
from typing import Any

AT_ONCE = 65536
"""Bytes of one read."""


def stream(host: str, port: int, bodies: Iterable[Mapping[str, Any]]) -> int:
    """POST each body to /v1/completions on a connection of its own, and read all replies to the
    end; returns how many bytes came. Raises RuntimeError if one of them is not answered 200."""
    total = 0
    with selectors.DefaultSelector() as waiting:
        for body in bodies:
            connection = socket.create_connection((host, port))
            connection.sendall(_request(body))
            waiting.register(connection, selectors.EVENT_READ, data=True)
        while waiting.get_map():
            for key, _ in waiting.select():
                connection = key.fileobj  # type: ignore[assignment]
                got = connection.recv(AT_ONCE)
                total += len(got)
                if key.data and not got.startswith(b"HTTP/1.1 200"):
                    raise RuntimeError(f"a request was refused: {got[:500]!r}")
                if key.data:
                    waiting.modify(connection, selectors.EVENT_READ, data=False)
                elif not got:
                    waiting.unregister(connection)
                    connection.close()
    return total


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
