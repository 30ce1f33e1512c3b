"""What one step will compute: who got how many tokens of the budget."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from engine.batch import BLOCK, Batch, Row
from engine.controls import SampleRow
from engine.request import Sequence


class Plan:
    """Grants of one step, within its token budget. A sequence has at most one."""

    def __init__(self, step: int, now: float, budget: int) -> None:
        self.step = step
        self.now = now
        self.budget = budget
        self.tokens = 0
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

    def grant(self, sequence: Sequence, count: int) -> None:
        """`count` tokens of the sequence will be computed."""
        sequence.scheduled = count
        self._grants[sequence] = count
        self.tokens += count

    def withdraw(self, sequence: Sequence) -> None:
        """Take a grant back, if there is one."""
        count = self._grants.pop(sequence, 0)
        sequence.scheduled = 0
        self.tokens -= count

    def ordered(self) -> list[Sequence]:
        """The sequences in batch order: rows of one token first, then chunks, as granted.

        GPU attention runs the two groups through different kernels and wants each contiguous.
        """
        decodes = [sequence for sequence, count in self._grants.items() if count == 1]
        chunks = [sequence for sequence, count in self._grants.items() if count != 1]
        return decodes + chunks


def build_batch(step: int, sequences: list[Sequence]) -> tuple[Batch, list[SampleRow]]:
    """The arrays of a step, and how each of its sampled rows is to be sampled.

    Every sequence must have `scheduled` tokens to compute and a table that holds them.
    """
    rows: list[Row] = []
    token_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    qo_indptr = [0]
    kv_indptr = [0]
    kv_indices: list[int] = []
    last_page_len: list[int] = []
    sample_rows: list[int] = []
    logit_rows: list[int] = []
    sampling: list[SampleRow] = []
    for number, sequence in enumerate(sequences):
        start, count, table = sequence.computed, sequence.scheduled, sequence.table
        end = start + count
        samples = end == len(sequence.tokens)
        rows.append(Row(sequence.request.id, sequence.index, start, count, samples))
        if count == 1:
            token_ids.append(sequence.tokens[start])
            positions.append(start)
            slots.append(table[start // BLOCK] * BLOCK + start % BLOCK)
        else:
            token_ids.extend(sequence.tokens[start:end])
            positions.extend(range(start, end))
            slots.extend(table[p // BLOCK] * BLOCK + p % BLOCK for p in range(start, end))
        qo_indptr.append(len(token_ids))
        kv_indices.extend(table)
        kv_indptr.append(len(kv_indices))
        last_page_len.append((end - 1) % BLOCK + 1)
        if samples:
            sample_rows.append(number)
            logit_rows.append(len(token_ids) - 1)
            sampling.append(_sample_row(sequence))
    batch = Batch(
        step=step,
        rows=tuple(rows),
        token_ids=_int32(token_ids),
        positions=_int32(positions),
        slots=_int32(slots),
        qo_indptr=_int32(qo_indptr),
        kv_indptr=_int32(kv_indptr),
        kv_indices=_int32(kv_indices),
        last_page_len=_int32(last_page_len),
        sample_rows=_int32(sample_rows),
        logit_rows=_int32(logit_rows),
    )
    return batch, sampling


def _sample_row(sequence: Sequence) -> SampleRow:
    submission = sequence.request.submission
    return SampleRow(
        controls=submission.controls,
        index=sequence.index,
        position=len(sequence.tokens),
        tokens=sequence.tokens,
        prompt_length=len(submission.prompt),
    )


def _int32(values: list[int]) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(values, dtype=np.int32)
