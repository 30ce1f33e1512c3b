"""Flatten the rows of a step into the arrays of a batch (`engine.batch`)."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import compress
from typing import Final, Protocol, TypeAlias, TypeVar

import numpy as np

from engine.batch import BLOCK, Int32, Rows
from engine.blocks import blocks_for
from engine.controls import ScoredRow


class Tabled(Protocol):
    """Tokens, and the block table that leads to their KV.

    sample_row: where the step in flight samples the token behind those that are known.
    """

    tokens: list[int]
    table: array[int]
    sample_row: int


Placed = TypeVar("Placed", bound=Tabled)

Packed: TypeAlias = tuple[Int32, Int32, Int32, Int32, Int32, Int32, Int32, Int32, Int32]
"""The arrays of a batch, in its order."""

_NO_ARRAY: Final = np.empty(0, np.int32)
NO_ARRAYS: Final[Packed] = (_NO_ARRAY,) * 9


class BatchArrays:
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
        sequences: list[Placed],
        rows: Rows,
        scored: Iterable[ScoredRow],
        drafts: Mapping[Placed, list[int]],
    ) -> BatchArrays:
        """The arrays of a batch with these rows of these sequences, those of one token first."""
        arrays = cls()
        decodes = rows.counts.count(1)
        arrays.add_decodes(sequences[:decodes], rows)
        for place in range(decodes, len(sequences)):
            start, samples = rows.starts[place], rows.samples[place]
            end = start + rows.counts[place]
            draft = drafts.get(sequences[place], ())
            arrays.add_chunk(sequences[place], start, end, samples=samples, draft=draft)
        for each in scored:
            first = arrays.qo_indptr[each.row] + each.first
            arrays.logit_rows.extend(range(first, first + len(each.targets)))
        return arrays

    def add_decodes(self, sequences: Sequence[Tabled], rows: Rows) -> None:
        """Rows of one token, all at once: most rows of most steps. They come first.

        rows: those of the sequences, and maybe more.
        """
        starts = rows.starts[: len(sequences)]
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
        sampled = list(compress(range(len(sequences)), rows.samples))
        self.sample_rows.extend(sampled)
        self.logit_rows.extend(sampled)

    def add_chunk(
        self, sequence: Tabled, start: int, end: int, *, samples: bool, draft: Iterable[int] = ()
    ) -> None:
        """A row of several tokens, the last of which may be a draft."""
        table = sequence.table
        self.token_ids.extend(sequence.tokens[start:end])
        self.token_ids.extend(draft)
        if samples:
            last = len(self.token_ids)
            samples_from = end - 1 if not draft else start
            self.sample_rows.extend([len(self.last_page_len)] * (end - samples_from))
            self.logit_rows.extend(range(last - (end - samples_from), last))
        self.positions.extend(range(start, end))
        self.slots.extend([table[p // BLOCK] * BLOCK + p % BLOCK for p in range(start, end)])
        self.qo_indptr.append(len(self.token_ids))
        self.last_page_len.append((end - 1) % BLOCK + 1)
        self.kv_indices.extend(table[: blocks_for(end)])  # more may be reserved
        self.kv_indptr.append(len(self.kv_indices))

    def packed(self) -> Packed:
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
