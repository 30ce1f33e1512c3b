"""Guess with a draft model, in as many small steps as there are guesses, for all rows at once.

    known     … t            computed by both models
    draft     t → a → b → c  three small steps: each guess is drawn as the served model would draw
                             it, under the same controls and the same random number
    verified  t a b c        one row of the next step of the served model (`engine.speculation`)

What lands is what the served model samples, whatever is guessed: answers are the same to the last
bit with any draft model, or none. Guesses are right as often as the two models draw the same token
from the same random number. That is a coupling of their two distributions for which neither asks
the other, and a text depends on its seed alone (Daliri, Musco, Suresh: Coupling without
Communication and Drafter-Invariant Speculative Decoding, https://arxiv.org/abs/2408.07978); the
sampler's is inversion: one number in [0, 1), looked up in either cumulative distribution.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Final

from engine.backends.base import Backend
from engine.batch import BLOCK
from engine.blocks import BlockPool, blocks_for
from engine.clock import Clock
from engine.controls import RowControls
from engine.cost import LearningCost
from engine.drafting.draft import Draft
from engine.drafting.memory import DraftMemory
from engine.drafting.steps import DraftRow, DraftSteps
from engine.guess_lengths import SLOWER, guess_lengths
from engine.inbox import Submission
from engine.memory import KVMemory
from engine.request import Request, Sequence
from engine.speculation import Drafter
from policies.base import StepCost

TRY_EVERY: Final = 32
"""Steps in which no guess pays, after which one token is guessed nevertheless: what was learned of
a text in a bad moment need not stay true. While such guesses come true each step has one."""

MEASURE_EVERY: Final = 128
"""The same where not even a guess that is certain would pay, as far as is known of what steps take:
then there is one guess, to learn that anew."""

MEASURED: Final = 64
MEASURED_GUESSES: Final = 6
MEASURED_ROUNDS: Final = 3
"""Prompt tokens, guesses and rounds by which it is measured what a step takes."""

JUST_BEHIND: Final = 2
"""Tokens that a draft lacks at most whose guesses have just been verified."""

Lengths = Mapping[Sequence, int]
"""How many tokens to guess of each sequence."""


@dataclass(frozen=True, slots=True)
class DraftSettings:
    """How a draft model is asked.

    cost: what a step of the served model takes. draft_cost: the same of the draft model. clock:
    what draft steps are timed with. tokens: most guesses of a sequence in a step. piece: most
    tokens of known text that the draft model computes in one step. context: tokens of a sequence
    from which it is not guessed. vocab: token ids that both models know.
    """

    cost: StepCost
    draft_cost: LearningCost
    clock: Clock
    tokens: int = 15
    piece: int = 128
    context: int = 1 << 30
    vocab: int = 1 << 30


class DraftModel(Drafter):
    """A second model, with KV of its own, that guesses what the first will say.

    It computes what is known of a sequence in pieces, and guesses once it has caught up; both only
    for sequences of which guesses pay (`guess_lengths`): the time of the draft's steps is part of
    their price, and how often a sequence's guesses have been right says what they are worth. Where
    its blocks do not suffice, who was guessed least recently gives way.
    """

    def __init__(self, backend: Backend, settings: DraftSettings) -> None:
        self.memory = DraftMemory(backend.total_blocks)
        self._settings = settings
        self._steps = DraftSteps(backend, settings.clock, settings.draft_cost)
        self._pending: dict[Sequence, None] = {}  # decodes with a token in flight
        self._idle = 0  # proposals without a guess

    def measure(self) -> None:
        """Compute some steps of made-up tokens, so that what a step takes is known before anybody
        waits for one. Nobody may be guessed yet.

        A first round is not learned from: weights are read from memory that nobody has touched.
        """
        learning, self._steps = self._steps, self._steps.learning_nothing()
        self._round()
        self._steps = learning
        for _ in range(MEASURED_ROUNDS):
            self._round()

    def _round(self) -> None:
        """A sequence of made-up tokens, caught up with and guessed."""
        prompt = min(MEASURED, self.memory.pool.total * BLOCK - MEASURED_GUESSES)
        sequence = _made_up(prompt)
        lengths = {sequence: MEASURED_GUESSES}
        draft = self.memory.of(sequence)
        draft.follow(sequence.tokens)
        for _ in range(blocks_for(prompt)):  # pieces are that long at least
            if not draft.guesses:
                self._compute(self._first_rows(lengths, [sequence]), lengths)
        self.memory.forget(sequence)

    # ---------------------------------------------------------------- the seam

    def propose(self, decodes: list[Sequence], most: int) -> list[tuple[Sequence, list[int]]]:
        drafts = self._candidates(decodes)
        if not drafts:
            return []
        chances = {sequence: draft.chance for sequence, draft in drafts.items()}
        lengths = self._lengths(chances, most)
        for sequence, draft in drafts.items():
            draft.wanted = sequence in lengths
        if lengths:
            self._idle = 0
        else:
            lengths = self._try_one(drafts)
        self._compute(self._first_rows(lengths, decodes), lengths)
        return [(s, drafts[s].guesses) for s in lengths if drafts[s].guesses]

    def waits(self, sequence: Sequence) -> bool:
        self._pending[sequence] = None
        draft = self.memory.drafts.get(sequence)
        if draft is None or draft.mute or not draft.wanted:
            return False
        return len(sequence.tokens) - draft.computed <= self._settings.piece

    def forget(self, sequence: Sequence) -> None:
        self._pending.pop(sequence, None)
        self.memory.forget(sequence)

    def forget_all(self) -> None:
        self._pending.clear()
        self.memory = DraftMemory(self.memory.pool.total)

    def check(self, running: Collection[Sequence]) -> None:
        self.memory.check(running)

    # ---------------------------------------------------------------- who, and how much

    def _candidates(self, decodes: list[Sequence]) -> dict[Sequence, Draft]:
        """Drafts that are worth a thought, with all that is known of their sequences."""
        pending, self._pending = self._pending, {}
        candidates: dict[Sequence, Draft] = {}
        for sequence in dict.fromkeys([*decodes, *pending]):
            if self._ahead(sequence) < 1:
                continue
            draft = self.memory.of(sequence)
            new = sequence.tokens[draft.known :]
            if not draft.follow(sequence.tokens):
                self._idle = 0
            self.memory.cut(draft, draft.computed)
            if max(new, default=0) >= self._settings.vocab:
                draft.mute = True
            if not draft.mute:
                candidates[sequence] = draft
        return candidates

    def _ahead(self, sequence: Sequence) -> int:
        """Tokens that could be guessed of a sequence, as far as lengths go."""
        most = min(self._settings.context, self.memory.pool.total * BLOCK)
        return min(sequence.request.tokens_at_most, most) - len(sequence.tokens)

    def _lengths(self, chances: Mapping[Sequence, float], most: int) -> Lengths:
        """How much to guess of each, if it were caught up with already.

        chances: how likely each guess of a sequence is right whose predecessors are.
        """
        settings = self._settings
        runs: dict[Sequence, list[float]] = {}
        for sequence, chance in chances.items():
            count = min(settings.tokens, most, self._ahead(sequence))
            runs[sequence] = [chance ** (place + 1) for place in range(count)]
        nothing = settings.draft_cost.seconds(0, 0, 0, 0)

        def drafting(sequence: Sequence) -> float:
            """A row in a step of the draft, which it shares with the others."""
            alone = settings.draft_cost.seconds(0, 1, len(sequence.tokens), 0)
            return alone - nothing + nothing / len(chances)

        return guess_lengths(runs, chances, most, settings.cost, drafting)

    def _try_one(self, drafts: Mapping[Sequence, Draft]) -> Lengths:
        """Once in a while a guess that does not seem to pay, of who was guessed least recently."""
        self._idle += 1
        if self._idle < TRY_EVERY:
            return {}
        if not self._lengths(dict.fromkeys(drafts, 1.0), 1):
            if self._idle < MEASURE_EVERY:
                return {}
            self._idle = 0
        order = [sequence for sequence in self.memory.drafts if sequence in drafts]
        return {min(order, key=lambda s: drafts[s].missing > self._settings.piece): 1}

    # ---------------------------------------------------------------- computing

    def _first_rows(self, lengths: Lengths, decodes: Collection[Sequence]) -> list[DraftRow]:
        """What is known and not computed, a piece of it, in blocks that are there by now.

        Who lacks least comes first. Rows of decodes that catch up with it guess a token.
        """
        memory, rows = self.memory, []
        for sequence in lengths:
            if not memory.drafts[sequence].table:
                memory.adopt(memory.drafts[sequence], _keys(sequence))
        order = sorted(lengths, key=lambda s: memory.drafts[s].missing)
        others = [sequence for sequence in memory.drafts if sequence not in lengths]
        left = JUST_BEHIND * len(order) + self._piece(lengths)
        guessed = set(decodes)
        for place, sequence in enumerate(order):
            draft = memory.drafts[sequence]
            count = min(draft.missing, left)
            if count < 1:
                break
            samples = count == draft.missing and sequence in guessed
            ahead = lengths[sequence] - 1
            end = draft.computed + count + (ahead if samples else 0)
            giving = [*others, *reversed(order[place + 1 :])]
            if memory.hold(draft, end, len(draft.tokens) + ahead, giving):
                left -= count
                rows.append(DraftRow(sequence, draft, count, samples))
        return rows

    def _piece(self, lengths: Lengths) -> int:
        """Tokens of known text to compute in a step, so that others are not held up for long."""
        settings = self._settings
        rows, read = len(lengths), sum(len(sequence.tokens) for sequence in lengths)
        seconds = SLOWER * settings.cost.seconds(0, rows, read, 0)
        nothing = settings.draft_cost.seconds(0, 0, 0, 0)
        token = settings.draft_cost.seconds(1, 0, 0, 0) - nothing
        if token <= 0:
            return settings.piece
        return max(BLOCK, min(settings.piece, int((seconds - nothing) / token)))

    def _compute(self, rows: list[DraftRow], lengths: Lengths) -> None:
        """Compute the first rows, and guess on behind those that sample."""
        guessing = self._steps.compute(rows) if rows else []
        while guessing := [row for row in guessing if self._goes_on(row, lengths)]:
            next_rows = [DraftRow(row.sequence, row.draft, 1, True) for row in guessing]
            guessing = self._steps.compute(next_rows)
        memory = self.memory
        for row in rows:
            draft, sequence = row.draft, row.sequence
            if draft.guesses and draft.guesses[-1] >= self._settings.vocab:
                draft.tokens.pop()
            memory.cut(draft, 0 if draft.mute else draft.computed)
            memory.publish(draft, _keys(sequence))
            if draft.guesses:
                memory.used(sequence)

    def _goes_on(self, row: DraftRow, lengths: Lengths) -> bool:
        """Whether more is to be guessed behind a guess."""
        guesses = row.draft.guesses
        if len(guesses) >= lengths[row.sequence] or guesses[-1] >= self._settings.vocab:
            return False
        return guesses[-1] not in row.sequence.request.ending_ids


def _keys(sequence: Sequence) -> Items[bytes]:
    """Under which keys the sequence's full blocks are cached, as far as they have any."""
    return () if sequence.chain is None else sequence.chain.keys


def _made_up(prompt: int) -> Sequence:
    """A sequence that nobody asked for."""
    submission = Submission(0, [0] * prompt, MEASURED_GUESSES, RowControls(), 0.0)
    return Request(submission, 0, KVMemory(BlockPool(1), cache=False)).sequences[0]
