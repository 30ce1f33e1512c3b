"""Who runs the model: from the arrays of a batch to logits, in torch or in the native library."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.backends.attention import PagedAttention
from engine.backends.base import StepTimes
from engine.backends.kv_cache import BlockStore, KVCache
from engine.backends.native_cache import NativeKVCache
from engine.backends.sampler import BestAllowed, draw_in_torch, uniforms
from engine.batch import Batch, Int32
from engine.controls import SampleRow
from engine.models.config import ModelConfig
from engine.models.decoder import Inputs, forward
from engine.models.rope import rope_table
from engine.models.weights import Weights
from engine.native.library import Controls
from engine.native.model import NativeModel


@dataclass(frozen=True, slots=True)
class Logits:
    """What a step computed: values [rows, vocab] float32, and the index of each row's largest.

    best is None where nobody looked for it; -1 stands for a row with NaN or infinity at the top.
    """

    values: Tensor
    best: npt.NDArray[np.int32] | None = None


class ModelRunner(Protocol):
    """Computes batches over its own KV cache.

    threads: how many compute a step. native: the instruction set of the native library; None if
    torch computes.
    """

    threads: int
    native: str | None

    @property
    def cache(self) -> BlockStore: ...

    def run(self, batch: Batch, token_ids: Int32) -> Logits:
        """The logits of the batch's `logit_rows`; token_ids: the batch's, none of them in flight.

        Block moves have been done.
        """
        ...

    def draw(
        self, logits: Tensor, at: Sequence[int], best: Tensor, rows: Sequence[SampleRow]
    ) -> Tensor:
        """A token for each of the rows `at` of the logits (see `sampler.Draw`)."""
        ...

    @property
    def best_allowed(self) -> BestAllowed | None:
        """Finds best tokens under masks, if `draw` looks at them too."""
        ...

    def times(self) -> StepTimes:
        """Where the last step's time went. Raises NotImplementedError if nobody measures it."""
        ...

    def close(self) -> None:
        """Give the memory back."""
        ...


class TorchRunner:
    """A decoder in torch, float32 or int8 weights, over a cache of any format."""

    native: str | None = None
    best_allowed: BestAllowed | None = None

    def __init__(
        self,
        weights: Weights,
        config: ModelConfig,
        blocks: int,
        kv_dtype: str = "float32",
        host_blocks: int = 0,
    ) -> None:
        self.cache: KVCache = KVCache(config, blocks, kv_dtype, host_blocks)
        self._weights = weights
        self._config = config
        self._rope = rope_table(config)
        self.threads = torch.get_num_threads()

    def run(self, batch: Batch, token_ids: Int32) -> Logits:
        inputs = Inputs(
            tokens=_index(token_ids),
            positions=_index(batch.positions),
            slots=_index(batch.slots),
            logit_rows=_index(batch.logit_rows),
        )
        attention = PagedAttention(batch)
        layers = self.cache.layers
        return Logits(forward(self._weights, self._config, self._rope, layers, inputs, attention))

    def draw(
        self, logits: Tensor, at: Sequence[int], best: Tensor, rows: Sequence[SampleRow]
    ) -> Tensor:
        return draw_in_torch(logits, at, best, rows)

    def times(self) -> StepTimes:
        raise NotImplementedError("nobody measures the parts of a step in torch")

    def close(self) -> None:
        self.cache = KVCache(self._config, 0)


class NativeRunner:
    """int8 weights in the native library: a step is one call, without the GIL."""

    def __init__(
        self,
        library: ctypes.CDLL,
        weights: Weights,
        config: ModelConfig,
        blocks: int,
        kv_dtype: str = "int8",
        host_blocks: int = 0,
        *,
        threads: int | None = None,
        isa: str | None = None,
    ) -> None:
        self.cache: NativeKVCache = NativeKVCache(config, blocks, kv_dtype, host_blocks)
        self.model = NativeModel(library, weights, config, rope_table(config), isa=isa)
        self.native: str | None = self.model.isa
        self.threads = threads or torch.get_num_threads()
        self._config = config

    def run(self, batch: Batch, token_ids: Int32) -> Logits:
        return Logits(*self.model.step(batch, token_ids, self.cache.struct, self.threads))

    def draw(
        self, logits: Tensor, at: Sequence[int], best: Tensor, rows: Sequence[SampleRow]
    ) -> Tensor:
        numbers = zip(rows, best.tolist(), uniforms(rows).tolist(), strict=True)
        controls = (Controls * len(rows))(*(_controls(*each) for each in numbers))
        tokens = self.model.draw(logits, at, controls, self.threads)
        return torch.from_numpy(tokens).to(torch.int64)

    def best_allowed(self, logits: Tensor, at: Sequence[int], rows: Sequence[SampleRow]) -> Tensor:
        """The best token that the mask of each of the rows `at` allows (`sampler.BestAllowed`)."""
        controls = (Controls * len(rows))(*(_controls(row) for row in rows))
        tokens = self.model.best_allowed(logits, at, controls, self.threads)
        return torch.from_numpy(tokens).to(torch.int64)

    def times(self) -> StepTimes:
        times = self.model.times()
        return StepTimes(1e-9 * times.products, 1e-9 * times.attention, 1e-9 * times.glue)

    def close(self) -> None:
        self.model.close()
        self.cache = NativeKVCache(self._config, 0)


def _controls(row: SampleRow, best: float = 0.0, uniform: float = 0.0) -> Controls:
    """The mask must live, and stay where it is, for as long as they do."""
    c, mask = row.controls, row.mask
    address, words = None, 0
    if mask is not None:
        assert mask.flags.c_contiguous, "the words of a mask lie side by side"
        address, words = mask.__array_interface__["data"][0], len(mask)
    return Controls(address, c.temperature, c.top_p, c.min_p, uniform, best, c.top_k, words)


def _index(array: Int32) -> Tensor:
    """A copy in the integer type that torch indexes with."""
    return torch.from_numpy(array).to(torch.int64)
