"""Grammars over token ids, without any text: what the engine makes of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from types import MappingProxyType
from typing import Final

import numpy as np

from engine.grammar import LATE, Grammar, Late, Mask, Masks, Matcher, first_allowed

VOCAB = 64

NEVER: Final[Mapping[int, float]] = MappingProxyType({})


def mask_of(allowed: Sequence[int], vocab: int = VOCAB) -> Mask:
    """The packed words of a mask that allows these tokens."""
    bits = np.zeros(-(-vocab // 32) * 32, dtype=np.uint8)
    bits[list(allowed)] = 1
    return np.packbits(bits, bitorder="little").view("<u4")


def masks_in_the_end(grammar: Grammar, matchers: Sequence[Matcher]) -> list[Mask | None]:
    """The masks of matchers, in as many steps that take no time as that needs."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        masks = grammar.prepare(matchers)()
        there = [mask for mask in masks if not isinstance(mask, Late)]
        if len(there) == len(masks):
            return there
    raise AssertionError("a mask never came")


class StepwiseMatcher:
    """Allows at each place what the grammar lists for it, then nothing."""

    def __init__(self, grammar: Stepwise) -> None:
        self.grammar = grammar
        self.accepted: list[int] = []
        self.fault = ""
        self.masking = False
        self.waited = 0

    @property
    def over(self) -> bool:
        return len(self.accepted) == len(self.grammar.places)

    def accept(self, token: int) -> None:
        assert not self.masking, "a matcher was told of a token while its mask was computed"
        if token not in self.grammar.places[len(self.accepted)]:
            self.fault = f"{token} is not allowed"
        elif len(self.accepted) == self.grammar.breaks_at:
            self.fault = "the grammar is too complex"
        self.accepted.append(token)
        self.waited = 0

    def forced(self) -> list[int]:
        assert not self.masking, "a matcher was asked while its mask was computed"
        if not self.grammar.forces:
            return []
        left = self.grammar.places[len(self.accepted) :]
        return [place[0] for place in takewhile(lambda place: len(place) == 1, left)]

    def mask(self) -> Mask | Late:
        if self.waited < self.grammar.late.get(len(self.accepted), 0):
            self.waited += 1
            return LATE
        return mask_of(self.grammar.places[len(self.accepted)])


class Stepwise:
    """A grammar of so many places, each of which allows some tokens.

    breaks_at: the place whose token makes it faulty. forces: whether it says which tokens it leaves
    no choice about. late: how often a mask is waited for in vain, by its place. matchers: all that
    it gave out. log: what was asked of it, in order.
    """

    def __init__(
        self,
        *places: Sequence[int],
        breaks_at: int = -1,
        forces: bool = False,
        late: Mapping[int, float] = NEVER,
    ) -> None:
        self.places = places
        self.forces = forces
        self.breaks_at = breaks_at
        self.late = late
        self.matchers: list[StepwiseMatcher] = []
        self.log: list[str] = []

    def matcher(self) -> StepwiseMatcher:
        self.matchers.append(StepwiseMatcher(self))
        return self.matchers[-1]

    def prepare(self, matchers: Sequence[Matcher]) -> Callable[[], Masks]:
        self.log.append("prepare")
        for matcher in matchers:
            assert isinstance(matcher, StepwiseMatcher)
            assert not matcher.masking or matcher.waited
            matcher.masking = True

        def wait() -> Masks:
            self.log.append("wait")
            masks: list[Mask | Late] = []
            for matcher in matchers:
                assert isinstance(matcher, StepwiseMatcher)
                mask = matcher.mask()
                masks.append(mask)
                if mask is not LATE:
                    matcher.masking = False
                    first_allowed(mask)
            return masks

        return wait


class Expecting:
    """A grammar that allows everything, and whose matchers insist on certain tokens, in order.

    expected: which token is the k-th, whatever came before. forced: how many tokens there is no
    choice about once so many have come. late: how often the mask of a token is waited for in vain.
    """

    def __init__(
        self,
        expected: Callable[[int], int],
        forced: Callable[[int], int] = lambda place: 0,
        late: Callable[[int], int] = lambda place: 0,
    ) -> None:
        self.expected = expected
        self.forced = forced
        self.late = late

    def matcher(self) -> ExpectingMatcher:
        return ExpectingMatcher(self)

    def prepare(self, matchers: Sequence[Matcher]) -> Callable[[], Masks]:
        known = [each.accepted for each in matchers if isinstance(each, ExpectingMatcher)]
        assert len(known) == len(matchers)

        def wait() -> Masks:
            asked = [each for each in matchers if isinstance(each, ExpectingMatcher)]
            now = [each.accepted for each in asked]
            assert now == known, "a matcher was told of a token while its mask was computed"
            return [each.mask() for each in asked]

        return wait


class ExpectingMatcher:
    """Counts what it accepts."""

    over = False
    fault = ""

    def __init__(self, grammar: Expecting) -> None:
        self.grammar = grammar
        self.accepted = 0
        self.waited = 0
        self.free = 0  # tokens that come without a mask

    def mask(self) -> Late | None:
        late = self.waited < self.grammar.late(self.accepted)
        self.waited += late
        return LATE if late else None

    def accept(self, token: int) -> None:
        masked = self.waited == self.grammar.late(self.accepted)
        assert masked or self.free, "there was no mask for this token"
        self.waited = 0
        self.free = max(0, self.free - 1)
        assert token == self.grammar.expected(self.accepted), "not the token that has landed"
        self.accepted += 1

    def forced(self) -> list[int]:
        grammar, place = self.grammar, self.accepted
        self.free = grammar.forced(place)
        return [grammar.expected(place + more) for more in range(grammar.forced(place))]
