"""What a grammar has to know of a model's tokens, and how another process is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import orjson

if TYPE_CHECKING:
    from app.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokens of one tokenizer.

    pieces: the bytes of each token. special: ids that no text is made of. eos: ids that end an
    answer. encode: from the bytes of a text that goes on to tokens.
    """

    pieces: Sequence[bytes]
    special: Sequence[int]
    eos: Sequence[int]
    encode: Callable[[bytes], Sequence[int]]

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Vocabulary:
        return cls(
            [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)],
            sorted(tokenizer.control.values()),
            sorted(tokenizer.eos_ids),
            lambda text: tokenizer.encode(text.decode("utf-8", "replace"), continues=True),
        )

    def dump(self) -> bytes:
        """All but the encoder."""
        pieces = [piece.decode("latin-1") for piece in self.pieces]
        return orjson.dumps([pieces, list(self.special), list(self.eos)])

    @classmethod
    def load(cls, data: bytes) -> Vocabulary:
        """What was dumped. Texts are encoded byte by byte: a mask does not depend on it."""
        pieces, special, eos = orjson.loads(data)
        pieces = [piece.encode("latin-1") for piece in pieces]
        single = {piece[0]: token for token, piece in enumerate(pieces) if len(piece) == 1}
        return cls(
            pieces, special, eos, lambda text: [single[byte] for byte in text if byte in single]
        )
