"""A step as numbers, for those who compute it without having planned it.

[step, length of each part ...] | the parts, one behind the other          all int32
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from engine.batch import Batch, Int32, Rows

ARRAYS: Final = (
    "positions",
    "slots",
    "qo_indptr",
    "kv_indptr",
    "kv_indices",
    "last_page_len",
    "sample_rows",
    "logit_rows",
)
MOVES: Final = ("offloads", "restores", "copies")
PARTS: Final = 1 + len(ARRAYS) + 1 + len(MOVES)
"""The token ids, the arrays, the rows that are verified, the moves."""


def pack(batch: Batch, token_ids: Int32) -> Int32:
    """A batch, with these token ids in place of its own."""
    parts = [token_ids, *(getattr(batch, name) for name in ARRAYS)]
    parts.append(np.asarray(batch.rows.verified, np.int32))
    parts += (np.asarray(getattr(batch, name), np.int32).ravel() for name in MOVES)
    head = np.asarray([batch.step % 2**31, *map(len, parts)], np.int32)
    return np.concatenate((head, *parts))


def unpack(numbers: Int32) -> Batch:
    """The batch that was packed, as far as computing it goes.

    Whose rows they are is not said (keys are their places), nor what of the prompt is scored: the
    logits for that are asked for like all others.
    """
    ends = np.cumsum(numbers[1 : 1 + PARTS])
    tokens, *parts = np.split(numbers[1 + PARTS :], ends[:-1])
    arrays = dict(zip(ARRAYS, parts, strict=False))
    verified, *moves = parts[len(ARRAYS) :]
    offloads, restores, copies = map(_pairs, moves)
    return Batch(
        step=int(numbers[0]),
        rows=_rows(arrays, verified.tolist()),
        token_ids=tokens,
        positions=arrays["positions"],
        slots=arrays["slots"],
        qo_indptr=arrays["qo_indptr"],
        kv_indptr=arrays["kv_indptr"],
        kv_indices=arrays["kv_indices"],
        last_page_len=arrays["last_page_len"],
        sample_rows=arrays["sample_rows"],
        logit_rows=arrays["logit_rows"],
        offloads=offloads,
        restores=restores,
        copies=copies,
    )


def _rows(arrays: dict[str, Int32], verified: Sequence[int]) -> Rows:
    firsts = arrays["qo_indptr"]
    samples = np.zeros(len(firsts) - 1, bool)
    samples[arrays["sample_rows"]] = True
    return Rows(
        keys=[(place, 0) for place in range(len(samples))],
        starts=arrays["positions"][firsts[:-1]].tolist(),
        counts=np.diff(firsts).tolist(),
        samples=samples.tolist(),
        verified=verified,
    )


def _pairs(numbers: Int32) -> tuple[tuple[int, int], ...]:
    flat = numbers.tolist()
    return tuple(zip(flat[::2], flat[1::2], strict=True))
