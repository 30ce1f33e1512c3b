"""Guesses that are right or wrong at random, the same ones in each run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Tokens

from engine.request import Sequence
from engine.speculation import Drafter

Expected = Callable[[Sequence, int], int]
"""The generated token of a sequence at a place."""


class Guesser(Drafter):
    """A drafter that knows what comes; each guess is wrong in `wrong` of 8 cases.

    It wants up to `most` tokens, and every other time a sequence to wait for the token in flight.
    """

    def __init__(self, expected: Expected, wrong: int = 2, most: int = 40) -> None:
        self._expected = expected
        self._wrong = wrong
        self._most = most

    def propose(self, decodes: list[Sequence], most: int) -> Iterator[tuple[Sequence, list[int]]]:
        for sequence in decodes:
            count = min(most, _number(sequence, 0) % self._most)
            yield sequence, [self._guess(sequence, ahead) for ahead in range(count)]

    def waits(self, sequence: Sequence) -> bool:
        return _number(sequence, 1) % 2 == 0

    def _guess(self, sequence: Sequence, ahead: int) -> int:
        right = self._expected(sequence, sequence.generated + ahead)
        return max(0, right - (_number(sequence, 2 + ahead) % 8 < self._wrong))


def repeating(sequence: Sequence, place: int) -> int:
    """What the script `echo` says."""
    prompt = sequence.request.submission.prompt
    return prompt[place % len(prompt)]


def telling(answers: Mapping[tuple[int, ...], Tokens[int]]) -> Expected:
    """What is answered to each prompt; then anything."""

    def expected(sequence: Sequence, place: int) -> int:
        answer = answers[tuple(sequence.request.submission.prompt)]
        return answer[place] if place < len(answer) else 0

    return expected


def _number(sequence: Sequence, purpose: int) -> int:
    name = (*sequence.name, len(sequence.tokens), purpose)
    return hash(name) >> 7  # of integers: the same in each process
