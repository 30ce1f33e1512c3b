"""Names of cached prefixes: a chained hash over the full blocks of a token sequence.

    root(salt) ──▶ key of block 0 ──▶ key of block 1 ──▶ …
                        ▲                  ▲
                   tokens 0-15        tokens 16-31

A key names a block's tokens, every token before them, and the salt: exactly what the KV in the
block depends on. So equal keys mean that the block can be used in place of computing it.

Why 16 bytes of BLAKE2b are enough. A wrong answer needs two different prefixes with one key. By
accident, n blocks meet with a probability of n² / 2^129: 10^-17 for 10^11 blocks. On purpose, to
hit the prefix of somebody else is a second preimage, 2^128 work; to make any two prefixes meet
takes 2^64 hashes by the birthday bound, and gains prompts that disturb only whoever sends them
under the same salt. No attack on full BLAKE2b does better. Roots and blocks are personalised
differently, so that no salt can be crafted to pass for a block; a parent and a block have fixed
lengths, so that their boundary cannot be moved. Keys are the same in every process, so that logs
can be replayed and routers can compare; a salt that is kept secret makes them unpredictable.

What the salt is for. Whoever finds a prefix cached gets a faster first token, and so can tell that
somebody sent it before. Requests whose salts differ share nothing. The salt is made of all that
should part them: the tenant where tenants are isolated, the request's `cache_salt`, an adapter.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence

from engine.batch import BLOCK

KEY_BYTES = 16
"""Bytes of a key."""

_ROOT = hashlib.blake2b(digest_size=KEY_BYTES, person=b"octavo root")
_BLOCK = hashlib.blake2b(digest_size=KEY_BYTES, person=b"octavo block")
_TOKEN_BYTES = 4
_BLOCK_TOKENS = struct.Struct(f"<{BLOCK}i")


def salt_of(*parts: str) -> bytes:
    """One salt from several texts. Each is preceded by its length: ("ab", "c") is not ("a", "bc").

    A part that does not apply is "", never left out.
    """
    encoded = [part.encode() for part in parts]
    return b"".join(len(part).to_bytes(4, "little") + part for part in encoded)


def root(salt: bytes) -> bytes:
    """The parent of a sequence's first block."""
    state = _ROOT.copy()
    state.update(salt)
    return state.digest()


def extend(parent: bytes, tokens: Sequence[int]) -> bytes:
    """The key of a block of BLOCK tokens behind the block (or root) whose key is `parent`.

    Raises ValueError if the block is not full: what is still written has no name.
    """
    if len(tokens) != BLOCK:
        raise ValueError(f"a key names {BLOCK} tokens, not {len(tokens)}")
    return _extend(parent, _BLOCK_TOKENS.pack(*tokens))


def block_keys(tokens: Sequence[int], salt: bytes) -> list[bytes]:
    """The keys of all full blocks of a prompt, in order. Meant to be called off the engine thread:
    the time is linear in the prompt."""
    packed = memoryview(_packed(tokens[: len(tokens) // BLOCK * BLOCK]))
    stride = BLOCK * _TOKEN_BYTES
    keys: list[bytes] = []
    parent = root(salt)
    for start in range(0, len(packed), stride):
        parent = _extend(parent, packed[start : start + stride])
        keys.append(parent)
    return keys


class KeyChain:
    """The keys of one sequence's full blocks, for as long as its tokens only grow.

    It starts with the keys of the prompt, or with none, and catches up with generated tokens.
    """

    __slots__ = ("_parent", "keys")

    def __init__(self, salt: bytes, keys: Iterable[bytes] = ()) -> None:
        self.keys = list(keys)
        self._parent = self.keys[-1] if self.keys else root(salt)

    def grow(self, tokens: Sequence[int]) -> list[bytes]:
        """The keys of the blocks filled since, given all tokens of the sequence from the first on.

        Costs nothing while the last block is not full.
        """
        known = len(self.keys)
        for start in range(known * BLOCK, len(tokens) - BLOCK + 1, BLOCK):
            self._parent = extend(self._parent, tokens[start : start + BLOCK])
            self.keys.append(self._parent)
        return self.keys[known:]

    def fork(self) -> KeyChain:
        """The chain of a sequence that has the same tokens now and goes its own way."""
        twin = KeyChain.__new__(KeyChain)
        twin.keys = self.keys.copy()
        twin._parent = self._parent
        return twin


def _packed(tokens: Sequence[int]) -> bytes:
    """Token ids as little-endian int32."""
    return struct.pack(f"<{len(tokens)}i", *tokens)


def _extend(parent: bytes, packed: bytes | memoryview) -> bytes:
    state = _BLOCK.copy()
    state.update(parent)
    state.update(packed)
    return state.digest()
