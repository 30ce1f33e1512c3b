"""Open requests by the names that their clients know."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Names:
    """What a client calls a request: the id in its reply (unique), and its X-Request-Id (not)."""

    reply: str
    http: str


class Directory:
    """The engine counts requests; people know them by what is in a reply or in a log line."""

    def __init__(self) -> None:
        self._names: dict[int, Names] = {}

    @contextmanager
    def listed(self, id: int, names: Names) -> Iterator[None]:
        """Let the request that the engine calls `id` be known for the length of a `with`."""
        self._names[id] = names
        try:
            yield
        finally:
            del self._names[id]

    def names(self, id: int) -> Names | None:
        """What its client calls a request; None once it has left."""
        return self._names.get(id)
