"""How many parts a JSON body has, told before anything is made of it.

A few bytes are an object, and hundreds of thousands of them are a second in which the parser, the
validator and the garbage collector keep every other thread out: streams stand still, and so do the
probes. A body of the same size that is one long text, or a list of token ids, is nothing like it.
"""

from __future__ import annotations

import re

MOST_PARTS = 2**16
"""Objects, lists and keys of a body, together. What is answered has fewer: 8192 messages of a role
and a content have 24,577, and take a token each at least."""

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
