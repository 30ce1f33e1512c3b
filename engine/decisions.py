"""The decision log: what the scheduler decided, compactly, in the order in which it did.

Each entry is a tuple that starts with its kind:

    ("step", number, now)                a step is planned; all that follow belong to it
    ("arrive", request, ticket)          ("reject", request, reason)      ("expire", request)
    ("admit", request, forced, recomputed)                                ("hold", until)
    ("decode", [request, index, …])      ("chunk", request, index, count)
    ("known", request, index, count)     the decode gets so many: they are known already
    ("forced", request, index, count)    so many tokens landed that a grammar leaves no choice about
    ("fork", request, index, source)     ("preempt", request, lost)       ("displace", request, by)
    ("offload", request, blocks)         ("restore", request, blocks)
    ("fallback", reason, until step)     ("policy", name)                 ("cut-hold", now)
    ("classes", [name, …])               the limits of classes were replaced
    ("finish", request, index, reason)   ("cancel", request)              ("fail", request)
    ("draft", request, index, guesses)   ("wait", request, index)         to guess what follows it

The same inbox, times and seed give the same bytes. Nothing here names text or token ids.
"""

from __future__ import annotations

import json
from typing import Any, Protocol


class DecisionSink(Protocol):
    """Where entries go. Called on the engine thread; must be quick."""

    def __call__(self, *entry: Any) -> None: ...


def no_log(*entry: Any) -> None:
    """Drop every entry."""


class DecisionLog:
    """Keeps the entries in memory; bounded by whoever owns it."""

    def __init__(self) -> None:
        self.entries: list[tuple[Any, ...]] = []

    def __call__(self, *entry: Any) -> None:
        self.entries.append(entry)

    def encode(self) -> bytes:
        """The log as JSON lines. Floats are written in full, so equal bytes mean equal times."""
        return b"".join(
            json.dumps(entry, separators=(",", ":")).encode() + b"\n" for entry in self.entries
        )
