"""Tokens of a replay: each says what the one that was sampled did, and nothing of what it was."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from engine.grammar import Masks, Matcher

PLAIN: Final = 0
"""The sequence goes on. All guesses are this token."""

ENDS: Final = 1
"""It ends the sequence: the only stop id of a replay."""

WRONG: Final = 2
"""The sequence goes on, and the guess in its place was wrong."""

BREAKS: Final = 3
"""It breaks the grammar."""


class RecordedGrammar:
    """A grammar that allows everything. Its end is an ending token, its faults are recorded."""

    def matcher(self) -> RecordedMatcher:
        return RecordedMatcher()

    def prepare(self, matchers: Sequence[Matcher]) -> Callable[[], Masks]:
        def wait() -> Masks:
            return [None] * len(matchers)

        return wait


class RecordedMatcher:
    """Breaks at the token that says so."""

    over = False

    def __init__(self) -> None:
        self.fault = ""

    def accept(self, token: int) -> None:
        if token == BREAKS:
            self.fault = "as recorded"
