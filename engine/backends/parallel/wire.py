"""The connections between rank 0 and the others, over which steps and last words go.

    a message    kind, bytes that follow [2 x uint32, little-endian] | body

TCP rather than a collective: a follower sleeps in `receive` however long nobody asks for anything,
without a time-out and without spinning, and an end that has gone is noticed at once, idle or not.
Bodies are JSON or int32 arrays; nothing that is received is ever executed.
"""

from __future__ import annotations

import json
import secrets
import socket
import struct
from contextlib import ExitStack, closing, suppress
from enum import IntEnum
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from engine.errors import GroupLost

HEAD: Final = struct.Struct("<II")
KEY: Final = "octavo/wire"
MOST_BYTES: Final = 1 << 30
"""Of a body. No step comes near it; a stranger's bytes may."""

KEEP_ALIVE_S: Final = 10
"""A machine that has vanished is noticed after some four times as long, idle or not."""


class Kind(IntEnum):
    """What a message is about, and who says it.

    From followers: HELLO, who I am; PLAN, what I am about to load; READY, what I have loaded; ROOM,
    how many blocks fit; LEAVING, I was told to end. From rank 0: PLAN, READY and ROOM, all have
    said so, go on; STEP, compute this; STOP, that is all. FAULT: last words, of both.
    """

    HELLO = 1
    PLAN = 2
    READY = 3
    ROOM = 4
    STEP = 5
    LEAVING = 6
    STOP = 7
    FAULT = 8


class Store(Protocol):
    """Where ranks find each other: torch.distributed's store. `get` waits for the key."""

    def set(self, key: str, value: str) -> None: ...
    def get(self, key: str) -> bytes: ...


class Link:
    """One end of a connection. One thread sends, one receives.

    Whatever goes wrong with the connection is an OSError; EOFError: the other end is closed.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _keep_alive(connection)
        self._connection = connection

    def wait(self, seconds: float | None) -> None:
        """How long anything may take from now on; None: for ever. TimeoutError is an OSError."""
        self._connection.settimeout(seconds)

    def send(self, kind: Kind, body: bytes | memoryview = b"") -> None:
        """Send a message; it may wait for the other end to read."""
        self._connection.sendall(b"".join((HEAD.pack(kind, len(body)), body)))

    def tell(self, kind: Kind, **fields: Any) -> None:
        """Send a message of named values."""
        self.send(kind, json.dumps(fields).encode())

    def send_array(self, kind: Kind, array: npt.NDArray[np.int32]) -> None:
        """Send a message of numbers."""
        self.send(kind, array.data.cast("B"))

    def receive(self) -> tuple[Kind, bytearray]:
        """The next message, however long it takes to come."""
        kind, size = HEAD.unpack(self._exactly(HEAD.size))
        if size > MOST_BYTES:
            raise ConnectionError(f"a message of {size} bytes")
        try:
            return Kind(kind), self._exactly(size)
        except ValueError:
            raise ConnectionError(f"a message of kind {kind}") from None

    def close(self) -> None:
        """Hang up; whoever is receiving, here or there, hears of it."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _exactly(self, size: int) -> bytearray:
        body = bytearray(size)
        rest = memoryview(body)
        while rest:
            count = self._connection.recv_into(rest)
            if not count:
                raise EOFError
            rest = rest[count:]
        return body


def fields(body: bytes | bytearray) -> dict[str, Any]:
    """The named values of a message. Raises ConnectionError for anything else."""
    try:
        values = json.loads(body)
    except ValueError as error:
        raise ConnectionError(f"a message that cannot be read: {error}") from error
    if not isinstance(values, dict):
        raise ConnectionError("a message without names")
    return values


def array(body: bytearray) -> npt.NDArray[np.int32]:
    """The numbers of a message."""
    return np.frombuffer(body, np.int32)


def listen(store: Store, host: str, world: int, seconds: float) -> dict[int, Link]:
    """Wait for the other ranks; returns the link to each by its number.

    host: this machine's address, as the others know it. Who does not know the word that is in the
    store is a stranger, and hung up on. Nobody listens any more when this returns. Raises GroupLost
    if one does not come within `seconds`, OSError if there is no such address here.
    """
    word = secrets.token_hex(16)
    links: dict[int, Link] = {}
    family = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][0]
    with closing(socket.create_server((host, 0), family=family)) as listener, ExitStack() as failed:
        listener.settimeout(seconds)
        store.set(KEY, json.dumps({"port": listener.getsockname()[1], "word": word}))
        while missing := set(range(1, world)) - set(links):
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                raise GroupLost(min(missing), f"did not come within {seconds:g} s") from None
            link = Link(connection)
            if rank := _hello(link, word, missing):
                links[rank] = failed.enter_context(closing(link))
        failed.pop_all()
    return links


def call(store: Store, host: str, seconds: float, rank: int) -> Link:
    """Connect to rank 0, which listens on `host`, and say HELLO."""
    there = json.loads(store.get(KEY))
    link = Link(socket.create_connection((host, there["port"]), timeout=seconds))
    link.tell(Kind.HELLO, word=there["word"], rank=rank)
    link.wait(None)
    return link


def _hello(link: Link, word: str, missing: set[int]) -> int | None:
    """The rank of somebody who has just connected; None, and hung up on, if it is a stranger."""
    link.wait(KEEP_ALIVE_S)
    with suppress(OSError, EOFError):
        kind, body = link.receive()
        said = fields(body)
        rank, known = said.get("rank"), secrets.compare_digest(str(said.get("word")), word)
        if kind == Kind.HELLO and known and type(rank) is int and rank in missing:
            link.wait(None)
            return rank
    link.close()
    return None


def _keep_alive(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    wanted = {"TCP_KEEPIDLE": KEEP_ALIVE_S, "TCP_KEEPINTVL": KEEP_ALIVE_S, "TCP_KEEPCNT": 3}
    for name, value in wanted.items():
        if hasattr(socket, name):  # not everywhere
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
