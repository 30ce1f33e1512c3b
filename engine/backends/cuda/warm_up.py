"""Steps that between them launch every variant of Triton's attention, so that all are compiled.

What is compiled in depends on how many decodes there are, and on the longest of the chunks. A step
in traffic that needs a new variant would wait for the compiler, which takes a second or more.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from engine.backends.cuda.kernels.chunk_attention import SMALLEST
from engine.backends.cuda.kernels.decode_attention import shares
from engine.backends.cuda.split import PagedRows, Split
from engine.batch import BLOCK

MOST_ROWS = 1 << 12
"""Decodes of which more need no other variant."""


def every_variant(kv_heads: int, group: int, largest_tile: int, block: int) -> Iterator[Split]:
    """Steps whose rows have all their KV in one block."""
    rows = MOST_ROWS
    fewest = {}
    while rows:
        fewest[shares(rows, kv_heads)] = rows
        rows //= 2
    for count in fewest.values():
        yield Split(_alike(count, 1, block), None, decode_tokens=count)
    size = SMALLEST
    while size <= largest_tile:
        yield Split(None, _alike(1, max(size // group, 1), block), decode_tokens=0)
        size *= 2


def _alike(rows: int, tokens: int, block: int) -> PagedRows:
    """Rows that compute so many tokens each, and have no others."""
    blocks = -(-tokens // BLOCK)
    numbers = np.arange(rows + 1, dtype=np.int32)
    return PagedRows(
        qo_indptr=numbers * tokens,
        kv_indptr=numbers * blocks,
        kv_indices=np.full(rows * blocks, block, np.int32),
        last_page_len=np.full(rows, tokens - (blocks - 1) * BLOCK, np.int32),
    )
