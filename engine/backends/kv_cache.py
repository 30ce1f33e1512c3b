"""The KV cache in torch: blocks of keys and values in some format, on the device and on the host.

    keys, values    [layers, blocks, BLOCK, kv_heads, head_dim]    as float32, bfloat16 or int8
    int8 besides    [layers, blocks, BLOCK, kv_heads, 1]           a float32 scale for each vector

An int8 vector x, of one token and head, is kept as round(x / s) and s = max |x| / 127, so that no
element is off by more than s / 2. What is read is float32 again, whatever the format: attention
knows slots and vectors only. Blocks move as they are, so a way to the host and back changes no bit.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import torch
from torch import Tensor

from engine.batch import BLOCK, Batch
from engine.capacity import KV_DTYPES
from engine.models.config import ModelConfig
from engine.models.products import INT8_MAX

Parts = tuple[Tensor, ...]
"""What a format keeps of vectors: tensors that agree in all dimensions but the last."""

Pairs = Sequence[tuple[int, int]]
"""(source, destination) blocks."""

PROBE_BYTES: Final = 16 << 20
PROBE_BLOCKS: Final = 16
"""What is moved at most to see how long a block takes."""


class Format(Protocol):
    """How vectors of keys or values [..., head_dim] are kept."""

    def empty(self, *shape: int) -> Parts:
        """Room for vectors of this shape. Not filled: memory that nobody has written to yet stays
        with the operating system."""
        ...

    def write(self, parts: Parts, slots: Tensor, vectors: Tensor) -> None:
        """Keep vectors [n, kv_heads, head_dim] in slots [n] of parts [slots, kv_heads, ...]."""
        ...

    def read(self, parts: Parts, slots: Tensor) -> Tensor:
        """What these slots stand for, in float32."""
        ...


class FloatFormat:
    """Elements as they are, rounded to a floating-point type."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    def empty(self, *shape: int) -> Parts:
        return (torch.empty(shape, dtype=self._dtype),)

    def write(self, parts: Parts, slots: Tensor, vectors: Tensor) -> None:
        parts[0].index_copy_(0, slots, vectors.to(self._dtype))

    def read(self, parts: Parts, slots: Tensor) -> Tensor:
        return parts[0].index_select(0, slots).float()


class Int8Format:
    """Whole numbers from -127 to 127, and a scale for each vector. NaN stays NaN: the scale is."""

    def empty(self, *shape: int) -> Parts:
        return torch.empty(shape, dtype=torch.int8), torch.empty(*shape[:-1], 1)

    def write(self, parts: Parts, slots: Tensor, vectors: Tensor) -> None:
        numbers, scales = parts
        new = vectors.abs().amax(-1, keepdim=True) / INT8_MAX
        new.clamp_(min=torch.finfo(new.dtype).tiny)  # a vector of zeros has a scale too
        numbers.index_copy_(0, slots, (vectors / new).round_().to(torch.int8))
        scales.index_copy_(0, slots, new)

    def read(self, parts: Parts, slots: Tensor) -> Tensor:
        numbers, scales = parts
        return numbers.index_select(0, slots).float().mul_(scales.index_select(0, slots))


FORMATS: Final[dict[str, Format]] = {
    "float32": FloatFormat(torch.float32),
    "bfloat16": FloatFormat(torch.bfloat16),
    "int8": Int8Format(),
}
"""By the name that `KV_DTYPES` counts their bytes under."""


class LayerKV:
    """Keys and values of one layer by slot, block * BLOCK + place in it (decoder.LayerKV)."""

    def __init__(self, form: Format, keys: Parts, values: Parts) -> None:
        self._form = form
        self._keys = tuple(part.flatten(0, 1) for part in keys)  # [slots, kv_heads, ...]
        self._values = tuple(part.flatten(0, 1) for part in values)

    def write(self, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        self._form.write(self._keys, slots, keys)
        self._form.write(self._values, slots, values)

    def read(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        return self._form.read(self._keys, slots), self._form.read(self._values, slots)


class BlockStore:
    """Whole blocks, here and on the host, whatever they are made of.

    room: makes the parts [layers, blocks, ...] that hold so many blocks. parts: those of the
    `blocks` that layers use; `host_blocks` more are for putting blocks away. move_seconds: how long
    a block takes to the host or back, about; 0 without host blocks.
    """

    def __init__(
        self, room: Callable[[int], Parts], blocks: int, host_blocks: int, block_bytes: int
    ) -> None:
        self.block_bytes = block_bytes
        self.blocks, self.host_blocks = blocks, host_blocks
        self.parts = room(blocks)
        self._host = room(host_blocks)
        self.move_seconds = _measured_move(room, block_bytes) if host_blocks else 0.0

    def move(self, batch: Batch) -> None:
        """Do the block moves of a step: to the host, then from there, then copies."""
        _move(self.parts, self._host, batch.offloads)
        _move(self._host, self.parts, batch.restores)
        _move(self.parts, self.parts, batch.copies)


class KVCache(BlockStore):
    """The blocks of a model in a format of `FORMATS`, for the decoder to write and read.

    kv_dtype: a name in FORMATS. keys, values: what is kept of them; `parts`: of both together.
    """

    def __init__(
        self, config: ModelConfig, blocks: int, kv_dtype: str = "float32", host_blocks: int = 0
    ) -> None:
        form = FORMATS[kv_dtype]
        shape = BLOCK, config.kv_heads, config.head_dim

        def room(count: int) -> Parts:
            return tuple(
                part for _ in range(2) for part in form.empty(config.layers, count, *shape)
            )

        block_bytes = BLOCK * config.kv_bytes_per_token(KV_DTYPES[kv_dtype])
        super().__init__(room, blocks, host_blocks, block_bytes)
        half = len(self.parts) // 2
        self.keys, self.values = self.parts[:half], self.parts[half:]
        self.layers = [
            LayerKV(form, *(tuple(part[i] for part in kept) for kept in (self.keys, self.values)))
            for i in range(config.layers)
        ]


def _measured_move(room: Callable[[int], Parts], block_bytes: int) -> float:
    """Move blocks that are nobody's: seconds a block, the median of a few rounds."""
    count = max(1, min(PROBE_BLOCKS, PROBE_BYTES // block_bytes))
    here, there = room(count), room(count)
    for part in here:
        part.zero_()
    pairs = [(i, count - 1 - i) for i in range(count)]
    seconds = []
    for _ in range(4):
        started = time.perf_counter()
        _move(here, there, pairs)
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds[1:]) / count  # the first round is given its memory


def _move(sources: Parts, destinations: Parts, pairs: Pairs) -> None:
    """Copy whole blocks, of all layers, from one set of parts into the same or another one."""
    for source, destination in zip(sources, destinations, strict=True):
        for taken, given in pairs:
            destination[:, given].copy_(source[:, taken])
