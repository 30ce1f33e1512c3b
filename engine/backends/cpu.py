"""The CPU backend: a decoder in float32 torch over a paged KV cache of any format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from os import PathLike

import torch

from engine.backends.attention import PagedAttention
from engine.backends.kv_cache import KVCache
from engine.backends.memory import AUTO_KV_DTYPE, auto_kv_bytes
from engine.backends.sampler import sample
from engine.batch import BLOCK, Batch, Int32
from engine.capacity import KV_DTYPES
from engine.controls import Sampled, SampleRow
from engine.errors import RowFault, TooLittleMemory
from engine.models.config import ModelConfig
from engine.models.decoder import Inputs, forward
from engine.models.files import load_weights, read_config
from engine.models.rope import rope_table
from engine.models.weights import Weights


def create(
    path: str | PathLike[str],
    *,
    kv_memory_bytes: int | None = None,
    kv_dtype: str = AUTO_KV_DTYPE,
    offload_memory_bytes: int = 0,
    threads: int | None = None,
) -> CPUBackend:
    """Load the model at `path`, a GGUF file or a Hugging Face folder, and set up its KV cache.

    kv_memory_bytes: None for `auto_kv_bytes()`. kv_dtype: a name in `kv_cache.FORMATS`.
    offload_memory_bytes: for blocks that are put away; 0 for none. threads: of torch, for the whole
    process; None leaves torch's choice. Raises ModelError for a model that cannot be served,
    TooLittleMemory if one of the memories does not hold one block.
    """
    config = read_config(path)
    memory = auto_kv_bytes() if kv_memory_bytes is None else kv_memory_bytes
    block_bytes = BLOCK * config.kv_bytes_per_token(KV_DTYPES[kv_dtype])
    if memory < block_bytes:
        raise TooLittleMemory("kv_memory", memory, block_bytes, kv_dtype)
    if 0 < offload_memory_bytes < block_bytes:
        raise TooLittleMemory("offload_memory", offload_memory_bytes, block_bytes, kv_dtype)
    if threads is not None:
        torch.set_num_threads(threads)
    return CPUBackend(
        load_weights(path, config),
        config,
        memory // block_bytes,
        kv_dtype=kv_dtype,
        host_blocks=offload_memory_bytes // block_bytes,
    )


class CPUBackend:
    """Computes each batch while it is submitted (the Backend protocol at depth 0 and 1).

    kv_dtype: a name in `kv_cache.FORMATS`. host_blocks: room for blocks that are put away.
    """

    reads_arrays = True

    def __init__(
        self,
        weights: Weights,
        config: ModelConfig,
        total_blocks: int,
        *,
        kv_dtype: str = AUTO_KV_DTYPE,
        host_blocks: int = 0,
    ) -> None:
        self.cache = KVCache(config, total_blocks, kv_dtype, host_blocks)
        self._weights = weights
        self._config = config
        self._rope = rope_table(config)
        self._tickets = 0
        self._computed: dict[int, tuple[Batch, torch.Tensor]] = {}
        self._sampled: dict[int, Sampled] = {}
        self._last_tokens: Sequence[int] = ()

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
        logits = forward(
            self._weights,
            self._config,
            self._rope,
            self.cache.layers,
            self._inputs(batch),
            PagedAttention(batch),
        )
        self._tickets += 1
        self._computed[self._tickets] = batch, logits
        return self._tickets

    def sample(self, ticket: int, rows: Sequence[SampleRow]) -> None:
        batch, logits = self._computed.pop(ticket)
        if len(rows) != len(batch.sample_rows):
            raise ValueError(f"{len(rows)} rows of controls for {len(batch.sample_rows)} rows")
        try:
            result = sample(logits, self._caught_up(batch, rows))
        except RowFault as fault:
            raise RowFault((int(batch.sample_rows[i]) for i in fault.rows), fault.reason) from None
        self._sampled[ticket] = result
        self._last_tokens = result.tokens

    def collect(self, ticket: int) -> Sampled:
        return self._sampled.pop(ticket)

    def close(self) -> None:
        self.cache = KVCache(self._config, 0)
        self._computed.clear()
        self._sampled.clear()

    def _inputs(self, batch: Batch) -> Inputs:
        return Inputs(
            tokens=self._resolve(batch.token_ids),
            positions=_index(batch.positions),
            slots=_index(batch.slots),
            logit_rows=_index(batch.logit_rows),
        )

    def _resolve(self, token_ids: Int32) -> torch.Tensor:
        """Token ids, with -1 - j replaced by what sample row j of the step before gave."""
        tokens = _index(token_ids)
        in_flight = tokens < 0
        if in_flight.any():
            last = torch.tensor(self._last_tokens, dtype=torch.int64)
            tokens[in_flight] = last[-1 - tokens[in_flight]]
        return tokens

    def _caught_up(self, batch: Batch, rows: Sequence[SampleRow]) -> list[SampleRow]:
        """The rows, with the newest token for those that had it in flight when they were made."""
        newest = batch.token_ids[batch.logit_rows].tolist()
        return [
            row if token >= 0 else replace(row, tokens=[*row.tokens, self._last_tokens[-1 - token]])
            for row, token in zip(rows, newest, strict=True)
        ]


def _index(array: Int32) -> torch.Tensor:
    """A copy in the integer type that torch indexes with."""
    return torch.from_numpy(array).to(torch.int64)
