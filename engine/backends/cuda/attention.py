"""Paged attention through FlashInfer: planned once a step, run in each layer.

    plan    decodes ─▶ decode wrapper     chunks ─▶ prefill wrapper     on the host
    run     queries [:decode_tokens]      queries [decode_tokens:]      in every layer

What was planned holds until the next plan. At depth 1 that is made while the device runs the step
before: nothing here waits for that step, only for the copies of the plan before it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from engine.backends.cuda.device import Device
from engine.backends.cuda.split import PagedRows, Split, joined
from engine.backends.cuda.wrappers import (
    WORKSPACE_BYTES,
    Buffers,
    Scales,
    Shape,
    Tables,
    Wrapper,
    WrapperMaker,
    bytes_needed,
    multiprocessors,
)

LayerPools = Sequence[tuple[Tensor, Tensor]]
"""(keys, values) of each layer, [blocks, BLOCK, kv_heads, head_dim]."""


class Attention(Protocol):
    """Attention of a step over the pools of all layers.

    window: how many tokens a query sees, itself included; None for all before it.
    """

    def plan(self, split: Split) -> None:
        """Get ready for the rows of a step. Without rows nothing is planned and nothing run."""
        ...

    def run(self, layer: int, queries: Tensor, window: int | None) -> Tensor:
        """Attention of queries [tokens, heads, head_dim], in that shape.

        K and V of the step are in the pools already.
        """
        ...

    def graph(self, bucket: int, most_blocks: int) -> GraphAttention:
        """For a graph of `bucket` decodes that have `most_blocks` blocks together, at most.

        Ask for the largest first: the others use its buffers.
        """
        ...


class GraphAttention(Protocol):
    """Attention of the decodes in a graph, over buffers that stay where they are."""

    def plan(self, decodes: PagedRows) -> None:
        """Get ready for as many rows as the bucket has: before the capture and each replay."""
        ...

    def run(self, layer: int, queries: Tensor, window: int | None) -> Tensor:
        """What the graph captures; see `Attention`."""
        ...


class FlashInferAttention:
    """The Attention protocol on FlashInfer's wrappers.

    flashinfer: the module. heads: of the queries, whose type is `dtype`. windows: those of the
    layers, each once. most_rows: of the largest graph. scales: of a cache in float8_e4m3fn, None
    for other caches. workspace_bytes: for FlashInfer, which gets more where plans may need it.
    mixed: put all rows through the prefill wrapper, which computes the same and is slower where
    steps are mixed; to compare with.
    Raises ValueError for heads that do not share the KV heads evenly.
    """

    def __init__(
        self,
        flashinfer: Any,
        device: Device,
        layers: LayerPools,
        heads: int,
        *,
        dtype: torch.dtype = torch.bfloat16,
        windows: Collection[int | None] = (None,),
        most_rows: int = 512,
        scales: Scales | None = None,
        workspace_bytes: int = WORKSPACE_BYTES,
        mixed: bool = False,
    ) -> None:
        keys = layers[0][0]
        kv_heads, head_dim = keys.shape[2:]
        if heads % kv_heads:
            raise ValueError(f"{heads} heads do not share {kv_heads} KV heads evenly")
        shape = Shape(heads, kv_heads, head_dim, dtype, keys.dtype)
        self._device, self._layers, self._windows = device, layers, windows
        self._mixed, self._most_rows = mixed, most_rows
        with device.active():
            needed = bytes_needed(shape, most_rows, multiprocessors(device.torch_device))
            room = max(workspace_bytes, needed)
            self._make = WrapperMaker(flashinfer, device, shape, scales, room)
            self._buffers = Buffers(device.torch_device, most_rows)
            self._decodes = {window: self._make.decodes(window) for window in windows}
            self._chunks = {window: self._make.chunks(window) for window in windows}
        self._planned = Split(None, None, decode_tokens=0)

    def plan(self, split: Split) -> None:
        """See `Attention`. Raises ValueError for a row of more queries than KV."""
        parts = Split(None, joined(split), decode_tokens=0) if self._mixed else split
        with self._device.active():
            for wrappers, rows in ((self._decodes, parts.decodes), (self._chunks, parts.chunks)):
                if rows is not None:
                    _plan(wrappers, rows, self._device)
        self._planned = parts

    def run(self, layer: int, queries: Tensor, window: int | None) -> Tensor:
        """See `Attention`. Raises ValueError for other tokens than were planned."""
        planned, kv = self._planned, self._layers[layer]
        if len(queries) != planned.tokens:
            raise ValueError(f"{len(queries)} queries, where {planned.tokens} were planned")
        out = torch.empty_like(queries)
        first = planned.decode_tokens
        if planned.decodes is not None:
            self._decodes[window].run(queries[:first], kv, out[:first])
        if planned.chunks is not None:
            self._chunks[window].run(queries[first:], kv, out[first:])
        return out

    def graph(self, bucket: int, most_blocks: int) -> FlashInferGraph:
        """See `Attention`. Raises ValueError for a bucket above `most_rows`."""
        if bucket > self._most_rows:
            raise ValueError(f"a graph of {bucket} rows, where {self._most_rows} are the most")
        with self._device.active():
            buffers = self._buffers.of(bucket, most_blocks)
            wrappers = {window: self._make.decodes(window, buffers) for window in self._windows}
        return FlashInferGraph(wrappers, self._layers, self._device, bucket, most_blocks)


class FlashInferGraph:
    """The GraphAttention protocol on wrappers that read buffers a graph has captured."""

    def __init__(
        self,
        wrappers: Mapping[int | None, Wrapper],
        layers: LayerPools,
        device: Device,
        bucket: int,
        most_blocks: int,
    ) -> None:
        self._wrappers, self._layers, self._device = wrappers, layers, device
        self._bucket, self._most_blocks = bucket, most_blocks

    def plan(self, decodes: PagedRows) -> None:
        """See `GraphAttention`. Raises ValueError for rows or blocks that are not the graph's."""
        blocks = len(decodes.kv_indices)
        if not decodes.rows == decodes.tokens == self._bucket:
            raise ValueError(f"{decodes.rows} rows for a graph of {self._bucket} decodes")
        if blocks > self._most_blocks:
            raise ValueError(f"{blocks} blocks for a graph of {self._most_blocks} at most")
        with self._device.active():
            _plan(self._wrappers, decodes, self._device)

    def run(self, layer: int, queries: Tensor, window: int | None) -> Tensor:
        out = torch.empty_like(queries)
        self._wrappers[window].run(queries, self._layers[layer], out)
        return out


def _plan(wrappers: Mapping[int | None, Wrapper], rows: PagedRows, device: Device) -> None:
    """Plan the wrapper of each window for the same rows, whose arrays are copied once."""
    if (rows.kv_lens < np.diff(rows.qo_indptr)).any():
        raise ValueError("a row has more queries than KV")
    tables = Tables.of(rows, device)
    for wrapper in wrappers.values():
        wrapper.plan(tables)
