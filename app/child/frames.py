"""What is said between a server and its child: bytes with their number in front, over pipes."""

from __future__ import annotations

from typing import IO, Final

READY: Final = b"ready"
"""What a child says to its greeting, when it can be asked."""

_LENGTH: Final = 4


def write_frame(stream: IO[bytes], data: bytes) -> None:
    """Send some bytes, with their number in front."""
    stream.write(len(data).to_bytes(_LENGTH, "little") + data)
    stream.flush()


def read_frame(stream: IO[bytes]) -> bytes | None:
    """The next bytes that were sent whole; None at the end of the stream."""
    head = stream.read(_LENGTH)
    size = int.from_bytes(head, "little")
    data = stream.read(size) if len(head) == _LENGTH else b""
    return data if len(head) == _LENGTH and len(data) == size else None
