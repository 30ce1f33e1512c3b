"""Stop strings, found in streamed text wherever its pieces are cut."""

from __future__ import annotations

import re
from collections.abc import Sequence


class StopMatcher:
    """Passes text on up to the first stop string.

    The stop that is complete first decides: with the stops "abcd" and "bc" the text "abcd" is cut
    before "bc", because nobody who has read a stream up to "abc" could know better. Of several that
    end at the same character the longest decides. So the result does not depend on how the text is
    cut into pieces. Held back is exactly the longest end of the text that may still become a stop.

    Every stop is followed by an automaton of its own (Knuth, Morris, Pratt), so a character costs
    amortised constant time for each stop, however long; text in which no stop begins is skipped by
    a regular expression. The text held back is a beginning of a stop, so it is never copied.
    """

    def __init__(self, stops: Sequence[str], include: bool = False) -> None:
        """`include`: pass the stop string itself on as well. Raises ValueError for an empty one."""
        if "" in stops:
            raise ValueError("a stop string must not be empty")
        self._automata = [_Automaton(stop) for stop in dict.fromkeys(stops)]
        self._begin = re.compile("|".join(re.escape(char) for char in {s[0] for s in stops}))
        self._include = include
        self._open = False  # whether the text read so far ends inside a stop
        self._found: str | None = None

    def feed(self, text: str) -> tuple[str, str | None]:
        """Take the next piece; returns the text that is safe to emit, and the stop once found.

        What follows a stop is dropped.
        """
        if self._found is not None:
            return "", self._found
        if not self._automata or not (self._open or self._begin.search(text)):
            return text, None
        stop, held = self._held()
        read, self._found = self._scan(text)
        if self._found is None:
            unsafe = self._held()[1]
        else:
            unsafe = 0 if self._include else len(self._found)
        safe = held + read - unsafe
        return stop[: min(safe, held)] + text[: max(safe - held, 0)], self._found

    def flush(self) -> str:
        """End the text: returns what was held back. Nothing may be fed after it."""
        if self._found is not None or not self._open:
            return ""
        stop, held = self._held()
        return stop[:held]

    def _held(self) -> tuple[str, int]:
        """The text held back, as a stop and how many of its characters."""
        longest = max(self._automata, key=lambda automaton: automaton.matched)
        return longest.stop, longest.matched

    def _scan(self, text: str) -> tuple[int, str | None]:
        """Read `text` up to the first complete stop; returns how far, and the stop."""
        position = 0
        while position < len(text):
            if not self._open:
                begin = self._begin.search(text, position)
                if begin is None:
                    break
                position = begin.start()
            complete = self._step(text[position])
            position += 1
            if complete is not None:
                return position, complete
        return len(text), None

    def _step(self, char: str) -> str | None:
        """Read one character; returns the longest stop that it completes."""
        for automaton in self._automata:
            automaton.read(char)
        self._open = any(automaton.matched for automaton in self._automata)
        complete = (automaton.stop for automaton in self._automata if automaton.complete)
        return max(complete, key=len, default=None)


class _Automaton:
    """How many of a stop's characters the text read so far ends with.

    `_borders[i]` is the length of the longest proper border of `stop[: i + 1]`; it is computed only
    as far as the text has matched, so an unmatched stop costs nothing, however long.
    """

    __slots__ = ("_borders", "matched", "stop")

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.matched = 0
        self._borders = [0]

    @property
    def complete(self) -> bool:
        return self.matched == len(self.stop)

    def read(self, char: str) -> None:
        """Move on by one character. Not to be called once complete."""
        self.matched = self._advance(self.matched, char)
        if self.matched > len(self._borders):
            self._borders.append(self._advance(self._borders[-1], char))

    def _advance(self, length: int, char: str) -> int:
        """The longest beginning of the stop that ends stop[:length] + char."""
        while length and self.stop[length] != char:
            length = self._borders[length - 1]
        return length + 1 if self.stop[length] == char else 0
