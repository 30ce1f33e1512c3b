"""What stands for names and blocks in a recording: hashes whose salt is in no file."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Mapping
from typing import Any, Final

from app.config.schema import DEFAULT

SALT_BYTES: Final = 16
NAME_BYTES: Final = 6
KEY_BYTES: Final = 8
"""Of 10^7 blocks two are taken for one another with a probability of some 10^-6."""


class Names:
    """Equal names and blocks stay equal within a recording, and can be looked up nowhere.

    The salt is made with it and never leaves the process. `default` is nobody's name, and stays.
    known: the tenants and classes of the configuration, which parameters of policies may name.
    """

    def __init__(self, known: Iterable[str] = ()) -> None:
        self._salt = secrets.token_bytes(SALT_BYTES)
        self._known = frozenset(known)
        self._hidden: dict[str, str] = {}

    def name(self, name: str) -> str:
        """What stands for a tenant or a class."""
        if name == DEFAULT:
            return name
        hidden = self._hidden.get(name)
        if hidden is None:
            hidden = f"n{self._digest(name.encode(), NAME_BYTES).hex()}"
            self._hidden[name] = hidden
        return hidden

    def keys(self, keys: Iterable[bytes]) -> str:
        """What stands for blocks, in hexadecimal, one behind the other."""
        return b"".join(self._digest(key, KEY_BYTES) for key in keys).hex()

    def params(self, value: Any) -> Any:
        """Parameters of a policy, without names that the configuration knows."""
        if isinstance(value, str):
            return self.name(value) if value in self._known else value
        if isinstance(value, Mapping):
            return {self.params(key): self.params(each) for key, each in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.params(each) for each in value]
        return value

    def _digest(self, content: bytes, size: int) -> bytes:
        return hashlib.blake2b(content, digest_size=size, key=self._salt).digest()
