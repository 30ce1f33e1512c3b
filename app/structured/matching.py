"""The engine's side of a compiled grammar: matchers and their masks, by llguidance."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any, Final

import numpy as np

from engine.grammar import Mask, Masks, Matcher

SLOW_S: Final = 0.03
"""CPU time that one mask or token of a grammar may take; less than a step of the default model."""

MOST_SLOW: Final = 3
"""So many masks or tokens of a sequence may take longer before it ends."""

TOO_COMPLEX: Final = "the grammar became too complex to go on"
NOT_ALLOWED: Final = "a token came that the grammar does not allow"


class CompiledGrammar:
    """A grammar over the tokens of the served model (`engine.grammar.Grammar`).

    start: an LLMatcher that has accepted nothing; copies of it share what was found out about the
    grammar. words: 32-bit words of a mask. masks: where masks are computed, one thread. broken: is
    called when a matcher failed; what the grammar has found out may be the reason.
    """

    def __init__(
        self, start: Any, words: int, masks: Executor, broken: Callable[[], None] | None = None
    ) -> None:
        self._start = start
        self._words = words
        self._masks = masks
        self._broken = broken

    def matcher(self) -> TokenMatcher:
        return TokenMatcher(self, self._start.deep_copy())

    def prepare(self, matchers: Sequence[Matcher]) -> Callable[[], Masks]:
        return self._masks.submit(self._compute, matchers).result

    def _compute(self, matchers: Sequence[Matcher]) -> Masks:
        words = np.empty((len(matchers), self._words), np.int32)
        masks: list[Mask | None] = []
        for matcher, row in zip(matchers, words, strict=True):
            assert isinstance(matcher, TokenMatcher)
            masks.append(row if matcher.fill(row) else None)
        return masks

    def failed(self) -> None:
        """A matcher cannot go on."""
        if self._broken is not None:
            self._broken()


class TokenMatcher:
    """How far a sequence has come (`engine.grammar.Matcher`)."""

    __slots__ = ("_grammar", "_inner", "_slow", "fault", "over")

    def __init__(self, grammar: CompiledGrammar, inner: Any) -> None:
        self._grammar = grammar
        self._inner = inner
        self._slow = 0
        self.over = False
        self.fault = ""

    def accept(self, token: int) -> None:
        if self.fault:
            return
        began = time.thread_time()
        accepted = self._inner.consume_token(token)
        self._count(began)
        if not accepted:
            foreign = "satisfy the grammar" in self._inner.get_error()
            self._fail(NOT_ALLOWED if foreign else TOO_COMPLEX)
        elif self._inner.is_stopped():
            self.over = True
            if not self._inner.is_accepting():
                self._fail("the grammar leads nowhere")

    def fill(self, mask: Mask) -> bool:
        """Write the mask of what may come next. False if there is none."""
        if self.fault:
            return False
        began = time.thread_time()
        self._inner.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        self._count(began)
        if self._inner.is_error():
            self._fail(TOO_COMPLEX)
        return not self.fault

    def _count(self, began: float) -> None:
        self._slow += time.thread_time() - began > SLOW_S
        if self._slow > MOST_SLOW:
            self._fail(TOO_COMPLEX)

    def _fail(self, reason: str) -> None:
        if not self.fault:
            self.fault = reason
            self._grammar.failed()
