"""The engine's side of a compiled grammar: matchers and their masks, by llguidance."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from app.structured.masks import MaskCrew, MaskRow
from app.text.tokenizer import Tokenizer
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
    grammar. masks: who computes masks. broken: is called when a matcher failed; what the grammar
    has found out may be the reason. opening: up to this text an answer is free. forces: whether
    tokens that it leaves no choice about are said.
    """

    def __init__(
        self,
        start: Any,
        tokenizer: Tokenizer,
        masks: MaskCrew,
        broken: Callable[[], None],
        opening: str = "",
        *,
        forces: bool = True,
    ) -> None:
        self.tokenizer = tokenizer
        self._start = start
        self._masks = masks
        self._broken = broken
        self._opening = opening.encode()
        self.forces = forces

    def begin(self) -> Any:
        """An LLMatcher at the start."""
        return self._start.deep_copy()

    def matcher(self) -> TokenMatcher:
        inner = self.begin()
        if self._opening:
            return FreeMatcher(self, inner, self._opening)
        return TokenMatcher(self, inner)

    def prepare(self, matchers: Sequence[Matcher]) -> Callable[[], Masks]:
        return self._masks.begin(cast("Sequence[TokenMatcher]", matchers)).wait

    def failed(self) -> None:
        """A matcher cannot go on."""
        self._broken()


class TokenMatcher:
    """How far a sequence has come (`engine.grammar.Matcher`)."""

    __slots__ = ("_grammar", "_inner", "_slow", "fault", "over", "row")

    def __init__(self, grammar: CompiledGrammar, inner: Any) -> None:
        self._grammar = grammar
        self._inner = inner
        self._slow = 0
        self.over = False
        self.fault = ""
        self.row: MaskRow | None = None

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

    def forced(self) -> Sequence[int]:
        """The tokens of what must come next, as the tokenizer would write it.

        Without the last ones if what follows may belong to the same token.
        """
        if not self._grammar.forces:
            return ()
        began = time.thread_time()
        tokens: list[int] = self._inner.compute_ff_tokens()
        self._count(began)
        if self._inner.is_error():
            self._fail(TOO_COMPLEX)
        return () if self.fault else tokens

    def fill(self, mask: Mask) -> bool:
        """Write the mask of what may come next. False if there is none: all may, or nothing."""
        if self.fault:
            return False
        began = time.thread_time()
        self._inner.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        self._count(began)
        if self._inner.is_error():
            self._fail(TOO_COMPLEX)
        return not self.fault

    def give_up(self) -> None:
        self._fail(TOO_COMPLEX)

    def _count(self, began: float) -> None:
        self._slow += time.thread_time() - began > SLOW_S
        if self._slow > MOST_SLOW:
            self._fail(TOO_COMPLEX)

    def _fail(self, reason: str) -> None:
        if not self.fault:
            self.fault = reason
            self._grammar.failed()


class FreeMatcher(TokenMatcher):
    """Lets everything pass until `opening` has come, as if there were no grammar.

    Only a token that might go on with an opening which has begun is held to the grammar, so that
    what stands behind the opening in the same token is right.
    """

    __slots__ = ("_free", "_lost", "_opening", "_tail")

    def __init__(self, grammar: CompiledGrammar, inner: Any, opening: bytes) -> None:
        super().__init__(grammar, inner)
        self._opening = opening
        self._tail = b""
        self._free = True
        self._lost = False

    def accept(self, token: int) -> None:
        if self._free and not self._follows(token):
            return
        super().accept(token)

    def forced(self) -> Sequence[int]:
        return () if self._free else super().forced()

    def fill(self, mask: Mask) -> bool:
        return not (self._free and not self._begun) and super().fill(mask)

    @property
    def _begun(self) -> bool:
        """Whether the text ends with the beginning of an opening."""
        tail, opening = self._tail, self._opening
        return any(tail.endswith(opening[:size]) for size in range(1, len(opening)))

    def _follows(self, token: int) -> bool:
        """Take a free token in. False if the grammar is not to know of it.

        It knows no control tokens, and once there were bytes that are no UTF-8 it knows nothing.
        """
        tokenizer = self._grammar.tokenizer
        if self._lost or tokenizer.is_control(token):
            return False
        if not self._inner.validate_tokens([token]):
            self._lost, self._tail = True, b""
            return False
        text = self._tail + tokenizer.token_bytes(token)
        self._free = self._opening not in text
        self._tail = text[-len(self._opening) :]
        return True
