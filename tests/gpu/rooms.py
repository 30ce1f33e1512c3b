"""A model's rooms on a bed, and batches made by hand for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.backends.cuda.assembly import Kernels
from engine.backends.cuda.attention import Attention
from engine.backends.cuda.graphs import DecodeGraphs
from engine.backends.cuda.inputs import inputs_of
from engine.backends.cuda.model import Decoder
from engine.backends.cuda.pool import KVPool
from engine.backends.cuda.split import split
from engine.batch import BLOCK, Batch
from engine.blocks import blocks_for
from engine.models.config import ModelConfig
from engine.models.weights import Weights
from tests.engine.backends.batches import Work, make_batch
from tests.gpu.bed import Bed


@dataclass(frozen=True, slots=True)
class Rooms:
    """What a forward pass goes through."""

    bed: Bed
    decoder: Decoder
    pool: KVPool
    attention: Attention
    graphs: DecodeGraphs

    @torch.inference_mode()
    def logits(self, batch: Batch, *, graph: bool = False) -> Tensor:
        """The logits [logit rows, vocab] of a step, on the device; enqueued, not waited for."""
        rows, device = split(batch), self.bed.device
        if graph:
            bucket = self.graphs.bucket_of(batch, rows.decodes)
            assert rows.decodes is not None, "graphs are of decodes"
            assert bucket is not None, "no graph holds this batch"
            hidden = self.graphs.hidden(batch, rows.decodes, bucket, None)
        else:
            self.attention.plan(rows)
            inputs = inputs_of(batch, device, None)
            hidden = self.decoder.hidden(inputs, self.pool, self.attention)
        return self.decoder.logits(hidden)


def rooms(
    bed: Bed,
    weights: Weights,
    config: ModelConfig,
    blocks: int,
    buckets: Iterable[int],
    kernels: Kernels | None = None,
) -> Rooms:
    """The rooms of a model whose weights are on the device. kernels: None for the bed's."""
    device, kernels = bed.device, kernels or bed.kernels(config)
    decoder = Decoder(weights, config, kernels.ops, device.torch_device)
    pool = KVPool(device, kernels.ops, config, blocks, bed.kv_dtype)
    attention = kernels.attention(pool)
    graphs = DecodeGraphs(device, decoder, pool, attention, buckets)
    return Rooms(bed, decoder, pool, attention, graphs)


def tables(rows: int, tokens: int, seed: int = 0) -> list[list[int]]:
    """Block tables for `rows` sequences of so many tokens, in random blocks."""
    each = blocks_for(tokens)
    order = np.random.default_rng(seed).permutation(rows * each).tolist()
    return [order[i * each : (i + 1) * each] for i in range(rows)]


def decodes(blocks: Sequence[Sequence[int]], position: int, tokens: Sequence[int]) -> Batch:
    """A step of one token for each sequence, all at the same position."""
    work = [Work(table, position, [token]) for table, token in zip(blocks, tokens, strict=True)]
    return make_batch(work)


def kv_bytes(config: ModelConfig, pool: KVPool) -> int:
    """Bytes of keys and values of one token."""
    return 2 * config.layers * config.kv_heads * config.head_dim * pool.keys.element_size()


def blocks_of(rows: int, tokens: int) -> int:
    """Blocks that so many sequences of so many tokens have."""
    return rows * -(-tokens // BLOCK)
