"""What a draft model has of one sequence: tokens, their KV, and how often its guesses were right.

tokens   p p p p p p g g g ? ? ?        what is known, then guesses
         |-- computed ---------|        (the KV of the last guess is never needed)
         |---- known ----|
"""

from __future__ import annotations

from array import array
from typing import Final

PRIOR: Final = 0.7
"""How likely a guess is right before anything is known of a text."""

DOUBT: Final = 3.0
"""Comparisons that the prior counts for."""

MEMORY: Final = 0.95
"""What a comparison counts at the next one: some twenty of them make an estimate."""


class Draft:
    """One sequence, as the draft model sees it.

    tokens: the first `known` are the sequence's, the others guesses. computed: how many have their
    KV in the draft's cache, through `table`; its first `published` blocks can be found by others.
    wanted: whether guessing it paid when that was last asked. mute: it is not guessed any more.
    """

    __slots__ = (
        "_hits",
        "_trials",
        "computed",
        "known",
        "mute",
        "published",
        "sample_row",
        "table",
        "tokens",
        "wanted",
    )

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.known = 0
        self.computed = 0
        self.table = array("i")
        self.published = 0
        self.sample_row = -1  # nothing is ever in flight
        self.wanted = False
        self.mute = False
        self._hits = DOUBT * PRIOR
        self._trials = DOUBT

    @property
    def guesses(self) -> list[int]:
        return self.tokens[self.known :]

    @property
    def missing(self) -> int:
        """Tokens to compute before the next one can be guessed."""
        return len(self.tokens) - self.computed

    @property
    def chance(self) -> float:
        """How likely a guess is right whose predecessors are."""
        return self._hits / self._trials

    def follow(self, tokens: list[int]) -> bool:
        """Take the sequence's tokens in, of which more may be known by now.

        Guesses are compared with them, and those that are not right are forgotten, as are those
        that nobody can tell of. The last token is always left to compute: what comes behind it is
        not remembered. False if a guess was wrong.
        """
        agreed, known = self.known, len(tokens)
        right = True
        while agreed < min(known, len(self.tokens)):
            right = self.tokens[agreed] == tokens[agreed]
            self._hits = MEMORY * self._hits + right
            self._trials = MEMORY * self._trials + 1
            if not right:
                break
            agreed += 1
        del self.tokens[agreed:]
        self.tokens.extend(tokens[agreed:])
        self.known = known
        self.computed = min(self.computed, agreed, known - 1)
        return right
