"""Requests whose steps show what each quantity costs: rows, contexts, chunks, and mixtures.

A round is a number of requests that come at once. Their prompts are computed in chunks of random
size beside those that already decode, and they end at different times, so that the rows of a step
run down from all of them to one.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from policies.base import Policy, Services, Share, StepView

ROUND_TOKENS: Final = (512, 3072)
"""Prompt tokens of a round, roughly: few, so that all rows come to decode together, or many."""

LONGEST_PROMPT: Final = 2048
OUTPUTS: Final = (4, 40)


class RandomChunks(Policy):
    """First come, first served, with as many prompt tokens in a step as chance says."""

    def __init__(self, *, services: Services) -> None:
        super().__init__(services=services)
        self._chance = random.Random("chunks")

    def share(self, step: StepView) -> Share:
        most = step.budget
        prompt = max(16, round(most * self._chance.choice((0.125, 0.25, 0.5, 0.75, 1, 1))))
        return Share(decode=most, prompt=prompt, chunk=prompt)


RANDOM_CHUNKS: Final = f"{__name__}:RandomChunks"
"""The name by which a configuration knows that policy."""


@dataclass(frozen=True, slots=True)
class Demand:
    """One request, in tokens."""

    prompt: int
    output: int


def rounds(rows: int, longest: int, seed: int = 0) -> Iterator[list[Demand]]:
    """Rounds without end, of one request to `rows`, each number once before any comes again.

    longest: tokens of a request at most.
    """
    chance = random.Random(f"rounds {seed}")
    numbers = _numbers(rows)
    while True:
        chance.shuffle(numbers)
        for number in numbers:
            tokens = chance.choice(ROUND_TOKENS)
            yield [_demand(chance, tokens // number, longest) for _ in range(number)]


def _numbers(rows: int) -> list[int]:
    """From one to all rows, each about a third more than the one before."""
    numbers = [1]
    while numbers[-1] < rows:
        numbers.append(min(rows, max(numbers[-1] + 1, numbers[-1] * 4 // 3)))
    return numbers


def _demand(chance: random.Random, mean: int, longest: int) -> Demand:
    """A request with a prompt of `mean` tokens on average."""
    output = min(chance.randint(*OUTPUTS), longest - 1)
    most = min(2 * mean, LONGEST_PROMPT, longest - output)
    return Demand(chance.randint(1, max(1, most)), output)
