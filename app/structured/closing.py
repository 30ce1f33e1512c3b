"""Answers in JSON that are brought to an end before they would be cut.

A small model often does not end lists, objects and texts by itself. Where a request asks for it,
its answer may go on for as long as what is left of its tokens is plainly more than closing takes.
From then on it is held to what closes: the end of a text, of a list, of an object, or the next
member that the schema still requires. It is valid by its schema, and shorter than it was meant.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from app.structured.matching import SLOW_S, CompiledGrammar, TokenMatcher
from app.structured.vocabulary import Vocabulary
from engine.grammar import Mask, Masks, Matcher, allows, first_allowed

Words: TypeAlias = npt.NDArray[np.int32]

MOST_FOLLOWED: Final = 256
"""Tokens of an ending that are looked ahead; what takes more is taken for as much."""

RESERVE: Final = 8
"""Tokens that are kept beside the ending."""

SPARE: Final = 1.5
"""How much longer than the ending that was found the model's own may be: it chooses names of
optional members, values of an enum, numbers."""

TEXT_ONLY: Final = b"~"
"""What may come in a text, and nowhere else in JSON."""

NUMBERS: Final = b"0123456789-.eE \n\t"
"""What a number may go on with, or a date with too many digits, and blanks."""


class Closers:
    """Which tokens of a vocabulary close something, as masks in order of preference."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        special = set(vocabulary.special)
        plain = [b"" if token in special else p for token, p in enumerate(vocabulary.pieces)]
        words = -(-len(plain) // 32)

        def tokens(wanted: Callable[[bytes], bool]) -> Words:
            return _packed([i for i, piece in enumerate(plain) if piece and wanted(piece)], words)

        signs = {piece: token for token, piece in reversed(list(enumerate(plain)))}
        self._text_only = signs.get(TEXT_ONLY)
        self._quote = [signs[sign] for sign in (b'"',) if sign in signs]
        self._signs = [signs[sign] for sign in (b"}", b"]", b'"', b",") if sign in signs]
        ends = _packed(sorted(vocabulary.eos), words)
        self._in_text = (ends, tokens(lambda p: p[:1] == b'"' and not p.strip(b'"]}')))
        self._elsewhere = (
            ends,
            tokens(lambda p: p[:1] in b"]}" and not p.strip(b'"]}')),
            tokens(lambda p: not p.strip(b'"')),
            tokens(lambda p: p == b","),
            ~tokens(lambda p: p[:1] in NUMBERS),
        )
        self._words = words

    def narrow(self, mask: Mask) -> None:
        """Leave of a mask what closes most, if anything in it does."""
        in_text = self._text_only is not None and allows(mask, self._text_only)
        for closing in self._in_text if in_text else self._elsewhere:
            both = mask & closing
            if both.any():
                mask[:] = both
                return

    def tokens_to_end(self, matcher: Any, most: int) -> int:
        """How many tokens of closing an LLMatcher is away from an end; `most` if it is further, or
        if it takes too long to find out, as with grammars that are made for that."""
        ahead = matcher.deep_copy()
        count, until = 0, time.thread_time() + SLOW_S
        while count < most and not ahead.is_stopped():
            if time.thread_time() > until:
                return most
            if ahead.is_accepting():
                return count + 1
            tokens = ahead.compute_ff_tokens() or self._closing(ahead)
            if not tokens or not ahead.consume_tokens(tokens):
                return most
            count += len(tokens)
        return min(count, most)

    def _closing(self, matcher: Any) -> list[int]:
        """A token that closes; single signs are tried first, which takes no mask."""
        in_text = self._text_only is not None and matcher.validate_tokens([self._text_only])
        for sign in self._quote if in_text else self._signs:
            if matcher.validate_tokens([sign]):
                return [sign]
        mask = np.frombuffer(matcher.compute_bitmask(), np.int32)[: self._words].copy()
        if matcher.is_error() or not mask.any():
            return []
        self.narrow(mask)
        return [first_allowed(mask)]


class ClosingGrammar:
    """A compiled grammar whose answers end within so many tokens (`engine.grammar.Grammar`).

    closers: gives those of the tokenizer, when they are needed first.
    """

    def __init__(
        self, grammar: CompiledGrammar, closers: Callable[[], Closers], tokens: int
    ) -> None:
        self._grammar = grammar
        self._closers = closers
        self._tokens = tokens

    def matcher(self) -> TokenMatcher:
        return ClosingMatcher(self._grammar, self._closers, self._tokens)

    def prepare(self, matchers: Sequence[Matcher]) -> Callable[[], Masks]:
        return self._grammar.prepare(matchers)


class ClosingMatcher(TokenMatcher):
    """Narrows its masks once what is left of an answer's tokens is needed to close it.

    How long an ending is is looked at again each time that half of what was to spare has gone. It
    depends on the tokens so far alone, so an answer is the same whoever is computed beside it.
    """

    __slots__ = ("_closers", "_closing", "_left", "_look_at")

    def __init__(
        self, grammar: CompiledGrammar, closers: Callable[[], Closers], tokens: int
    ) -> None:
        super().__init__(grammar, grammar.begin())
        self._closers = closers
        self._left = self._look_at = tokens
        self._closing = False

    def accept(self, token: int) -> None:
        super().accept(token)
        self._left -= 1

    def fill(self, mask: Mask) -> bool:
        if not super().fill(mask):
            return False
        if not self._closing and self._left <= self._look_at and self._chooses():
            self._look_ahead()
        if self._closing:
            self._closers().narrow(mask)
        return True

    def _chooses(self) -> bool:
        """Whether there is a choice here. Where there is none a token may come without a mask being
        asked for, and answers are to be the same whether it does."""
        return not self._inner.compute_ff_tokens()

    def _look_ahead(self) -> None:
        began = time.thread_time()
        most = min(self._left, MOST_FOLLOWED)
        ending = self._closers().tokens_to_end(self._inner, most)
        self._count(began)
        spare = int(self._left - SPARE * ending - RESERVE)
        self._closing = spare <= 0
        self._look_at = self._left - max(1, spare // 2)


def _packed(tokens: Sequence[int], words: int) -> Words:
    """A mask of these tokens."""
    bits = np.zeros(words * 32, np.uint8)
    bits[list(tokens)] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)
