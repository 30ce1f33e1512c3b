"""Paged attention in torch for any mix of rows, planned once a step and used by every layer.

Rows of one token (decodes) are computed together, in buckets of similar length:

    slots   [R, T]   the slots that each row sees, then the first of them again as padding
    q       [R, kv_heads, group, head_dim]      the group stands where queries would
    k, v    [R, kv_heads, T, head_dim]          gathered once for all heads of a group

Rows of more tokens (chunks) are computed one by one, in tiles of queries, so that a tile reads
only the keys its queries see and its mask stays small. A slot that no query of the row sees is
never read, be it before the window or without a token: what is in it, NaN included, cannot leak.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from engine.batch import BLOCK, Batch
from engine.models.decoder import LayerKV

TILE = 256
"""Queries of a chunk that are computed at once."""

Int64 = npt.NDArray[np.int64]


class PagedAttention:
    """Attention of one batch, as a function of one layer's queries, K/V cache and window.

    queries: [tokens, heads, head_dim]; kv: what the slots hold, this step's tokens already written.
    window: how many tokens a query sees, itself included; None for all before it. Returns
    [tokens, heads, head_dim].
    """

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._plans: dict[int | None, _Plan] = {}

    def __call__(self, queries: Tensor, kv: LayerKV, window: int | None = None) -> Tensor:
        if window not in self._plans:
            self._plans[window] = _Plan(self._batch, window)
        out = torch.empty_like(queries)
        for part in self._plans[window].parts:
            part.attend(queries, kv, out)
        return out


class _Plan:
    """What is read and masked for the layers of one window, worked out once a step."""

    def __init__(self, batch: Batch, window: int | None) -> None:
        lengths = np.diff(batch.qo_indptr)
        kv_lens = batch.kv_lens.astype(np.int64)
        # The first token of each row that its first query sees.
        first = np.zeros_like(kv_lens) if window is None else kv_lens - lengths + 1 - window
        first = np.maximum(first, 0)
        self.parts: list[_Decodes | _Chunk] = [
            _Decodes(batch, rows, first[rows]) for rows in _buckets(lengths, kv_lens - first)
        ]
        self.parts += [
            _Chunk(batch, int(row), int(first[row]), window) for row in np.flatnonzero(lengths > 1)
        ]


def _buckets(lengths: npt.NDArray[np.int32], seen: Int64) -> Iterator[Int64]:
    """The one-token rows, grouped by the power of two above the number of blocks they see.

    Padding a bucket to its longest row then reads less than twice what its rows see.
    """
    rows = np.flatnonzero(lengths == 1)
    sizes = np.ceil(np.log2(-(-seen[rows] // BLOCK)))
    for size in np.unique(sizes):
        yield rows[sizes == size]


class _Decodes:
    """Rows of one query each, which sees the tokens from position `first` of its row."""

    def __init__(self, batch: Batch, rows: Int64, first: Int64) -> None:
        seen = batch.kv_lens[rows] - first
        offset = np.arange(seen.max())
        held = offset < seen[:, None]
        # Padding reads the first token again.
        slots = _slots(batch, rows[:, None], first[:, None] + np.where(held, offset, 0))
        self._tokens = torch.from_numpy(batch.qo_indptr[rows].astype(np.int64))
        self._shape = slots.shape
        self._slots = torch.from_numpy(slots.ravel())
        self._mask = None if held.all() else _mask(held)[:, None, None, :]  # [R, 1, 1, T]

    def attend(self, queries: Tensor, kv: LayerKV, out: Tensor) -> None:
        keys, values = kv.read(self._slots)
        k, v = keys.unflatten(0, self._shape), values.unflatten(0, self._shape)
        q = queries[self._tokens].unflatten(1, (k.shape[2], -1))  # [R, kv_heads, group, head_dim]
        result = functional.scaled_dot_product_attention(
            q, k.transpose(1, 2), v.transpose(1, 2), attn_mask=self._mask
        )
        out[self._tokens] = result.flatten(1, 2)


class _Chunk:
    """One row of several queries, the last positions of its KV; reads from position `first`."""

    def __init__(self, batch: Batch, row: int, first: int, window: int | None) -> None:
        self._first = int(batch.qo_indptr[row])
        count = int(batch.qo_indptr[row + 1]) - self._first
        kv_len = int(batch.kv_lens[row])
        self._slots = torch.from_numpy(_slots(batch, np.array(row), np.arange(first, kv_len)))
        before = kv_len - count - first
        self._tiles = [
            _Tile(start, min(start + TILE, count), before, window)
            for start in range(0, count, TILE)
        ]

    def attend(self, queries: Tensor, kv: LayerKV, out: Tensor) -> None:
        keys, values = kv.read(self._slots)
        kv_heads = keys.shape[1]
        group = queries.shape[1] // kv_heads
        # [kv_heads, group, T, head_dim]; the group's heads share memory.
        k, v = (read.transpose(0, 1)[:, None].expand(-1, group, -1, -1) for read in (keys, values))
        for tile in self._tiles:
            rows = slice(self._first + tile.start, self._first + tile.stop)
            q = queries[rows].unflatten(1, (kv_heads, group)).permute(1, 2, 0, 3)
            result = functional.scaled_dot_product_attention(
                q, k[:, :, tile.seen], v[:, :, tile.seen], attn_mask=tile.mask
            )
            out[rows] = result.permute(2, 0, 1, 3).flatten(1, 2)


class _Tile:
    """Queries start..stop of a chunk that has `before` earlier tokens; and what they see.

    seen: the tokens that any of them sees. mask: [stop - start, tokens seen]; `is_causal` of
    torch would align query 0 with key 0, which is wrong when there are tokens before.
    """

    def __init__(self, start: int, stop: int, before: int, window: int | None) -> None:
        self.start, self.stop = start, stop
        first = 0 if window is None else max(before + start + 1 - window, 0)
        self.seen = slice(first, before + stop)
        query = before + np.arange(start, stop)[:, None]
        key = np.arange(first, before + stop)
        seen = key <= query
        if window is not None:
            seen &= key > query - window
        self.mask = _mask(seen)


def _slots(batch: Batch, rows: Int64, positions: Int64) -> Int64:
    """Cache slots of these positions of these rows (the two broadcast)."""
    blocks = batch.kv_indices[batch.kv_indptr[rows] + positions // BLOCK].astype(np.int64)
    return blocks * BLOCK + positions % BLOCK


def _mask(seen: npt.NDArray[np.bool_]) -> Tensor:
    """What to add to the scores: 0 where seen, -inf elsewhere."""
    return torch.from_numpy(np.where(seen, np.float32(0), np.float32(-np.inf)))
