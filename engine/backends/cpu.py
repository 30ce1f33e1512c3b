"""The CPU backend: a decoder over a paged KV cache, and a sampler."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from os import PathLike

import numpy as np
import torch

from engine.backends.kv_cache import BlockStore
from engine.backends.memory import auto_kv_bytes, fitting_blocks
from engine.backends.quantised_files import Calibration, quantised_weights
from engine.backends.runners import Logits, ModelRunner, NativeRunner, TorchRunner
from engine.backends.sampler import sample, score
from engine.batch import Batch, Int32
from engine.controls import Sampled, SampleRow
from engine.errors import RowFault
from engine.models.config import ModelConfig
from engine.models.files import load_weights, read_config
from engine.models.weights import Weights
from engine.native.available import native_library


def create(
    path: str | PathLike[str],
    *,
    dtype: str = "float32",
    calibration: Calibration | None = None,
    kv_memory_bytes: int | None = None,
    kv_dtype: str | None = None,
    offload_memory_bytes: int = 0,
    threads: int | None = None,
) -> CPUBackend:
    """Load the model at `path`, a GGUF file or a Hugging Face folder, and set up its KV cache.

    dtype: of weights and products, "float32" or "int8"; int8 needs `calibration` and takes the
    native library where it was built. kv_memory_bytes: None for `auto_kv_bytes()`. kv_dtype: a name
    in `kv_cache.FORMATS`; None for `dtype`. offload_memory_bytes: for blocks that
    are put away; 0 for none. threads: for the whole process; None leaves torch's choice. Raises
    ModelError for a model that cannot be served, UnfitMemory if one of the memories does not hold
    one block, or is more than this process may use.
    """
    config = read_config(path)
    kv_dtype = kv_dtype or dtype
    memory = auto_kv_bytes() if kv_memory_bytes is None else kv_memory_bytes
    blocks, host_blocks = fitting_blocks(config, kv_dtype, memory, offload_memory_bytes)
    if threads is not None:
        torch.set_num_threads(threads)
    if dtype == "float32":
        return on_torch(load_weights(path, config), config, blocks, kv_dtype, host_blocks)
    library = native_library(config)
    weights = quantised_weights(path, config, calibration or Calibration(), native=bool(library))
    if library is None:
        return on_torch(weights, config, blocks, kv_dtype, host_blocks)
    runner = NativeRunner(library, weights, config, blocks, kv_dtype, host_blocks, threads=threads)
    return CPUBackend(runner)


def on_torch(
    weights: Weights,
    config: ModelConfig,
    total_blocks: int,
    kv_dtype: str = "float32",
    host_blocks: int = 0,
) -> CPUBackend:
    """A backend that computes in torch. kv_dtype: a name in `kv_cache.FORMATS`. host_blocks: room
    for blocks that are put away."""
    return CPUBackend(TorchRunner(weights, config, total_blocks, kv_dtype, host_blocks))


class CPUBackend:
    """Computes each batch while it is submitted (the Backend protocol at depth 0 and 1)."""

    reads_arrays = True

    def __init__(self, runner: ModelRunner) -> None:
        self.runner = runner
        self._tickets = 0
        self._computed: dict[int, tuple[Batch, Logits]] = {}
        self._sampled: dict[int, Sampled] = {}
        self._last_tokens: Sequence[int] = ()

    @property
    def cache(self) -> BlockStore:
        return self.runner.cache

    @property
    def total_blocks(self) -> int:
        return self.cache.blocks

    @property
    def host_blocks(self) -> int:
        return self.cache.host_blocks

    @property
    def move_seconds(self) -> float:
        return self.cache.move_seconds

    def submit(self, batch: Batch) -> int:
        self.cache.move(batch)
        logits = self.runner.run(batch, self._resolve(batch.token_ids))
        self._tickets += 1
        self._computed[self._tickets] = batch, logits
        return self._tickets

    def sample(self, ticket: int, rows: Collection[SampleRow]) -> None:
        batch, logits = self._computed.pop(ticket)
        if len(rows) != len(batch.sample_rows):
            raise ValueError(f"{len(rows)} rows of controls for {len(batch.sample_rows)} rows")
        count, best = len(rows), logits.best
        try:
            result = sample(
                logits.values[:count],
                self._caught_up(batch, rows),
                None if best is None else best[:count],
                self.runner.draw,
                self.runner.best_allowed,
            )
        except RowFault as fault:
            raise RowFault((int(batch.sample_rows[i]) for i in fault.rows), fault.reason) from None
        if batch.scored:
            scores = score(logits.values[count:], batch.scored)
            result = replace(result, prompt_logprobs=scores)
        self._sampled[ticket] = result
        self._last_tokens = result.tokens

    def collect(self, ticket: int) -> Sampled:
        return self._sampled.pop(ticket)

    def close(self) -> None:
        self.runner.close()
        self._computed.clear()
        self._sampled.clear()

    def _resolve(self, token_ids: Int32) -> Int32:
        """Token ids, with -1 - j replaced by what sample row j of the step before gave."""
        in_flight = token_ids < 0
        if not in_flight.any():
            return token_ids
        tokens = token_ids.copy()
        tokens[in_flight] = np.asarray(self._last_tokens, np.int32)[-1 - token_ids[in_flight]]
        return tokens

    def _caught_up(self, batch: Batch, rows: Collection[SampleRow]) -> list[SampleRow]:
        """The rows, with the newest token for those that had it in flight when they were made."""
        newest = batch.token_ids[batch.logit_rows[: len(rows)]].tolist()
        return [
            row if token >= 0 else replace(row, tokens=[*row.tokens, self._last_tokens[-1 - token]])
            for row, token in zip(rows, newest, strict=True)
        ]
