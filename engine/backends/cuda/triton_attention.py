"""Paged attention in Triton, for where FlashInfer cannot be had: the same protocol.

    plan    decodes    kv_indptr | last_page_len | kv_indices                        one upload
            chunks     kv_indptr | last_page_len | kv_indices | qo_indptr | tiles    one upload
    run     decodes in shares of their KV, merged; chunks in tiles of queries

Nothing is waited for: each plan uploads an array of its own. A graph has captured one buffer, into
which its plans are copied behind all work that reads the last one. Importing this imports triton.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from engine.backends.cuda.attention import LayerPools
from engine.backends.cuda.device import Device
from engine.backends.cuda.kernels.chunk_attention import (
    Tiles,
    chunk_attention,
    largest_tile,
    tile_size,
    tiles,
)
from engine.backends.cuda.kernels.decode_attention import decode_attention
from engine.backends.cuda.kernels.paging import Pool, Tables
from engine.backends.cuda.split import PagedRows, Split
from engine.backends.cuda.warm_up import every_variant
from engine.backends.cuda.wrappers import Scales
from engine.batch import Int32

EVERYTHING: Final = 1 << 30
"""A window that no position lies before."""


class TritonAttention:
    """The Attention protocol on kernels of `kernels`.

    heads: of the queries; the pools say the rest. scales: of a cache in float8_e4m3fn, None for
    other caches. Raises ValueError for heads that do not share the KV heads evenly.
    """

    def __init__(
        self, device: Device, layers: LayerPools, heads: int, *, scales: Scales | None = None
    ) -> None:
        keys = layers[0][0]
        kv_heads, head_dim = keys.shape[2:]
        if heads % kv_heads:
            raise ValueError(f"{heads} heads do not share {kv_heads} KV heads evenly")
        scales = scales or Scales()
        self._device, self._group = device, heads // kv_heads
        self._largest_tile = largest_tile(head_dim, keys.dtype)
        self._pools = [Pool(keys, values, scales.keys, scales.values) for keys, values in layers]
        self._decodes: Tables | None = None
        self._chunks: tuple[Tables, Tiles] | None = None
        self._tokens = self._decode_tokens = 0

    def plan(self, split: Split) -> None:
        """See `Attention`. Raises ValueError for a row of more queries than KV."""
        decodes, chunks = split.decodes, split.chunks
        with self._device.active():
            self._decodes = self._chunks = None
            if decodes is not None:
                self._decodes = Tables(*_uploaded(self._device, *_tables(decodes)))
            if chunks is not None:
                self._chunks = self._planned_chunks(chunks)
        self._decode_tokens = split.decode_tokens
        self._tokens = split.tokens

    def run(self, layer: int, queries: Tensor, window: int | None) -> Tensor:
        """See `Attention`. Raises ValueError for other tokens than were planned."""
        if len(queries) != self._tokens:
            raise ValueError(f"{len(queries)} queries, where {self._tokens} were planned")
        out, first = torch.empty_like(queries), self._decode_tokens
        pool, width = self._pools[layer], window or EVERYTHING
        if self._decodes is not None:
            decode_attention(queries[:first], pool, self._decodes, width, out[:first])
        if self._chunks is not None:
            chunk_attention(queries[first:], pool, *self._chunks, width, out[first:])
        return out

    def graph(self, bucket: int, most_blocks: int) -> TritonGraph:
        """See `Attention`."""
        return TritonGraph(self._device, self._pools, bucket, most_blocks)

    def warm_up(self, dtype: torch.dtype) -> None:
        """Compile all that steps may need for queries of this type; leaves nothing planned.

        Computes over the last block of the first layer, whatever is in it.
        """
        keys = self._pools[0].keys
        blocks, _, kv_heads, head_dim = keys.shape
        heads = kv_heads * self._group
        for step in every_variant(kv_heads, self._group, self._largest_tile, blocks - 1):
            self.plan(step)
            queries = torch.zeros(step.tokens, heads, head_dim, dtype=dtype, device=keys.device)
            with self._device.active():
                self.run(0, queries, None)
        self.plan(Split(None, None, decode_tokens=0))

    def _planned_chunks(self, rows: PagedRows) -> tuple[Tables, Tiles]:
        """Block tables and tiles of chunks, on the device."""
        counts = np.diff(rows.qo_indptr)
        size = tile_size(counts, self._group, self._largest_tile)
        listed = tiles(counts, rows.kv_lens, self._group, size)
        uploaded = _uploaded(self._device, *_tables(rows), rows.qo_indptr, *listed)
        return Tables(*uploaded[:3]), Tiles(size, *uploaded[3:])


class TritonGraph:
    """The GraphAttention protocol: decodes whose block tables are in a buffer that stays."""

    def __init__(
        self, device: Device, pools: Sequence[Pool], bucket: int, most_blocks: int
    ) -> None:
        self._device, self._pools = device, pools
        self._bucket, self._most_blocks = bucket, most_blocks
        sizes = [bucket + 1, bucket, most_blocks]
        where = device.torch_device
        self._buffer = torch.zeros(sum(sizes), dtype=torch.int32, device=where)
        self._tables = Tables(*self._buffer.split(sizes))

    def plan(self, decodes: PagedRows) -> None:
        """See `GraphAttention`. Raises ValueError for rows or blocks that are not the graph's."""
        blocks = len(decodes.kv_indices)
        if not decodes.rows == decodes.tokens == self._bucket:
            raise ValueError(f"{decodes.rows} rows for a graph of {self._bucket} decodes")
        if blocks > self._most_blocks:
            raise ValueError(f"{blocks} blocks for a graph of {self._most_blocks} at most")
        with self._device.active():
            planned = self._device.upload(np.concatenate(_tables(decodes)))
            self._buffer[: len(planned)].copy_(planned)

    def run(self, layer: int, queries: Tensor, window: int | None) -> Tensor:
        out = torch.empty_like(queries)
        decode_attention(queries, self._pools[layer], self._tables, window or EVERYTHING, out)
        return out


def _tables(rows: PagedRows) -> tuple[Int32, Int32, Int32]:
    """The arrays of `Tables`. Raises ValueError for a row of more queries than KV."""
    if (rows.kv_lens < np.diff(rows.qo_indptr)).any():
        raise ValueError("a row has more queries than KV")
    return rows.kv_indptr, rows.last_page_len, rows.kv_indices


def _uploaded(device: Device, *arrays: Int32) -> tuple[Tensor, ...]:
    """The arrays on the device, in one copy."""
    return device.upload(np.concatenate(arrays)).split([len(array) for array in arrays])
