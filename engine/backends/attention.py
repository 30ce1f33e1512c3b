"""Paged attention in torch for any mix of rows, planned once a step and used by every layer.

Rows of one token (decodes) are computed together, in buckets of similar length:

    slots   [R, T]   each row's own slots, then its first slot again as padding
    q       [R, kv_heads, group, head_dim]      the group stands where queries would
    k, v    [R, kv_heads, T, head_dim]          gathered once for all heads of a group

Rows of more tokens (chunks) are computed one by one, in tiles of queries, so that a tile reads
only the keys its last query sees and its mask stays small. A slot that holds no token of the row
is never read: what is in it, NaN included, cannot leak.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from engine.batch import BLOCK, Batch

TILE = 256
"""Queries of a chunk that are computed at once."""

Int64 = npt.NDArray[np.int64]


class PagedAttention:
    """Attention of one batch, as a function of one layer's queries and K/V pools.

    queries: [tokens, heads, head_dim]; keys, values: [blocks, BLOCK, kv_heads, head_dim], this
    step's tokens already written. Returns [tokens, heads, head_dim].
    """

    def __init__(self, batch: Batch) -> None:
        lengths = np.diff(batch.qo_indptr)
        self._buckets = [_Decodes(batch, rows) for rows in _buckets(batch, lengths)]
        self._chunks = [_Chunk(batch, int(row)) for row in np.flatnonzero(lengths > 1)]

    def __call__(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        keys, values = keys.flatten(0, 1), values.flatten(0, 1)  # [slots, kv_heads, head_dim]
        out = torch.empty_like(queries)
        for bucket in self._buckets:
            bucket.attend(queries, keys, values, out)
        for chunk in self._chunks:
            chunk.attend(queries, keys, values, out)
        return out


def _buckets(batch: Batch, lengths: npt.NDArray[np.int32]) -> Iterator[Int64]:
    """The one-token rows, grouped by the power of two above their block count.

    Padding a bucket to its longest row then reads less than twice what its rows hold.
    """
    rows = np.flatnonzero(lengths == 1)
    blocks = np.diff(batch.kv_indptr)[rows]
    sizes = np.ceil(np.log2(blocks))
    for size in np.unique(sizes):
        yield rows[sizes == size]


class _Decodes:
    """Rows of one query each."""

    def __init__(self, batch: Batch, rows: Int64) -> None:
        kv_lens = batch.kv_lens[rows].astype(np.int64)
        position = np.arange(kv_lens.max())
        held = position < kv_lens[:, None]
        # Padding reads position 0 again, which every row holds.
        slots = _slots(batch, rows[:, None], np.where(held, position, 0))
        self._tokens = torch.from_numpy(batch.qo_indptr[rows].astype(np.int64))
        self._shape = slots.shape
        self._slots = torch.from_numpy(slots.ravel())
        self._mask = None if held.all() else _mask(held)[:, None, None, :]  # [R, 1, 1, T]

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, out: Tensor) -> None:
        kv_heads = keys.shape[1]
        q = queries[self._tokens].unflatten(1, (kv_heads, -1))  # [R, kv_heads, group, head_dim]
        k = keys.index_select(0, self._slots).unflatten(0, self._shape)
        v = values.index_select(0, self._slots).unflatten(0, self._shape)
        result = functional.scaled_dot_product_attention(
            q, k.transpose(1, 2), v.transpose(1, 2), attn_mask=self._mask
        )
        out[self._tokens] = result.flatten(1, 2)


class _Chunk:
    """One row of several queries, the last positions of its KV."""

    def __init__(self, batch: Batch, row: int) -> None:
        self._first = int(batch.qo_indptr[row])
        count = int(batch.qo_indptr[row + 1]) - self._first
        kv_len = int(batch.kv_lens[row])
        self._slots = torch.from_numpy(_slots(batch, np.array(row), np.arange(kv_len)))
        self._tiles = [
            _causal_mask(start, min(start + TILE, count), kv_len - count)
            for start in range(0, count, TILE)
        ]

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, out: Tensor) -> None:
        kv_heads = keys.shape[1]
        group = queries.shape[1] // kv_heads
        # [kv_heads, group, T, head_dim]; the group's heads share memory.
        k, v = (
            pool.index_select(0, self._slots).transpose(0, 1)[:, None].expand(-1, group, -1, -1)
            for pool in (keys, values)
        )
        begin = self._first
        for mask in self._tiles:
            tile = slice(begin, begin + len(mask))
            seen = mask.shape[1]
            q = queries[tile].unflatten(1, (kv_heads, group)).permute(1, 2, 0, 3)
            result = functional.scaled_dot_product_attention(
                q, k[:, :, :seen], v[:, :, :seen], attn_mask=mask
            )
            out[tile] = result.permute(2, 0, 1, 3).flatten(1, 2)
            begin = tile.stop


def _slots(batch: Batch, rows: Int64, positions: Int64) -> Int64:
    """Cache slots of these positions of these rows (the two broadcast)."""
    blocks = batch.kv_indices[batch.kv_indptr[rows] + positions // BLOCK].astype(np.int64)
    return blocks * BLOCK + positions % BLOCK


def _causal_mask(start: int, stop: int, before: int) -> Tensor:
    """Mask [stop - start, before + stop] of queries start..stop behind `before` earlier tokens.

    `is_causal` of torch would align query 0 with key 0, which is wrong when before > 0.
    """
    query = np.arange(start, stop)[:, None]
    return _mask(np.arange(before + stop) <= before + query)


def _mask(seen: npt.NDArray[np.bool_]) -> Tensor:
    """What to add to the scores: 0 where seen, -inf elsewhere."""
    return torch.from_numpy(np.where(seen, np.float32(0), np.float32(-np.inf)))
