"""What every reply has: how it is spelled at once, and piece by piece."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from app.choices import Choice, Piece
from app.chunks import Usage
from app.errors import ApiError


@dataclass(frozen=True, slots=True)
class Report:
    """What is known when a reply has ended. metrics: how long it took, if that is told at all."""

    usage: Usage
    metrics: dict[str, Any] | None = None


class Reply(Protocol):
    """One reply on its way out. It is spelled either at once or piece by piece.

    Bytes of a stream are whole events, or nothing.
    """

    def whole(self, choices: Sequence[tuple[Choice, Piece]], report: Report) -> bytes:
        """The body of a reply at once: each choice with all that it says, in order."""
        ...

    def begin(self) -> bytes:
        """What comes before the first piece."""
        ...

    def add(self, choice: Choice, piece: Piece) -> bytes:
        """What one or more tokens add."""
        ...

    def silence(self) -> bytes:
        """Something that adds nothing, for clients that count comments as silence."""
        ...

    def end(self, report: Report) -> bytes:
        """What comes after the last piece, up to the end of the stream."""
        ...

    def fail(self, error: ApiError) -> bytes:
        """How a stream that has begun fails, up to its end."""
        ...
