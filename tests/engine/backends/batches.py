"""Batches made by hand, for tests of what computes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engine.batch import BLOCK, Batch, Rows
from engine.controls import RowControls, SampleRow


@dataclass(frozen=True)
class Work:
    """Compute `tokens` of the sequence that lives in the blocks `table`, from position `start`."""

    table: Sequence[int]
    start: int
    tokens: Sequence[int]
    samples: bool = True


Moves = Sequence[tuple[int, int]]


def make_batch(
    work: Sequence[Work], copies: Moves = (), offloads: Moves = (), restores: Moves = ()
) -> Batch:
    """The arrays of a step that computes these rows in this order."""
    counts = [len(w.tokens) for w in work]
    ends = [w.start + len(w.tokens) for w in work]
    tables = [w.table[: -(-end // BLOCK)] for w, end in zip(work, ends, strict=True)]
    positions = [p for w, end in zip(work, ends, strict=True) for p in range(w.start, end)]
    owner = [w for w in work for _ in w.tokens]
    slots = [w.table[p // BLOCK] * BLOCK + p % BLOCK for w, p in zip(owner, positions, strict=True)]
    sampling = [i for i, w in enumerate(work) if w.samples]
    qo_indptr = np.cumsum([0, *counts])
    return Batch(
        step=0,
        rows=Rows(
            keys=[(i, 0) for i in range(len(work))],
            starts=[w.start for w in work],
            counts=counts,
            samples=[w.samples for w in work],
        ),
        token_ids=_int32([t for w in work for t in w.tokens]),
        positions=_int32(positions),
        slots=_int32(slots),
        qo_indptr=_int32(qo_indptr),
        kv_indptr=_int32(np.cumsum([0, *map(len, tables)])),
        kv_indices=_int32([block for table in tables for block in table]),
        last_page_len=_int32([(end - 1) % BLOCK + 1 for end in ends]),
        sample_rows=_int32(sampling),
        logit_rows=_int32([qo_indptr[i + 1] - 1 for i in sampling]),
        copies=tuple(copies),
        offloads=tuple(offloads),
        restores=tuple(restores),
    )


def greedy_rows(count: int, controls: RowControls | None = None) -> list[SampleRow]:
    """Rows that take the best token, for `count` sequences."""
    controls = controls or RowControls(temperature=0)
    return [SampleRow(controls, 0, 0, (), 0) for _ in range(count)]


def _int32(values: object) -> np.ndarray:
    return np.ascontiguousarray(values, dtype=np.int32)
