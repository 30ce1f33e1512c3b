"""Paged attention of rows of several queries, the last positions of their KV: a program a tile.

    a tile    queries i, i + 1, … of a row, each with all heads of a group     [M, head_dim]

    head 0 of query i | head 1 of query i | … | head 0 of query i + 1 | …      group 3, M = 64: 21
                                                                queries, and a row to spare

A program goes over the keys that any query of its tile sees, and masks what each of them does not.
The tiles are listed on the host, which knows the lengths: these launches are not for graphs.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.backends.cuda.kernels.online_softmax import NOTHING, attend
from engine.backends.cuda.kernels.paging import TABLES, Pool, Tables, extent, places

Int32 = npt.NDArray[np.int32]

ARRAYS = ["tile_rows", "tile_firsts", "qo_indptr", *TABLES]

SMALLEST, LARGEST = 16, 128
"""Queries times heads of a group in a tile."""


@dataclass(frozen=True, slots=True)
class Tiles:
    """The tiles of some rows, on the device.

    size: M. qo_indptr [rows + 1]: each row's queries. rows, firsts [tiles]: of which row a tile is,
    and its first query.
    """

    size: int
    qo_indptr: Tensor
    rows: Tensor
    firsts: Tensor


def largest_tile(head_dim: int, dtype: torch.dtype) -> int:
    """The largest M whose sums stay in registers, over a pool of this type."""
    if dtype.itemsize > 2:
        return LARGEST // 4
    return LARGEST if head_dim <= 128 else LARGEST // 2


def tile_size(queries: Int32, group: int, largest: int) -> int:
    """M for rows of so many queries [rows]: a power of two that the longest row fills, if it can.

    At least one query with its group is in a tile, so a large group may make it larger.
    """
    needed = triton.next_power_of_2(int(queries.max()) * group)
    return max(min(needed, largest), triton.next_power_of_2(group), SMALLEST)


def tiles(queries: Int32, kv_lens: Int32, group: int, size: int) -> tuple[Int32, Int32]:
    """Row and first query of each tile. Those with the most keys come first: none is left last."""
    step = size // group
    counts = -(-queries // step)
    rows = np.repeat(np.arange(len(queries), dtype=np.int32), counts)
    before = np.repeat(np.cumsum(counts) - counts, counts)
    firsts = (np.arange(len(rows)) - before) * step
    keys = (kv_lens - queries)[rows] + firsts
    order = np.argsort(-keys, kind="stable")
    return rows[order], firsts[order].astype(np.int32)


def chunk_attention(
    queries: Tensor, pool: Pool, tables: Tables, tiles: Tiles, window: int, out: Tensor
) -> None:
    """Attention of queries [tokens, heads, head_dim] of all rows into `out` of that shape.

    A query sees the last `window` positions up to its own.
    """
    heads, head_dim = queries.shape[1:]
    kv_heads = pool.keys.shape[2]
    width = max(triton.next_power_of_2(head_dim), 16)
    _attend_tile[(len(tiles.rows), kv_heads)](
        out,
        queries,
        pool.keys,
        pool.values,
        tiles.rows,
        tiles.firsts,
        tiles.qo_indptr,
        tables.kv_indptr,
        tables.kv_indices,
        tables.last_page_len,
        pool.k_scale / math.sqrt(head_dim),
        pool.v_scale,
        window,
        queries.stride(0),
        out.stride(0),
        *pool.strides,
        GROUP=heads // kv_heads,
        HEAD_DIM=head_dim,
        WIDTH=width,
        M=tiles.size,
        N=64 if width <= 128 else 32,
        num_warps=8 if tiles.size >= LARGEST else 4,
        num_stages=2,
    )


@triton.jit(do_not_specialize=["window"], do_not_specialize_on_alignment=ARRAYS)
def _attend_tile(
    out,
    queries,
    keys,
    values,
    tile_rows,
    tile_firsts,
    qo_indptr,
    kv_indptr,
    kv_indices,
    last_page_len,
    scale,
    factor,
    window,
    query_stride,
    out_stride,
    key_block,
    key_slot,
    value_block,
    value_slot,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
):
    tile, kv_head = tl.program_id(0), tl.program_id(1)
    row, first = tl.load(tile_rows + tile), tl.load(tile_firsts + tile)
    first_block, kv_len = extent(kv_indptr, last_page_len, row)
    first_token = tl.load(qo_indptr + row)
    count = tl.load(qo_indptr + row + 1) - first_token

    member, dim = tl.arange(0, M), tl.arange(0, WIDTH)
    queries_of_tile: tl.constexpr = M // GROUP
    query = first + member // GROUP
    real = (member < queries_of_tile * GROUP) & (query < count)
    read = real[:, None] & (dim < HEAD_DIM)[None, :]
    token = (first_token + query).to(tl.int64)
    vector = (kv_head * GROUP + member % GROUP)[:, None] * HEAD_DIM + dim[None, :]
    q = tl.load(queries + token[:, None] * query_stride + vector, mask=read, other=0.0)

    before = kv_len - count  # the position of the row's first query
    begin = tl.maximum(before + first - window + 1, 0)
    end = tl.minimum(before + first + queries_of_tile, kv_len)
    best = tl.full((M,), NOTHING, tl.float32)
    total = tl.zeros((M,), tl.float32)
    mean = tl.zeros((M, WIDTH), tl.float32)
    for start in range(begin, end, N):
        position = start + tl.arange(0, N)
        inside = position < end
        ahead = (before + query)[:, None] - position[None, :]
        seen = (ahead >= 0) & (ahead < window)
        blocks = kv_indices + first_block
        k = keys + kv_head * HEAD_DIM + places(blocks, position, inside, key_block, key_slot)
        v = values + kv_head * HEAD_DIM + places(blocks, position, inside, value_block, value_slot)
        best, total, mean = attend(q, best, total, mean, k, v, inside, seen, scale, HEAD_DIM, WIDTH)
    total = tl.where(total == 0.0, 1.0, total)  # nothing seen: 0
    mean = mean / total[:, None] * factor
    place = out + token[:, None] * out_stride + vector
    tl.store(place, mean.to(out.dtype.element_ty), mask=read)
