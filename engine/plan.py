"""What one step computes: the plan while it is made, and the flight once it is launched."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from engine.batch import BLOCK, Batch, Int32, Row
from engine.blocks import blocks_for
from engine.controls import SampleRow, ScoredRow
from engine.moves import Launched
from engine.request import Request, Sequence


class Plan:
    """Grants of one step, within its token budget. A sequence has at most one.

    gave_way: requests that were preempted for it. forced: whether somebody got more than the policy
    wanted, because progress was owed (E13).
    """

    def __init__(self, step: int, now: float, budget: int) -> None:
        self.step = step
        self.now = now
        self.budget = budget
        self.tokens = 0
        self.prompt_tokens = 0
        self.gave_way: set[Request] = set()
        self.forced = False
        self._grants: dict[Sequence, int] = {}

    @property
    def rows(self) -> int:
        return len(self._grants)

    @property
    def left(self) -> int:
        """Tokens of the budget that nobody got yet."""
        return self.budget - self.tokens

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._grants)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._grants

    def granted(self, request: Request) -> int:
        """Tokens that a request got."""
        return sum(self._grants.get(sequence, 0) for sequence in request.sequences)

    def grant(self, sequence: Sequence, count: int) -> None:
        """`count` tokens of the sequence will be computed."""
        sequence.scheduled = count
        self._grants[sequence] = count
        self.tokens += count

    def withdraw(self, sequence: Sequence) -> None:
        """Take a grant back, if there is one."""
        self.tokens -= self._grants.pop(sequence, 0)
        sequence.scheduled = 0

    def ordered(self) -> tuple[list[Sequence], list[Sequence]]:
        """Sequences that get one token, and those that get more, as granted.

        GPU attention runs the two groups through different kernels and wants each contiguous.
        """
        decodes = [sequence for sequence, count in self._grants.items() if count == 1]
        chunks = [sequence for sequence, count in self._grants.items() if count != 1]
        return decodes, chunks


@dataclass(slots=True)
class Flight:
    """A launched step: its batch, and for each row the sequence and the epoch it was planned in.

    moved: requests whose blocks it moves first. limbo: blocks to give back when it has landed.
    fault: what submitting it raised, if it did.
    """

    plan: Plan
    sequences: list[Sequence]
    epochs: list[int]
    batch: Batch
    sampling: list[SampleRow]
    moved: tuple[Request, ...]
    limbo: list[int]
    ticket: int | None = None
    started: float = 0.0
    fault: Exception | None = None


def launch(plan: Plan, moves: Launched, *, packed: bool = True) -> Flight:
    """Turn a plan and its moves into a batch, and its grants into tokens in flight.

    packed: whether the batch has arrays, or rows only.
    """
    decodes, chunks = plan.ordered()
    sequences = decodes + chunks
    rows: list[Row] = []
    sampling: list[SampleRow] = []
    sampled: list[Sequence] = []
    scored: list[ScoredRow] = []
    for sequence in sequences:
        request, count = sequence.request, sequence.scheduled
        start = sequence.computed + sequence.in_flight
        end = start + count
        samples = end == len(sequence.tokens) + sequence.pending  # the last that will be known
        rows.append(Row(request.id, sequence.index, start, count, samples))
        if samples:
            sequence.pending += 1
            sampled.append(sequence)
            sampling.append(
                SampleRow(
                    request.controls, sequence.index, end, sequence.tokens, request.prompt_length
                )
            )
        if request.unscored and sequence.index == 0:
            scored += _scored(request, len(rows) - 1, start, end)
        sequence.in_flight += count
        sequence.scheduled = 0
    arrays = _Arrays.of(decodes, chunks, rows, scored).packed() if packed else _NO_ARRAYS
    for place, sequence in enumerate(sampled):  # until now it says where the step before samples
        sequence.sample_row = place
    return Flight(
        plan=plan,
        sequences=sequences,
        epochs=[sequence.epoch for sequence in sequences],
        batch=Batch(
            plan.step,
            tuple(rows),
            *arrays,
            scored=tuple(scored),
            copies=moves.copies,
            offloads=moves.offloads,
            restores=moves.restores,
        ),
        sampling=sampling,
        moved=moves.requests,
        limbo=[],
    )


def _scored(request: Request, number: int, start: int, end: int) -> list[ScoredRow]:
    """Which tokens of a row say how likely the next ones of its prompt are, if any do.

    Those that have been scored are left out: after a preemption they are computed again.
    """
    alternatives = request.controls.prompt_logprobs
    assert alternatives is not None, "the prompt is not to be scored"
    first = max(start, len(request.prompt_logprobs))
    targets = request.submission.prompt[first + 1 : end + 1]
    return [ScoredRow(number, first - start, targets, alternatives)] if targets else []


_Packed: TypeAlias = tuple[Int32, Int32, Int32, Int32, Int32, Int32, Int32, Int32, Int32]
"""The arrays of a batch, in its order."""

_NO_ARRAY: Final = np.empty(0, np.int32)
_NO_ARRAYS: Final[_Packed] = (_NO_ARRAY,) * 9


class _Arrays:
    """The arrays of a batch while rows are added: C ints that numpy takes over without a copy."""

    def __init__(self) -> None:
        self.token_ids = array("i")
        self.positions = array("i")
        self.slots = array("i")
        self.qo_indptr = array("i", (0,))
        self.kv_indptr = array("i", (0,))
        self.kv_indices = array("i")
        self.last_page_len = array("i")
        self.sample_rows = array("i")
        self.logit_rows = array("i")

    @classmethod
    def of(
        cls,
        decodes: list[Sequence],
        chunks: list[Sequence],
        rows: list[Row],
        scored: list[ScoredRow],
    ) -> _Arrays:
        """The arrays of a batch whose `rows` are those of `decodes`, then those of `chunks`."""
        arrays = cls()
        arrays.add_decodes(decodes, rows)
        for sequence, row in zip(chunks, rows[len(decodes) :], strict=True):
            arrays.add_chunk(sequence, row)
        for each in scored:
            first = arrays.qo_indptr[each.row] + each.first
            arrays.logit_rows.extend(range(first, first + len(each.targets)))
        return arrays

    def add_decodes(self, sequences: list[Sequence], rows: list[Row]) -> None:
        """Rows of one token, all at once: most rows of most steps. They come first.

        rows: those of the sequences, and maybe more.
        """
        starts = [row.start for _, row in zip(sequences, rows, strict=False)]
        both = list(zip(sequences, starts, strict=True))
        # A token still in flight is written as -1 - (the row that samples it).
        self.token_ids.extend(
            [s.tokens[p] if p < len(s.tokens) else -1 - s.sample_row for s, p in both]
        )
        self.positions.extend(starts)
        self.slots.extend([s.table[p // BLOCK] * BLOCK + p % BLOCK for s, p in both])
        self.qo_indptr.extend(range(1, len(sequences) + 1))
        self.last_page_len.extend([p % BLOCK + 1 for p in starts])
        indices, indptr = self.kv_indices, self.kv_indptr
        for sequence, position in both:
            indices.extend(sequence.table[: position // BLOCK + 1])
            indptr.append(len(indices))
        sampled = [number for number in range(len(sequences)) if rows[number].samples]
        self.sample_rows.extend(sampled)
        self.logit_rows.extend(sampled)

    def add_chunk(self, sequence: Sequence, row: Row) -> None:
        """A row of several tokens."""
        start, end = row.start, row.start + row.count
        table = sequence.table
        if row.samples:
            self.sample_rows.append(len(self.last_page_len))
            self.logit_rows.append(len(self.token_ids) + row.count - 1)
        self.token_ids.extend(sequence.tokens[start:end])
        self.positions.extend(range(start, end))
        self.slots.extend([table[p // BLOCK] * BLOCK + p % BLOCK for p in range(start, end)])
        self.qo_indptr.append(len(self.token_ids))
        self.last_page_len.append((end - 1) % BLOCK + 1)
        self.kv_indices.extend(table[: blocks_for(end)])  # more may be reserved
        self.kv_indptr.append(len(self.kv_indices))

    def packed(self) -> _Packed:
        return (
            _int32(self.token_ids),
            _int32(self.positions),
            _int32(self.slots),
            _int32(self.qo_indptr),
            _int32(self.kv_indptr),
            _int32(self.kv_indices),
            _int32(self.last_page_len),
            _int32(self.sample_rows),
            _int32(self.logit_rows),
        )


def _int32(values: array[int]) -> Int32:
    """The same memory as a numpy array; an empty one has none to share."""
    return np.frombuffer(values, np.int32) if values else _NO_ARRAY
