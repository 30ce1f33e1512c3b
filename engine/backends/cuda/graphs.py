"""Steps of decodes as CUDA graphs: hundreds of launches become one.

    bucket 4     ids, positions, slots [3, 4]   static; copied to before each replay
                 a a b . . .                    rows that are missing decode the dummy block
                 hidden [4, hidden]             static; its first rows go on to the head

There is a graph for each bucket, a number of rows; a step takes the smallest that holds it. Only
steps of nothing but decodes that all sample go through graphs, since their shapes follow from the
number of rows. Attention is planned before each replay, for KV grows. The head is behind the graph:
it is one launch, and its result, a row of the vocabulary for each token, would be held by every
graph for itself.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from engine.backends import Progress
from engine.backends.cuda.attention import Attention, GraphAttention
from engine.backends.cuda.device import Device, Graph
from engine.backends.cuda.inputs import resolved
from engine.backends.cuda.model import Decoder
from engine.backends.cuda.pool import KVPool
from engine.backends.cuda.split import PagedRows, padded
from engine.batch import BLOCK, Batch
from engine.models.decoder import Inputs

LARGEST_BUCKET: Final = 256
BUCKET_STEP: Final = 8

MOST_TABLE: Final = 1 << 20
"""Entries of the block tables of a graph at most, 4 MiB; longer ones are computed without."""


def decode_buckets(max_rows: int) -> list[int]:
    """1, 2, 4 and the multiples of 8 up to the one that holds `max_rows`, or 256."""
    most = min(max_rows, LARGEST_BUCKET)
    sizes = [1, 2, 4, *range(BUCKET_STEP, most + BUCKET_STEP, BUCKET_STEP)]
    return sizes[: bisect_left(sizes, most) + 1]


class DecodeGraphs:
    """The graphs of a model over a pool. Captured when it is made.

    buckets: numbers of rows. progress: hears of each graph. Raises torch.OutOfMemoryError.
    """

    def __init__(
        self,
        device: Device,
        decoder: Decoder,
        pool: KVPool,
        attention: Attention,
        buckets: Iterable[int],
        progress: Progress | None = None,
    ) -> None:
        self._device, self._decoder, self._pool = device, decoder, pool
        self._buckets = sorted(set(buckets))
        self._captured: dict[int, _Captured] = {}
        with device.active(), torch.inference_mode():
            # The largest first: the others find their memory in what it needed.
            for done, bucket in enumerate(reversed(self._buckets), 1):
                self._captured[bucket] = self._capture(bucket, attention)
                if progress is not None:
                    progress(done, len(self._buckets))

    def bucket_of(self, batch: Batch, decodes: PagedRows | None) -> int | None:
        """The bucket that computes a batch, None if there is none.

        decodes: the part of it that `split` says.
        """
        rows = len(batch.rows)
        if decodes is None or not self._buckets or rows > self._buckets[-1]:
            return None
        if batch.scored or not (decodes.rows == batch.tokens == len(batch.sample_rows) == rows):
            return None
        bucket = self._buckets[bisect_left(self._buckets, rows)]
        table = len(decodes.kv_indices) + bucket - rows
        return bucket if table <= self._captured[bucket].most_blocks else None

    def hidden(
        self, batch: Batch, decodes: PagedRows, bucket: int, newest: Tensor | None
    ) -> Tensor:
        """What `Decoder.hidden` returns for a batch that has a bucket; void at the next call.

        newest: see `inputs_of`.
        """
        captured, rows = self._captured[bucket], len(batch.rows)
        inputs = np.zeros((3, bucket), np.int64)
        inputs[2] = self._pool.dummy * BLOCK
        inputs[:, :rows] = batch.token_ids, batch.positions, batch.slots
        captured.inputs.copy_(self._device.upload(inputs))
        ids = captured.inputs[0]
        known = resolved(ids, batch, newest)
        if known is not ids:
            ids.copy_(known)
        captured.attention.plan(padded(decodes, bucket, self._pool.dummy))
        captured.graph.replay()
        return captured.hidden[:rows]

    def _capture(self, bucket: int, attention: Attention) -> _Captured:
        where, config = self._device.torch_device, self._decoder.config
        blocks = -(-config.context_length // BLOCK)
        most_blocks = min(bucket * blocks, MOST_TABLE)
        graph_attention = attention.graph(bucket, most_blocks)
        inputs = torch.zeros((3, bucket), dtype=torch.int64, device=where)
        inputs[2] = self._pool.dummy * BLOCK
        every = torch.arange(bucket, device=where)
        tokens, positions, slots = inputs.unbind()
        static = Inputs(tokens, positions, slots, every)
        hidden: list[Tensor] = []

        def compute() -> None:
            result = self._decoder.hidden(static, self._pool, graph_attention)
            if not hidden:
                hidden.append(torch.empty_like(result))
            hidden[0].copy_(result)

        graph_attention.plan(padded(NO_ROWS, bucket, self._pool.dummy))
        graph = self._device.capture(compute)
        return _Captured(graph, graph_attention, inputs, hidden[0], most_blocks)


@dataclass(frozen=True, slots=True)
class _Captured:
    """A graph, and the tensors that it reads and writes. most_blocks: of its block tables."""

    graph: Graph
    attention: GraphAttention
    inputs: Tensor
    hidden: Tensor
    most_blocks: int


def _int32(values: Sequence[int]) -> np.ndarray:
    return np.array(values, dtype=np.int32)


NO_ROWS: Final = PagedRows(_int32([0]), _int32([0]), _int32([]), _int32([]))
