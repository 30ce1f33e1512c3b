"""Random answers under a grammar, token by token, and what holds of the tokens that it forces."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np

from app.structured.masks import MaskCrew
from app.structured.matching import CompiledGrammar
from app.text.tokenizer import PieceTokenizer, Tokenizer
from support.grammars import masks_in_the_end

CLOSING = frozenset(b'"}]')


class PiecesTokenizer(PieceTokenizer):
    """Single bytes and some longer pieces; of a text it takes the longest piece each time."""

    def __init__(self, pieces: Sequence[str]) -> None:
        end = "<|im_end|>"
        longer = [piece.encode() for piece in pieces]
        singles = [bytes([byte]) for byte in range(256)]
        super().__init__(
            [*singles, *longer, end.encode()], {end: 256 + len(longer)}, eos_ids={256 + len(longer)}
        )
        self._ids = {piece: token for token, piece in enumerate([*singles, *longer])}

    def _encode(self, text: str, continues: bool) -> list[int]:
        left, ids = text.encode(), []
        while left:
            size = next(n for n in range(self._longest, 0, -1) if left[:n] in self._ids)
            ids.append(self._ids[left[:size]])
            left = left[size:]
        return ids


@dataclass(frozen=True)
class Walked:
    """A random answer. runs: tokens that were forced at once. complete: the grammar says it is."""

    tokens: list[int]
    runs: list[list[int]]
    complete: bool

    @property
    def forced(self) -> int:
        return sum(map(len, self.runs))


def walk(start: Any, tokenizer: Tokenizer, seed: int, most: int) -> Walked:
    """An answer of up to about `most` tokens, sampled under the masks of a grammar at random.

    Asserts that what is forced is what masks alone would force: one token after the other. Values
    are made short: every third token closes something, if it may.
    """
    with closing(MaskCrew(-(-tokenizer.vocab_size // 32))) as masks:
        grammar = CompiledGrammar(start, tokenizer, masks, lambda: None)
        matcher = grammar.matcher()
        draw = random.Random(seed)
        tokens: list[int] = []
        runs: list[list[int]] = []
        while len(tokens) < most and not matcher.over:
            forced = list(matcher.forced())
            for place, token in enumerate(forced):
                assert _allowed(grammar, matcher).tolist() == [token]
                assert list(matcher.forced()) == forced[place:]
                matcher.accept(token)
                assert not matcher.fault
            if forced:
                runs.append(forced)
                tokens += forced
                continue  # asks whether more is forced: it never is
            token = _choice(_allowed(grammar, matcher), tokenizer, draw)
            matcher.accept(token)
            assert not matcher.fault
            tokens.append(token)
        return Walked(tokens, runs, matcher.over)


def _allowed(grammar: CompiledGrammar, matcher: Any) -> np.ndarray:
    (mask,) = masks_in_the_end(grammar, [matcher])
    assert mask is not None, "the matcher is at fault, or free"
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))


def _choice(allowed: np.ndarray, tokenizer: Tokenizer, draw: random.Random) -> int:
    if draw.random() < 1 / 3:
        for token in allowed.tolist():
            piece = tokenizer.token_bytes(token)
            if piece and CLOSING.issuperset(piece):
                return int(token)
    return int(draw.choice(allowed))
