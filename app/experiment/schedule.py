"""Who is in charge when: blocks in which every arm has one period, in an order that is drawn.

    block 0   B A   block 1   A B   block 2   A B  …

Requests in one batch interfere, so they cannot be given to arms one by one; periods can (a
switchback: Bojinov, Simchi-Levi and Zhao, "Design and analysis of switchback experiments",
https://doi.org/10.1287/mnsc.2022.4583). Arms of a block are compared with each other, so that what
traffic does from hour to hour is in all of them alike.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Turn:
    """A period: the number of its block, and its arm's."""

    block: int
    arm: int


def turns(arms: int, seed: int) -> Iterator[Turn]:
    """The periods of an experiment, without end; the same seed draws the same."""
    chance = random.Random(f"switchback {seed}")
    block = 0
    while True:
        order = list(range(arms))
        chance.shuffle(order)
        for arm in order:
            yield Turn(block, arm)
        block += 1
