"""Keys that clients show: read from a request's head, and compared by their digests."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from typing import Generic, TypeVar

from pydantic import SecretStr
from starlette.datastructures import Headers

from app.config.schema import hashed

Owner = TypeVar("Owner")


def bearer(headers: Headers) -> bytes:
    """The key in exactly one `Authorization: Bearer KEY`; empty, which no key is, without one.

    The scheme's case and the number of blanks behind it do not matter (RFC 9110, section 11.4).
    """
    given = headers.getlist("authorization")
    scheme, _, token = given[0].partition(" ") if len(given) == 1 else ("", "", "")
    return token.strip(" ").encode("latin-1") if scheme.lower() == "bearer" else b""


class KeyRing(Generic[Owner]):
    """Keys with their owners; of a key no more than its SHA-256 is kept."""

    def __init__(self, keys: Iterable[tuple[SecretStr, Owner]]) -> None:
        """Keys are plain, or hashed as in the configuration."""
        self._keys = [(_digest(key), owner) for key, owner in keys]

    def __len__(self) -> int:
        return len(self._keys)

    def owner(self, headers: Headers) -> Owner | None:
        """Whose key a request shows; None if it shows none, or one that is not known.

        All keys are compared, and each digest to its end: the time it takes tells nothing of any
        key, nor which of them it was.
        """
        key = bearer(headers)
        shown = hashlib.sha256(key).digest()
        found = None
        for kept, owner in self._keys:
            if hmac.compare_digest(kept, shown):
                found = owner
        return found if key else None


def _digest(key: SecretStr) -> bytes:
    return bytes.fromhex(hashed(key).get_secret_value().partition(":")[2])
