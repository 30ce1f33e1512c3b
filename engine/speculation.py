"""Speculation: decodes verify guesses of what follows, in the step that computes them anyway.

    known tokens  … t        guess  a b c
    the row       t a b c            four tokens from the position of t
    sampled       a b x y            each from its own logits, under its own controls and its own
                                     random number, as if the guesses before it were right
    landed        a b x              the sampled tokens up to the first that is no guess

A sampled token depends on the tokens before it, the controls, the seed and the position only. So
what lands is what would have come one by one, to the last bit, greedy or not. This is rejection
sampling for a guess that is certain of itself (Leviathan et al., https://arxiv.org/abs/2211.17192):
a guess is accepted just as often as the model says it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from typing import Final, Protocol

from engine.batch import BLOCK
from engine.memory import KVMemory
from engine.plan import Plan
from engine.prompt_lookup import Outlook
from engine.request import Sequence
from engine.roster import Roster
from policies.base import Share, StepCost

MOST_ROWS: Final = 32
"""Decodes in a step beyond which nobody guesses: a guess would have to be all but certain, and
watching them all takes time."""

SLOWER: Final = 0.5
"""By how much of its time guesses may lengthen a step that others decode in."""

WORTH: Final = 1.3
"""How many times its time a guess must be worth: what it costs beside computing is not in the cost
model, and a text that gains nothing should lose nothing."""

SURE: Final = 6
"""Matched tokens from which a sequence would rather wait for the token in flight, so that it can
guess the next ones, than have one computed after it."""


class Drafter(Protocol):
    """Guesses what follows. Sees sequences whose tokens are all known."""

    def propose(self, decodes: list[Sequence], most: int) -> Iterable[tuple[Sequence, list[int]]]:
        """Guesses for some of the step's decodes, `most` tokens altogether."""
        ...

    def waits(self, sequence: Sequence) -> bool:
        """Whether a sequence with a token in flight had better wait until it can be guessed on."""
        ...


@dataclass(frozen=True, slots=True)
class SpeculationSettings:
    """Guesses from the text itself (`prompt_lookup`).

    cost: what a step takes. tokens: most guesses of a sequence in a step. ngram: last tokens that
    must have stood together before.
    """

    cost: StepCost
    tokens: int = 15
    ngram: int = 3


class PromptLookup:
    """A `Drafter` that guesses as many tokens as make the step give the most tokens a second.

    The best guess of all sequences is added to the step for as long as its chance to be right, over
    the time it takes, is more than what the step gives on average. With one sequence a token costs
    little beside the weights that are read anyway; in a full batch it costs as much as any other,
    and nothing is guessed that is not all but certain.
    """

    def __init__(self, settings: SpeculationSettings) -> None:
        self._settings = settings

    def propose(self, decodes: list[Sequence], most: int) -> Iterable[tuple[Sequence, list[int]]]:
        chances: dict[Sequence, list[float]] = {}
        for sequence in decodes:
            outlook = self._outlook(sequence)
            ahead = sequence.request.tokens_at_most - len(sequence.tokens)
            if found := outlook.chances(min(self._settings.tokens, most, ahead)):
                chances[sequence] = found
        if chances:
            for sequence, count in self._counts(chances, decodes, most).items():
                assert sequence.outlook is not None
                yield sequence, sequence.outlook.draft(sequence.tokens, count)

    def waits(self, sequence: Sequence) -> bool:
        return self._outlook(sequence).matched >= SURE

    def _outlook(self, sequence: Sequence) -> Outlook:
        """What may follow the tokens that are known by now."""
        if sequence.outlook is None:
            sequence.outlook = Outlook(self._settings.ngram)
        sequence.outlook.follow(sequence.tokens)
        return sequence.outlook

    def _counts(
        self, chances: dict[Sequence, list[float]], decodes: list[Sequence], most: int
    ) -> dict[Sequence, int]:
        """How many tokens to guess of each sequence: the best first, while they pay."""
        cost = self._settings.cost
        rows, read = len(decodes), sum(len(sequence.tokens) for sequence in decodes)
        seconds = cost.seconds(0, rows, read, 0)
        limit = self._limit(decodes, seconds)
        expected = float(rows)
        nothing = cost.seconds(0, 0, 0, 0)
        counts: dict[Sequence, int] = {}
        best = [(-each[0], place) for place, each in enumerate(chances.values())]
        heapify(best)
        sequences = list(chances)
        while best and most > 0:
            chance, place = -best[0][0], best[0][1]
            sequence = sequences[place]
            price = cost.seconds(0, 1, 0, len(sequence.tokens)) - nothing
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

    def _limit(self, decodes: list[Sequence], seconds: float) -> float:
        """Seconds that a step may take with guesses: others in it are not held up for long."""
        if len(decodes) == 1:
            return math.inf
        target = min(sequence.request.submission.tpot_target for sequence in decodes)
        return min((1 + SLOWER) * seconds, max(seconds, target))


class Speculation:
    """Lets the decodes of a step verify guesses, in what nobody else wants of it."""

    def __init__(self, roster: Roster, drafter: Drafter) -> None:
        self._roster = roster
        self._memory: KVMemory = roster.memory
        self._drafter = drafter

    def widen(self, plan: Plan, share: Share) -> None:
        """Add guesses to rows of the plan.

        They are decode tokens of the policy's share and of the step's budget, and come after all
        that was granted. Nobody gives way for them, and blocks that running requests are about to
        need are left to them.
        """
        if len(self._roster.decoding) > MOST_ROWS:
            return
        most = min(plan.left, share.decode - (plan.tokens - plan.prompt_tokens))
        decodes = [s for s in plan if s in self._roster.decoding and may_guess(s)]
        if most < 1 or not decodes:
            return
        spare = self._spare_blocks()
        for sequence, guesses in self._drafter.propose(decodes, most):
            room = sequence.request.tokens_at_most - len(sequence.tokens)
            held = len(sequence.table) * BLOCK - len(sequence.tokens)
            room = min(room, max(held, 0) + max(spare, 0) * BLOCK, most)
            draft = guesses[:room]
            if not draft:
                continue
            before = self._memory.pool.free
            self._memory.extend(sequence, 1 + len(draft))
            spare -= before - self._memory.pool.free
            plan.widen(sequence, draft)
            most -= len(draft)
            self._roster.log("draft", *sequence.name, len(draft))

    def waits(self, sequence: Sequence) -> bool:
        """Whether a decode whose token is in flight is left out of the step that is planned."""
        few = len(self._roster.decoding) <= MOST_ROWS
        return few and guessable(sequence) and self._drafter.waits(sequence)

    def _spare_blocks(self) -> int:
        """Free blocks that running requests will not need for what is granted or due next."""
        memory, roster = self._memory, self._roster
        return memory.pool.free - memory.committed(roster.prefilling) - len(roster.decoding)


def guessable(sequence: Sequence) -> bool:
    """Whether a sequence may ever verify guesses.

    Beams go on from several places at once; under a grammar each mask needs the token before; and
    who asks how likely the prompt is has the logits of its steps spoken for.
    """
    return (
        sequence.beam is None
        and sequence.matcher is None
        and sequence.request.controls.prompt_logprobs is None
    )


def may_guess(sequence: Sequence) -> bool:
    """Whether a decode of the step being planned may verify guesses: all its tokens are known."""
    return not sequence.pending and sequence.generated > 0 and guessable(sequence)
