"""A running hash over the decision log: by it a replay knows that it decided the same."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, Final

import orjson

DIGEST_BYTES: Final = 16


def _as_it_is(name: str) -> str:
    return name


class DecisionHash:
    """A `DecisionSink` that keeps nothing but a hash. name: what stands for the name of a class.

    entries: how many there were.
    """

    def __init__(self, name: Callable[[str], str] = _as_it_is) -> None:
        self.entries = 0
        self._name = name
        self._state = hashlib.blake2b(digest_size=DIGEST_BYTES)

    def __call__(self, *entry: Any) -> None:
        if entry[0] == "classes":  # the only entry with names in it
            entry = ("classes", sorted(map(self._name, entry[1])))
        self.entries += 1
        self._state.update(orjson.dumps(entry, option=orjson.OPT_APPEND_NEWLINE))

    @property
    def digest(self) -> str:
        """The hash of all entries so far, in hexadecimal."""
        return self._state.hexdigest()
