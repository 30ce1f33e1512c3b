"""KV caches whose every slot that nobody wrote to would show in the result."""

from __future__ import annotations

import numpy as np
import torch

from engine.backends.kv_cache import FORMATS, LayerKV, Parts


def poison(parts: Parts) -> None:
    """Make NaN of all that floats; whole numbers get a value that no vector is kept as."""
    for part in parts:
        part.fill_(torch.nan if part.is_floating_point() else -128)


def layer_of(
    kv_dtype: str, keys: np.ndarray, values: np.ndarray, written: np.ndarray | None = None
) -> LayerKV:
    """One layer's cache, in whose slots are keys and values [blocks, BLOCK, kv_heads, head_dim].

    written [blocks, BLOCK]: the slots that are written to, the others are poisoned; None for all.
    """
    kept = [FORMATS[kv_dtype].empty(*keys.shape) for _ in range(2)]
    for parts in kept:
        poison(parts)
    layer = LayerKV(FORMATS[kv_dtype], *kept)
    slots = np.arange(keys.shape[0] * keys.shape[1])
    if written is not None:
        slots = slots[written.ravel()]
    vectors = (torch.from_numpy(v.reshape(-1, *v.shape[2:])[slots]) for v in (keys, values))
    layer.write(torch.from_numpy(slots), *vectors)
    return layer
