"""How many tokens to guess of each sequence: the best guesses first, while they pay.

A guess pays while its chance to be right, over the time it takes, is more than what the step gives
on average. With one sequence a token costs little beside the weights that are read anyway; in a
full batch it costs as much as any other, and nothing is guessed that is not all but certain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from heapq import heapify, heappop, heapreplace
from typing import Final

from engine.request import Sequence
from policies.base import StepCost

SLOWER: Final = 0.5
"""By how much of its time guesses may lengthen a step that others decode in."""

WORTH: Final = 1.3
"""How many times its time a guess must be worth: what it costs beside computing is not in the cost
model, and a text that gains nothing should lose nothing."""

Seconds = Callable[[Sequence], float]
"""What one guess of a sequence takes."""


def at_no_cost(sequence: Sequence) -> float:
    """Guesses are there, and take time only to verify."""
    return 0.0


def guess_lengths(
    chances: Mapping[Sequence, list[float]],
    decodes: Collection[Sequence],
    most: int,
    cost: StepCost,
    drafting: Seconds = at_no_cost,
) -> dict[Sequence, int]:
    """How many tokens to guess of each sequence, `most` altogether; none of who is left out.

    chances: how likely a sequence's first guess is right, its first two, and so on. decodes: all
    that decode in the step. cost: of the steps that verify; drafting: what a guess takes to make.
    """
    rows, read = len(decodes), sum(len(sequence.tokens) for sequence in decodes)
    seconds = cost.seconds(0, rows, read, 0)
    limit = step_limit(decodes, seconds)
    expected = float(rows)
    nothing = cost.seconds(0, 0, 0, 0)
    counts: dict[Sequence, int] = {}
    best = [(-each[0], place) for place, each in enumerate(chances.values()) if each]
    heapify(best)
    sequences = list(chances)
    while best and most > 0:
        chance, place = -best[0][0], best[0][1]
        sequence = sequences[place]
        price = cost.seconds(0, 1, 0, len(sequence.tokens)) - nothing + drafting(sequence)
        if chance * seconds <= WORTH * expected * price or seconds + price > limit:
            break
        expected += chance
        seconds += price
        most -= 1
        count = counts[sequence] = counts.get(sequence, 0) + 1
        following = chances[sequence]
        if count < len(following):
            heapreplace(best, (-following[count], place))
        else:
            heappop(best)
    return counts


def step_limit(decodes: Collection[Sequence], seconds: float) -> float:
    """Seconds that a step may take with guesses, where it takes `seconds` without: others in it
    are not held up for long."""
    if len(decodes) == 1:
        return math.inf
    target = min(sequence.request.submission.tpot_target for sequence in decodes)
    return min((1 + SLOWER) * seconds, max(seconds, target))
