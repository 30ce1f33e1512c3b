"""Attention under test: FlashInfer's stand-in over small pools, and what must come out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from support.cpu_device import CPUDevice
from support.flashinfer_stub import flashinfer_stub
from torch import Tensor

from engine.backends import reference
from engine.backends.cuda.attention import FlashInferAttention
from engine.backends.cuda.split import split
from engine.batch import BLOCK, Batch
from tests.engine.backends.batches import Work, make_batch

BLOCKS = 120
DUMMY = BLOCKS
KV_HEADS = 2
HEAD_DIM = 16


@dataclass
class Attended:
    """Attention over pools that a test fills.

    keys, values: [layers, BLOCKS + 1, BLOCK, KV_HEADS, HEAD_DIM], the last block the dummy.
    """

    device: CPUDevice
    flashinfer: Any
    attention: FlashInferAttention
    keys: Tensor
    values: Tensor
    group: int

    def queries(self, tokens: int, seed: int = 0) -> Tensor:
        rng = np.random.default_rng(seed)
        shape = tokens, KV_HEADS * self.group, HEAD_DIM
        return torch.from_numpy(rng.standard_normal(shape, dtype=np.float32))

    def expected(
        self, batch: Batch, queries: Tensor, window: int | None = None, layer: int = 0
    ) -> np.ndarray:
        pools = self.keys[layer].numpy(), self.values[layer].numpy()
        return reference.paged_attention(batch, queries.numpy(), *pools, window)

    def poison(self, batch: Batch, window: int | None = None) -> None:
        """Make NaN of every slot that no query sees."""
        unseen = torch.from_numpy(~seen(batch, window))
        self.keys[:, unseen] = torch.nan
        self.values[:, unseen] = torch.nan

    def step(
        self, batch: Batch, queries: Tensor, window: int | None = None, layer: int = 0
    ) -> np.ndarray:
        self.attention.plan(split(batch))
        return self.attention.run(layer, queries, window).numpy()

    def names(self, method: str) -> list[str]:
        """Which wrappers the method was called on, "Decode" or "Prefill", in order."""
        calls = [call for call in self.flashinfer.calls if call.method == method]
        return [call.kind.removeprefix("Batch").split("With")[0] for call in calls]


def attended(
    seed: int = 0,
    group: int = 3,
    layers: int = 1,
    windows: Sequence[int | None] = (None,),
    **options: Any,
) -> Attended:
    """Attention over random pools in float32."""
    rng = np.random.default_rng(seed)
    shape = 2, layers, BLOCKS + 1, BLOCK, KV_HEADS, HEAD_DIM
    keys, values = map(torch.from_numpy, rng.standard_normal(shape, dtype=np.float32))
    device = CPUDevice()
    flashinfer = flashinfer_stub(device)
    attention = FlashInferAttention(
        flashinfer,
        device,
        list(zip(keys, values, strict=True)),
        KV_HEADS * group,
        **{"dtype": torch.float32, "windows": windows, "workspace_bytes": 0, **options},
    )
    return Attended(device, flashinfer, attention, keys, values, group)


def batch_of(rng: np.random.Generator, *rows: tuple[int, int]) -> Batch:
    """Rows of (KV length, tokens) in random blocks, those of one token first."""
    free = [BLOCKS - 1, *rng.permutation(BLOCKS - 1).tolist()]
    work = []
    for kv_len, count in sorted(rows, key=lambda row: row[1] > 1):
        table = [free.pop(0) for _ in range(-(-kv_len // BLOCK))]
        work.append(Work(table, kv_len - count, [0] * count))
    return make_batch(work)


def random_batch(rng: np.random.Generator) -> Batch:
    """A few rows, half of them decodes."""
    kv_lens = rng.integers(1, 90, size=rng.integers(1, 9)).tolist()
    counts = [1 if rng.random() < 0.5 else int(rng.integers(1, n + 1)) for n in kv_lens]
    return batch_of(rng, *zip(kv_lens, counts, strict=True))


def seen(batch: Batch, window: int | None) -> np.ndarray:
    """Which slots [blocks, BLOCK] hold a token that a query of its row sees."""
    slots = np.zeros((BLOCKS + 1, BLOCK), dtype=bool)
    for i, kv_len in enumerate(batch.kv_lens):
        table = batch.kv_indices[batch.kv_indptr[i] : batch.kv_indptr[i + 1]]
        first_query = kv_len - (batch.qo_indptr[i + 1] - batch.qo_indptr[i])
        for j in range(0 if window is None else max(first_query - window + 1, 0), kv_len):
            slots[table[j // BLOCK], j % BLOCK] = True
    return slots


def assert_close(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
