"""How many blocks the KV pool has: what is free once the largest step has been computed.

    total of the device
    ├─ others, CUDA itself
    ├─ weights
    ├─ the largest step        kept by torch for the steps to come
    └─ free ── fraction ─────▶ the pool; the rest is for graphs, and what is not foreseen

The largest step is computed on a pool of nothing but the dummy block: what it takes torch keeps, so
that what is free behind it stays free. It compiles what is compiled at first use as well. Captures
make torch give back all that it keeps, so the step is computed again behind them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from engine.backends.cuda.device import Device
from engine.batch import BLOCK, Batch, Int32, Rows
from engine.blocks import blocks_for
from engine.controls import RowControls, SampleRow, ScoredRow
from engine.errors import ModelError, TooLittleDeviceMemory
from engine.models.config import ModelConfig
from engine.models.shapes import expected_shapes

GIB: Final = 1 << 30

DUMMIES: Final = 1
"""Blocks that a pool has beside those that it is asked for."""

ALTERNATIVES: Final = 20
"""Of a token's likelihood, as many as API clients may ask for."""

COSTLIEST: Final = RowControls(
    top_k=50, top_p=0.9, min_p=0.01, logprobs=ALTERNATIVES, logit_bias={0: 1.0}
)
"""Controls that take the most memory."""


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes of a device while a model is set up. weights, step: what it and the largest step take;
    free: what they leave."""

    total: int
    free: int
    weights: int = 0
    step: int = 0

    def __str__(self) -> str:
        return (
            f"{_gib(self.free)} of the device's {_gib(self.total)} are left"
            f" (weights take {_gib(self.weights)}, a step {_gib(self.step)})"
        )


def pool_blocks(room: Room, block_bytes: int, wanted: int | None, fraction: float) -> int:
    """Blocks of a pool of `wanted` bytes, None for this fraction of what is free.

    Raises TooLittleDeviceMemory if that is not there, or is not one block.
    """
    blocks = (int(room.free * fraction) if wanted is None else wanted) // block_bytes
    if wanted is None:
        blocks = min(blocks, room.free // block_bytes - DUMMIES)
    if blocks < 1:
        what = f"one block of KV, {block_bytes} bytes, in {fraction:g} of what is left"
        raise TooLittleDeviceMemory("kv_memory", what, str(room))
    if (blocks + DUMMIES) * block_bytes > room.free:
        what = f"a KV cache of {_gib(blocks * block_bytes)}"
        raise TooLittleDeviceMemory("kv_memory", what, str(room))
    return blocks


def check_weights(config: ModelConfig, dtype: torch.dtype, device: Device) -> None:
    """Raise ModelError if a model's weights alone are more than is free, before they are read."""
    shapes = expected_shapes(config).values()
    size = sum(int(np.prod(shape)) for shape in shapes) * dtype.itemsize
    free, total = device.free_memory()
    if size > free:
        raise ModelError(
            f"its weights take {_gib(size)} in {str(dtype).removeprefix('torch.')}, and"
            f" {_gib(free)} of the device's {_gib(total)} are free"
        )


def measured_room(
    device: Device, weights: int, compute: Callable[[], None], max_tokens: int
) -> Room:
    """Compute the largest step, of `max_tokens`, and see what it leaves.

    weights: the bytes that they take. Raises TooLittleDeviceMemory if there is too little for it.
    """
    free, total = device.free_memory()
    try:
        compute()
    except torch.OutOfMemoryError as error:
        what = f"a step of {max_tokens} tokens"
        raise TooLittleDeviceMemory(
            "max_step_tokens", what, str(Room(total, free, weights))
        ) from error
    device.synchronize()
    left, _ = device.free_memory()
    return Room(total, left, weights, free - left)


@contextmanager
def fitting(knob: str, what: str, room: Room) -> Iterator[None]:
    """Say it with numbers if `what`, which `knob` asks for, does not fit."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise TooLittleDeviceMemory(knob, what, str(room)) from error


def largest_step(config: ModelConfig, max_tokens: int, max_rows: int) -> Batch:
    """A batch of as many tokens and rows as a step has at most, all of them in block 0.

    One row, or as many as its context asks for, has what tokens the others leave. These are scored,
    so that every token has logits: nothing that a step holds is larger.
    """
    rows = min(max_rows, max_tokens)
    counts = [1] * rows
    left = max_tokens - rows
    for row in reversed(range(rows)):
        more = min(left, config.context_length - 1)
        counts[row] += more
        left -= more
    tokens = sum(counts)
    positions = np.concatenate([np.arange(count) for count in counts])
    ends = np.cumsum(counts)
    blocks = [blocks_for(count) for count in counts]
    chunks = [row for row, count in enumerate(counts) if count > 1]
    scored = [np.arange(ends[row] - counts[row], ends[row]) for row in chunks]
    return Batch(
        step=0,
        rows=Rows([(i, 0) for i in range(rows)], [0] * rows, counts, [True] * rows),
        token_ids=_int32(np.zeros(tokens)),
        positions=_int32(positions),
        slots=_int32(positions % BLOCK),
        qo_indptr=_int32([0, *ends]),
        kv_indptr=_int32(np.cumsum([0, *blocks])),
        kv_indices=_int32(np.zeros(sum(blocks))),
        last_page_len=_int32([(count - 1) % BLOCK + 1 for count in counts]),
        sample_rows=_int32(np.arange(rows)),
        logit_rows=_int32(np.concatenate([ends - 1, *scored])),
        scored=tuple(ScoredRow(row, 0, [0] * counts[row], ALTERNATIVES) for row in chunks),
    )


def costliest_rows(batch: Batch) -> list[SampleRow]:
    """Controls for each row of a batch, all of which sample."""
    return [SampleRow(COSTLIEST, 0, 0, (), 0) for _ in batch.sample_rows]


def _int32(values: object) -> Int32:
    return np.ascontiguousarray(values, dtype=np.int32)


def _gib(size: int) -> str:
    return f"{size / GIB:.2f} GiB"
