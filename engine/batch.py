"""One step's work as data: rows, block moves, and the arrays every attention backend reads.

    tokens of the step, flattened:   a a a a | b | c c
    qo_indptr                        0         4   5     7
    kv_indices: block tables, flattened; kv_indptr: where each row's begins

Queries are the last `qo_len` positions of their `kv_len`; query i sees key j iff
j + qo_len <= kv_len + i. The position p of a sequence lives in slot
table[p // BLOCK] * BLOCK + p % BLOCK.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from engine.controls import ScoredRow

BLOCK = 16
"""Tokens in a KV block."""

Int32 = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Row:
    """Compute `count` tokens of one sequence from position `start`; `samples`: then sample."""

    request: int
    index: int
    start: int
    count: int
    samples: bool


class Rows:
    """The rows of a step by column. A `Row` is made when somebody looks at it: few do.

    keys: request and index of each row's sequence; the other columns are those of `Row`.
    verified: the rows all of whose tokens but the first are guesses (`engine.speculation`); each of
    their tokens has a sample.
    """

    __slots__ = ("counts", "keys", "samples", "starts", "verified")

    def __init__(
        self,
        keys: Sequence[tuple[int, int]],
        starts: Sequence[int],
        counts: Sequence[int],
        samples: Sequence[bool],
        verified: Sequence[int] = (),
    ) -> None:
        self.keys = keys
        self.starts = starts
        self.counts = counts
        self.samples = samples
        self.verified = verified

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, place: int) -> Row:
        request, index = self.keys[place]
        return Row(request, index, self.starts[place], self.counts[place], self.samples[place])

    def __iter__(self) -> Iterator[Row]:
        return map(self.__getitem__, range(len(self)))

    def __repr__(self) -> str:
        return repr(tuple(self))

    @property
    def tokens(self) -> int:
        return sum(self.counts)


@dataclass(slots=True)
class StepShape:
    """The four quantities that a step's time depends on, all counted in tokens.

    Made in each step, hence not frozen.

    prefill: tokens in rows of more than one; decodes: rows of one token; kv_read: KV positions
    read, over all rows; chunk_context: Σ over prefill rows of count · KV length. A guess that is
    verified counts as a decode, since it has logits, and as context what it reads once more.
    """

    prefill: int
    decodes: int
    kv_read: int
    chunk_context: int

    @classmethod
    def of(cls, rows: Rows) -> StepShape:
        starts, counts = rows.starts, rows.counts
        tokens, decodes = sum(counts), counts.count(1)
        context = 0
        if decodes < len(counts):
            lengths = zip(starts, counts, strict=True)
            context = sum(count * (start + count) for start, count in lengths if count != 1)
            for place in rows.verified:
                decodes += counts[place]
                context -= starts[place] + counts[place]
        return cls(tokens - decodes, decodes, sum(starts) + tokens, context)


@dataclass(slots=True)
class Batch:
    """What a backend computes in one step. All arrays are int32 and contiguous. Not frozen either.

    For a backend that does not read the arrays they are not made, and say nothing.

    offloads: (block, host block); restores: (host block, block); copies: (source block,
    destination block). All offloads are done first, then all restores, then all copies, and only
    then are K and V written: a block that was offloaded may be anything else in the same step.
    Within each of the three no source is also a destination.
    token_ids, positions, slots: one entry a token. A token id of -1 - j stands for the result of
    sample row j of the batch in flight.
    qo_indptr, kv_indptr (rows + 1), kv_indices, last_page_len (rows): CSR block tables.
    shape: what the step's time depends on.
    sample_rows: the rows that sample, in order, one that is `verified` once for each of its tokens;
    logit_rows: the flattened token whose logits each of them needs, and behind these the tokens of
    the `scored` rows, whose logits say how likely the prompt is.
    """

    step: int
    rows: Rows
    token_ids: Int32
    positions: Int32
    slots: Int32
    qo_indptr: Int32
    kv_indptr: Int32
    kv_indices: Int32
    last_page_len: Int32
    sample_rows: Int32
    logit_rows: Int32
    scored: tuple[ScoredRow, ...] = ()
    copies: tuple[tuple[int, int], ...] = ()
    offloads: tuple[tuple[int, int], ...] = ()
    restores: tuple[tuple[int, int], ...] = ()
    shape: StepShape = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.shape = StepShape.of(self.rows)

    @property
    def tokens(self) -> int:
        return self.rows.tokens

    @property
    def kv_lens(self) -> Int32:
        """KV length of each row, this step's tokens included."""
        blocks = np.diff(self.kv_indptr)
        return ((blocks - 1) * BLOCK + self.last_page_len).astype(np.int32)
