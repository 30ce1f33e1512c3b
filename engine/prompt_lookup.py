"""Guess what follows from where the same tokens stood before (prompt lookup, n-gram drafts).

Answers that repeat their prompt, or themselves, are foretold by what came after the last tokens the
time before (Saxena: Prompt Lookup Decoding, https://github.com/apoorvumang/prompt-lookup-decoding).
A guess is watched whether or not anybody computes with it: the next token is right or wrong anyway.
So how far guesses can be trusted is learned at no cost, and a text that repeats nothing costs
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

LOOK_BACK: Final = 4096
"""Tokens that are found again at least. An index has twice as many entries at most."""

CATCH_UP: Final = 64
"""Tokens that are compared with guesses one by one; of more that came meanwhile, none is."""

MEMORY: Final = 0.95
"""What a comparison counts at the next one: some twenty of them make an estimate."""

FROM: Final = (0, 1, 6, 16)
"""Matched tokens from which a guess is of the next kind. 0: the guess before was wrong, and maybe
one token only was another."""

PRIOR: Final = (0.2, 0.25, 0.6, 0.85)
"""How likely a guess of each kind is right, before anything is known of a text."""

DOUBT: Final = 2.0
"""Comparisons that the prior counts for."""


class NgramIndex:
    """Where the last `size` tokens of a growing list stood before. O(1) a token, amortised."""

    __slots__ = ("_indexed", "_places", "_size")

    def __init__(self, size: int) -> None:
        self._size = size
        self._places: dict[tuple[int, ...], int] = {}
        self._indexed = 0  # tokens whose n-grams are known, by where they end

    def find(self, tokens: Sequence[int]) -> int | None:
        """The place behind the latest earlier occurrence of the last tokens; None without one."""
        size, end = self._size, len(tokens) - 1
        if end < size:
            return None
        if len(self._places) > 2 * LOOK_BACK:
            self._places.clear()
            self._indexed = end - LOOK_BACK
        first = max(self._indexed - size + 1, 0)
        known = tokens[first:end]
        ngrams = zip(*(known[i:] for i in range(size)), strict=False)
        self._places.update(zip(ngrams, range(first + size, end + 1), strict=False))
        self._indexed = end
        return self._places.get(tuple(tokens[-size:]))


class Outlook:
    """What may follow one sequence, and how likely that is.

    matched: tokens before the guess that are those before the place it is taken from.
    """

    __slots__ = ("_hits", "_index", "_next", "_seen", "_trials", "matched")

    def __init__(self, size: int) -> None:
        self._index = NgramIndex(size)
        self._next: int | None = None  # the place of the token that is the next one's guess
        self._seen = 0
        self._hits = [DOUBT * prior for prior in PRIOR]
        self._trials = [DOUBT] * len(PRIOR)
        self.matched = 0

    def follow(self, tokens: Sequence[int]) -> None:
        """Compare the tokens that came since with what was guessed, and guess anew."""
        length = len(tokens)
        if length - self._seen > CATCH_UP or length < self._seen:
            self._next, self._seen = None, length
        for place in range(self._seen, length):
            guess = self._next
            if guess is None:
                break
            right = tokens[guess] == tokens[place]
            kind = _kind(self.matched)
            self._hits[kind] = MEMORY * self._hits[kind] + right
            self._trials[kind] = MEMORY * self._trials[kind] + 1
            if right:
                self.matched += 1
            elif self.matched:
                self.matched = 0
            else:
                self._next = None
                break
            self._next = guess + 1
        self._seen = length
        if self._next is None or not self.matched:
            found = self._index.find(tokens)
            if found is not None:
                self._next, self.matched = found, _matched(tokens, found)

    def chances(self, most: int) -> list[float]:
        """How likely the first guess is right, the first two, and so on up to `most`."""
        chances: list[float] = []
        if self._next is None:
            return chances
        chance = 1.0
        for ahead in range(most):
            kind = _kind(self.matched + ahead)
            chance *= self._hits[kind] / self._trials[kind]
            chances.append(chance)
        return chances

    def draft(self, tokens: Sequence[int], count: int) -> list[int]:
        """The next `count` tokens as guessed. Beyond the known ones it goes on with the guess."""
        start = self._next
        assert start is not None, "nothing is guessed"
        draft = list(tokens[start : start + count])
        period = len(tokens) - start
        while len(draft) < count:
            draft.append(draft[len(draft) - period])
        return draft


def _kind(matched: int) -> int:
    if matched >= FROM[2]:
        return 3 if matched >= FROM[3] else 2
    return 1 if matched >= FROM[1] else 0


def _matched(tokens: Sequence[int], place: int) -> int:
    """How many tokens before `place` are the last ones, up to what makes no difference any more."""
    count, end = 0, len(tokens)
    while (
        count < FROM[-1] and count < place and tokens[place - 1 - count] == tokens[end - 1 - count]
    ):
        count += 1
    return count
