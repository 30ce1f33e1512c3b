"""Keys that clients show: read from a request's head, and compared by their digests."""

from __future__ import annotations

import hashlib

from starlette.datastructures import Headers


def bearer(headers: Headers) -> bytes:
    """The key in exactly one `Authorization: Bearer KEY`; empty, which no key is, without one."""
    given = headers.getlist("authorization")
    scheme, _, token = given[0].partition(" ") if len(given) == 1 else ("", "", "")
    return token.strip(" ").encode("latin-1") if scheme.lower() == "bearer" else b""


def digest(key: bytes) -> bytes:
    """What is kept and compared in a key's place: the time it takes tells nothing of the key."""
    return hashlib.sha256(key).digest()
