"""Paged attention in float64, word by word from its definition. Slow; tests trust it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from engine.batch import BLOCK, Batch

Float = npt.NDArray[np.floating]
Float64 = npt.NDArray[np.float64]


def paged_attention(
    batch: Batch, queries: Float, keys: Float, values: Float, window: int | None = None
) -> Float64:
    """Attention of queries [tokens, heads, head_dim] over one layer's pools.

    keys, values: [blocks, BLOCK, kv_heads, head_dim], this step's tokens already written.
    Returns [tokens, heads, head_dim]. Query i of a row sees key j iff
    j + qo_len <= kv_len + i and, with a window, j + qo_len > kv_len + i - window; head h reads
    KV head h // (heads / kv_heads); slots that no query sees are never read.
    """
    heads, head_dim = queries.shape[1:]
    group = heads // keys.shape[2]
    out = np.zeros(queries.shape, dtype=np.float64)
    for row, kv_len in enumerate(batch.kv_lens):
        table = batch.kv_indices[batch.kv_indptr[row] : batch.kv_indptr[row + 1]]
        first, after = batch.qo_indptr[row], batch.qo_indptr[row + 1]
        qo_len = after - first
        for i in range(qo_len):
            last = kv_len + i - qo_len
            begin = 0 if window is None else last - window + 1
            seen = [j for j in range(kv_len) if begin <= j <= last]
            for head in range(heads):
                kv_head = head // group
                k = np.array([keys[table[j // BLOCK], j % BLOCK, kv_head] for j in seen], float)
                v = np.array([values[table[j // BLOCK], j % BLOCK, kv_head] for j in seen], float)
                scores = k @ queries[first + i, head].astype(float) / np.sqrt(head_dim)
                weights = np.exp(scores - scores.max())
                out[first + i, head] = weights @ v / weights.sum()
    return out
