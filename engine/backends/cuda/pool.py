"""The KV pool: blocks of keys and values on the device, and blocks of host memory beside them.

    keys, values    [layers, blocks + 1, BLOCK, kv_heads, head_dim]     on the device
    host            [host blocks, 2, layers, ...]     pinned; a block lies together

The last block on the device is the dummy: nobody's, written to and read by the padding rows of
graphs. All of the pool is zeroed once, so that what was never written is finite: kernels multiply
what they mask by zero, and zero times NaN is NaN.

    offload    pool ──gather──▶ staging ──a copy a block──▶ host
    restore    host ──a copy a block──▶ staging ──scatter──▶ pool

A copy from or to pinned memory is the copy engine's, so nothing here waits. Everything is enqueued
on the compute stream, in the order that `Batch` says.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from engine.backends.cuda.device import Device
from engine.backends.cuda.ops import Ops
from engine.batch import BLOCK, Batch
from engine.models.config import ModelConfig

POOL_DTYPES: Final = {
    "bfloat16": torch.bfloat16,
    "fp8": torch.float8_e4m3fn,
    "float32": torch.float32,
}
"""By the name that `engine.capacity.KV_DTYPES` counts their bytes under."""

MOVED_AT_ONCE: Final = 32
"""Blocks in the staging memory of a move: it bounds that memory, and is enough for one gather."""

Pairs = Sequence[tuple[int, int]]
"""(source, destination) blocks."""


class KVPool:
    """The blocks of a model.

    keys, values: as above. layers: those of each, [blocks + 1, BLOCK, kv_heads, head_dim]; slots:
    the same memory by slot, [slots, kv_heads, head_dim]. dummy: the number of the block that is
    nobody's. move_seconds: how long a block takes to the host or back, about; 0 without host
    blocks.
    kv_dtype: a name in POOL_DTYPES. Raises torch.OutOfMemoryError.
    """

    def __init__(
        self,
        device: Device,
        ops: Ops,
        config: ModelConfig,
        blocks: int,
        kv_dtype: str = "bfloat16",
        host_blocks: int = 0,
    ) -> None:
        self._device, self._ops = device, ops
        self.blocks = self.dummy = blocks
        self.host_blocks = host_blocks
        shape = config.layers, blocks + 1, BLOCK, config.kv_heads, config.head_dim
        dtype = POOL_DTYPES[kv_dtype]
        with device.active():
            self.keys, self.values = (_zeros(device, shape, dtype) for _ in range(2))
            self._parts = [part.flatten(2).view(torch.int64) for part in (self.keys, self.values)]
            layers, _, words = self._parts[0].shape
            self._host = device.pinned_zeros((host_blocks, 2, layers, words), torch.int64)
            self.layers = list(zip(self.keys.unbind(), self.values.unbind(), strict=True))
            self.slots = [(k.flatten(0, 1), v.flatten(0, 1)) for k, v in self.layers]
            if blocks:
                self._copy([(0, self.dummy)])  # what has to be compiled for it is, before serving
            self.move_seconds = self._measured_move() if host_blocks and blocks else 0.0

    def move(self, batch: Batch) -> None:
        """Do the block moves of a step: to the host, then from there, then copies."""
        for first in range(0, len(batch.offloads), MOVED_AT_ONCE):
            self._offload(batch.offloads[first : first + MOVED_AT_ONCE])
        for first in range(0, len(batch.restores), MOVED_AT_ONCE):
            self._restore(batch.restores[first : first + MOVED_AT_ONCE])
        if batch.copies:
            self._copy(batch.copies)

    def _copy(self, pairs: Pairs) -> None:
        sources, destinations = self._device.upload(_columns(pairs)).unbind()
        self._ops.move_blocks(self._parts, self._parts, sources, destinations)

    def _offload(self, pairs: Pairs) -> None:
        sources = self._device.upload(_columns(pairs)[0])
        gathered = [part.index_select(1, sources).transpose(0, 1) for part in self._parts]
        staging = torch.stack(gathered, dim=1)  # [n, 2, layers, ...], as blocks lie on the host
        for (_, host_block), block in zip(pairs, staging.unbind(), strict=True):
            self._host[host_block].copy_(block, non_blocking=True)

    def _restore(self, pairs: Pairs) -> None:
        destinations = self._device.upload(_columns(pairs)[1])
        where = self._device.torch_device
        staging = torch.empty((len(pairs), *self._host.shape[1:]), dtype=torch.int64, device=where)
        for (host_block, _), block in zip(pairs, staging.unbind(), strict=True):
            block.copy_(self._host[host_block], non_blocking=True)
        for part, blocks in zip(self._parts, staging.unbind(dim=1), strict=True):
            part.index_copy_(1, destinations, blocks.transpose(0, 1))

    def _measured_move(self) -> float:
        """Move blocks while they are nobody's: seconds a block, the median of a few rounds."""
        count = min(self.blocks, self.host_blocks, MOVED_AT_ONCE)
        pairs = [(i, i) for i in range(count)]
        seconds = []
        for _ in range(4):
            self._device.synchronize()
            started = time.perf_counter()
            self._offload(pairs)
            self._restore(pairs)
            self._device.synchronize()
            seconds.append(time.perf_counter() - started)
        return statistics.median(seconds[1:]) / (2 * count)  # the first round warms up


def _zeros(device: Device, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    room = torch.empty(shape, dtype=dtype, device=device.torch_device)
    room.view(torch.uint8).zero_()  # not every type can be filled
    return room


def _columns(pairs: Pairs) -> np.ndarray:
    """Sources and destinations, int64 [2, n]."""
    return np.array(pairs, dtype=np.int64).T.copy()
