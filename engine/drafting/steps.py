"""Steps of a draft model: a batch is made, computed and sampled, and what it took is learned."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from engine.backends.base import Backend
from engine.batch import Batch, Rows
from engine.clock import Clock
from engine.controls import RowControls, SampleRow
from engine.cost import LearningCost, LinearCost
from engine.drafting.draft import Draft
from engine.errors import RowFault
from engine.packing import NO_ARRAYS, BatchArrays
from engine.request import Sequence as EngineSequence

log = logging.getLogger("octavo.engine")


@dataclass(frozen=True, slots=True)
class DraftRow:
    """The next `count` tokens of a draft, whose blocks are there; samples: all that it has."""

    sequence: EngineSequence
    draft: Draft
    count: int
    samples: bool


class DraftSteps:
    """Computes rows with the draft model, one step after the other, each at once.

    cost: what a step takes, learned from each. A row whose sampling fails is not guessed any more.
    """

    def __init__(self, backend: Backend, clock: Clock, cost: LearningCost) -> None:
        self._backend = backend
        self._clock = clock
        self._cost = cost
        self._number = 0

    def learning_nothing(self) -> DraftSteps:
        """The same model, of whose steps nothing is learned."""
        return DraftSteps(self._backend, self._clock, LinearCost())

    def compute(self, rows: Iterable[DraftRow]) -> list[DraftRow]:
        """Compute rows, and guess a token of each that samples; returns those that got one."""
        ordered = sorted(rows, key=lambda row: row.count > 1)  # one token first, as in any batch
        began = self._clock.now()
        batch = self._batch(ordered)
        sampling = [row for row in ordered if row.samples]
        try:
            ticket = self._backend.submit(batch)
            self._backend.sample(ticket, [_sample_row(row) for row in sampling])
            tokens = self._backend.collect(ticket).tokens
        except RowFault as fault:
            self._mute(ordered, fault)
            return []
        for row in ordered:
            row.draft.computed += row.count
        for row, token in zip(sampling, tokens, strict=True):
            row.draft.tokens.append(token)
        self._cost.observe(batch.shape, self._clock.now() - began)
        return sampling

    def _batch(self, rows: Sequence[DraftRow]) -> Batch:
        drafts = [row.draft for row in rows]
        columns = Rows(
            keys=[row.sequence.name for row in rows],
            starts=[draft.computed for draft in drafts],
            counts=[row.count for row in rows],
            samples=[row.samples for row in rows],
        )
        wanted = self._backend.reads_arrays
        arrays = BatchArrays.of(drafts, columns, (), {}).packed() if wanted else NO_ARRAYS
        self._number += 1
        return Batch(self._number, columns, *arrays)

    def _mute(self, rows: Sequence[DraftRow], fault: RowFault) -> None:
        """Guess the faulty rows no more: of the others nothing was computed."""
        log.warning("the draft model cannot guess for some requests: %s", fault.reason)
        faulty = [rows[number] for number in fault.rows if 0 <= number < len(rows)]
        for row in faulty or rows:
            row.draft.mute = True


def _sample_row(row: DraftRow) -> SampleRow:
    """The row's own controls and random number, as the served model will have them."""
    request, tokens = row.sequence.request, row.draft.tokens
    controls = _silent(request.controls)
    return SampleRow(controls, row.sequence.index, len(tokens), tokens, request.prompt_length)


def _silent(controls: RowControls) -> RowControls:
    """The same choice, without a report of how likely it was."""
    return controls if controls.logprobs is None else replace(controls, logprobs=None)
