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

import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from engine.batch import BLOCK
from engine.guess_lengths import guess_lengths
from engine.memory import KVMemory
from engine.plan import Plan
from engine.prompt_lookup import Outlook
from engine.request import Sequence
from engine.roster import Roster
from policies.base import Share, StepCost

log = logging.getLogger("octavo.engine")

MOST_ROWS: Final = 32
"""Decodes in a step beyond which nobody guesses: a guess would have to be all but certain, and
watching them all takes time."""

SURE: Final = 6
"""Matched tokens from which a sequence would rather wait for the token in flight, so that it can
guess the next ones, than have one computed after it."""


class Drafter:
    """Guesses what follows. What it raises costs guesses, from then on, and nothing else."""

    def propose(self, decodes: list[Sequence], most: int) -> Iterable[tuple[Sequence, list[int]]]:
        """Guesses for some of these decodes of a step, `most` tokens altogether.

        All tokens of the decodes are known. There may be none.
        """
        return ()

    def waits(self, sequence: Sequence) -> bool:
        """Whether a sequence with a token in flight had better wait until it can be guessed on."""
        return False

    def forget(self, sequence: Sequence) -> None:
        """A sequence runs no more: give back what is held for it, if anything is."""

    def forget_all(self) -> None:
        """Nobody runs any more, or nobody is guessed any more: start empty."""

    def check(self, running: Collection[Sequence]) -> None:
        """Assert that nothing is held but for these sequences, and that none of it is lost."""


@dataclass(frozen=True, slots=True)
class SpeculationSettings:
    """Guesses from the text itself (`prompt_lookup`).

    cost: what a step takes. tokens: most guesses of a sequence in a step. ngram: last tokens that
    must have stood together before.
    """

    cost: StepCost
    tokens: int = 15
    ngram: int = 3


class PromptLookup(Drafter):
    """Guesses as many tokens as make the step give the most tokens a second (`guess_lengths`)."""

    def __init__(self, settings: SpeculationSettings) -> None:
        self._settings = settings

    def propose(self, decodes: list[Sequence], most: int) -> Iterable[tuple[Sequence, list[int]]]:
        chances: dict[Sequence, list[float]] = {}
        for sequence in decodes:
            outlook = self._outlook(sequence)
            ahead = sequence.request.tokens_at_most - len(sequence.tokens)
            if found := outlook.chances(min(self._settings.tokens, most, ahead)):
                chances[sequence] = found
        if not chances:
            return
        for sequence, count in guess_lengths(chances, decodes, most, self._settings.cost).items():
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


class Speculation:
    """Lets the decodes of a step verify guesses, in what nobody else wants of it.

    A drafter that raises is not asked again: without guesses everything goes on as it would.
    """

    def __init__(self, roster: Roster, drafter: Drafter) -> None:
        self._roster = roster
        self._memory: KVMemory = roster.memory
        self._drafter = drafter
        self._off = False
        roster.on_stop = self._forget

    def widen(self, plan: Plan, share: Share) -> None:
        """Add guesses to rows of the plan.

        They are decode tokens of the policy's share and of the step's budget, and come after all
        that was granted. Nobody gives way for them, and blocks that running requests are about to
        need are left to them.
        """
        if self._off or len(self._roster.decoding) > MOST_ROWS:
            return
        most = min(plan.left, share.decode - (plan.tokens - plan.prompt_tokens))
        if most < 1:
            return
        decodes = [s for s in plan if s in self._roster.decoding and may_guess(s)]
        spare = self._spare_blocks()
        for sequence, guesses in self._ask(decodes, most):
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
        if self._off or len(self._roster.decoding) > MOST_ROWS or not guessable(sequence):
            return False
        try:
            waits = self._drafter.waits(sequence)
        except Exception:
            self._switch_off()
            return False
        if waits:
            self._roster.log("wait", *sequence.name)
        return waits

    def check(self) -> None:
        """Assert that the drafter holds nothing but for sequences that run."""
        running = self._roster.running.values()
        self._drafter.check([s for request in running for s in request.open_sequences])

    def _ask(self, decodes: list[Sequence], most: int) -> Iterable[tuple[Sequence, list[int]]]:
        """What the drafter guesses."""
        try:
            return list(self._drafter.propose(decodes, most))
        except Exception:
            self._switch_off()
            return ()

    def _forget(self, sequence: Sequence) -> None:
        if not self._off:
            self._drafter.forget(sequence)

    def _switch_off(self) -> None:
        """Ask the drafter, which has just raised, no more."""
        log.exception("guessing failed; nothing is guessed any more")
        self._roster.counters.draft_faults += 1
        self._off = True
        self._drafter.forget_all()

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
