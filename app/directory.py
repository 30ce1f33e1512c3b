"""Open requests by the names that their clients know."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
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

    def __len__(self) -> int:
        """Requests that are listed."""
        return len(self._names)

    @contextmanager
    def listed(self, ids: Sequence[int], names: Names) -> Iterator[None]:
        """Let the requests that the engine calls `ids` be known for the length of a `with`.

        Those of one reply share its names.
        """
        self._names.update(dict.fromkeys(ids, names))
        try:
            yield
        finally:
            for id in ids:
                del self._names[id]

    def find(self, name: str) -> int | None:
        """What the engine calls the request that a client calls `name`.

        The id in a reply, else an X-Request-Id: of several requests with that one, the latest.
        """
        latest = list(reversed(self._names.items()))
        by_reply = (id for id, names in latest if names.reply == name)
        by_http = (id for id, names in latest if names.http == name)
        return next(itertools.chain(by_reply, by_http), None)

    def names(self, id: int) -> Names | None:
        """What its client calls a request; None once it has left."""
        return self._names.get(id)
