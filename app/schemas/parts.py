"""How many parts a JSON body has, and how many levels, told before anything is made of it.

A few bytes are an object, and hundreds of thousands of them are a second in which the parser, the
validator and the garbage collector keep every other thread out: streams stand still, and so do the
probes. A body of the same size that is one long text, or a list of token ids, is nothing like it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

MOST_PARTS = 2**16
"""Objects, lists and keys of a body, together. What is answered has fewer: 8192 messages of a role
and a content have 24,577, and take a token each at least."""

MOST_LEVELS: Final = 200
"""Levels of objects and lists. orjson writes 254, and replies repeat parts of their requests."""

_QUOTE = ord('"')
_SIGNS = (b"{", b"[", b":")
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[{\[:]', re.DOTALL)
"""A string, whose signs do not count, or a sign that does. Reads any bytes once, left to right."""


def too_many_parts(body: bytes, most: int = MOST_PARTS) -> bool:
    """Whether a body has more than `most` objects, lists and keys; it need not be JSON."""
    if sum(map(body.count, _SIGNS)) <= most:  # those in strings counted as well: the usual case
        return False
    count = 0
    for found in _TOKEN.finditer(body):
        if body[found.start()] != _QUOTE:
            count += 1
            if count > most:
                return True
    return False


def too_many_levels(value: Any, most: int = MOST_LEVELS) -> bool:
    """Whether objects and lists, as parsed from JSON, are nested more deeply than `most` levels."""
    level = [value]
    for _ in range(most + 1):
        nested = [each for each in level if isinstance(each, dict | list)]
        if not nested:
            return False
        level = [member for each in nested for member in _members(each)]
    return True


def _members(value: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value
