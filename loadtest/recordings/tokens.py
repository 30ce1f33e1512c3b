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

FORCES: Final = 4
"""From here on: see `forcing`."""


def forcing(count: int, last: int) -> int:
    """The token after which a grammar forces `count` more, the last of which is `last`."""
    return FORCES * count + last


class RecordedGrammar:
    """A grammar that allows everything. Its end is an ending token; what it forces, and its faults,
    are recorded."""

    def matcher(self) -> RecordedMatcher:
        return RecordedMatcher()

    def prepare(self, matchers: Sequence[Matcher]) -> Callable[[], Masks]:
        def wait() -> Masks:
            return [None] * len(matchers)

        return wait


class RecordedMatcher:
    """Breaks at the token that says so, and forces as many as one says."""

    over = False

    def __init__(self) -> None:
        self.fault = ""
        self._forced: list[int] = []

    def accept(self, token: int) -> None:
        count, last = divmod(token, FORCES)
        self._forced = [PLAIN] * (count - 1) + [last] * (count > 0)
        if token == BREAKS:
            self.fault = "as recorded"

    def forced(self) -> list[int]:
        return self._forced
