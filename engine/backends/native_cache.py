"""The KV cache in the layout that the native library reads (`engine/native/src/abi.h`).

keys      [layers, blocks, kv_heads, head_dim, BLOCK]    sixteen tokens are one vector
values    [layers, blocks, kv_heads, BLOCK, head_dim]
scales    [layers, blocks, kv_heads, BLOCK]              of keys and of values, for int8

Within a block int8 is kept in fours: keys as [head_dim / 4, BLOCK, 4] and values as
[BLOCK / 4, head_dim, 4].
"""

from __future__ import annotations

import torch

from engine.backends.kv_cache import BlockStore, Parts
from engine.batch import BLOCK
from engine.capacity import KV_DTYPES
from engine.models.config import ModelConfig
from engine.native import library as native
from engine.native.memory import empty


class NativeKVCache(BlockStore):
    """All blocks of a model; `struct` is what the library is told of them."""

    def __init__(
        self, config: ModelConfig, blocks: int, kv_dtype: str = "float32", host_blocks: int = 0
    ) -> None:
        dtype, known_as = native.KV_DTYPES[kv_dtype]

        def room(count: int) -> Parts:
            # Not filled: memory that no token has reached yet stays with the operating system.
            shape = config.layers, count, config.kv_heads
            pools = (
                empty(*shape, config.head_dim, BLOCK, dtype=dtype),
                empty(*shape, BLOCK, config.head_dim, dtype=dtype),
            )
            if dtype is not torch.int8:
                return pools
            return (*pools, empty(*shape, BLOCK), empty(*shape, BLOCK))

        block_bytes = BLOCK * config.kv_bytes_per_token(KV_DTYPES[kv_dtype])
        super().__init__(room, blocks, host_blocks, block_bytes)
        keys, values, *scales = (part.data_ptr() for part in self.parts)
        self.struct = native.Cache(keys, values, *(scales or (None, None)), blocks, known_as)
