"""Paged attention of decodes: each row's KV in shares, a program a share, and a merge of them.

    row 0    | share 0 | share 1 | share 2 |    of equal length, 128 tokens at least
    row 1    | share 0 | . . . . . . . . . .    programs without a share end at once

    parts    [rows, heads, SHARES, head_dim]    softmax(scores) · values of each share, float32
    sizes    [rows, heads, SHARES]              log of the sum of exp(score) of each share

This is flash-decoding (https://pytorch.org/blog/flash-decoding/). How many shares there may be
follows from the number of rows, so a grid is the same for all lengths and a graph may hold it. The
heads that share a KV head are rows of one tile, padded to 16, so K and V are read once for all.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.backends.cuda.kernels.online_softmax import NOTHING, attend
from engine.backends.cuda.kernels.paging import TABLES, Pool, Tables, extent, places

BUSY = 4 * 132
"""Programs that keep a large GPU busy, four for each multiprocessor of an H200."""

FEWEST, MOST = 8, 64
"""Shares that a row may have: where rows are many, since one may be long; where there is one."""

SHORTEST = 128
"""Tokens in a share, unless it is the last."""


def decode_attention(queries: Tensor, pool: Pool, tables: Tables, window: int, out: Tensor) -> None:
    """Attention of queries [rows, heads, head_dim], one of each row, into `out` of that shape.

    A query is the last position of its row and sees the last `window` of them.
    """
    rows, heads, head_dim = queries.shape
    kv_heads = pool.keys.shape[2]
    group, most = heads // kv_heads, shares(rows, kv_heads)
    width = max(triton.next_power_of_2(head_dim), 16)
    shape = rows, heads, most
    parts = torch.empty((*shape, head_dim), dtype=torch.float32, device=out.device)
    sizes = torch.empty(shape, dtype=torch.float32, device=out.device)
    compiled_in = {"HEAD_DIM": head_dim, "WIDTH": width, "SHARES": most, "SHORTEST": SHORTEST}
    _attend_share[(rows, kv_heads, most)](
        parts,
        sizes,
        queries,
        pool.keys,
        pool.values,
        tables.kv_indptr,
        tables.kv_indices,
        tables.last_page_len,
        pool.k_scale / math.sqrt(head_dim),
        window,
        queries.stride(0),
        *pool.strides,
        HEADS=heads,
        GROUP=group,
        M=max(triton.next_power_of_2(group), 16),
        N=64 if width <= 128 else 32,
        **compiled_in,
        num_warps=4,
        num_stages=2,
    )
    _merge[(rows, heads)](
        out,
        parts,
        sizes,
        tables.kv_indptr,
        tables.last_page_len,
        pool.v_scale,
        window,
        out.stride(0),
        HEADS=heads,
        **compiled_in,
        num_warps=8 if most * width > 4096 else 4,
    )


def shares(rows: int, kv_heads: int) -> int:
    """Into how many shares a row's KV is divided at most: a power of two."""
    wanted = triton.next_power_of_2(triton.cdiv(BUSY, max(rows * kv_heads, 1)))
    return min(max(wanted, FEWEST), MOST)


@triton.jit(do_not_specialize=["window"], do_not_specialize_on_alignment=TABLES)
def _attend_share(
    parts,
    sizes,
    queries,
    keys,
    values,
    kv_indptr,
    kv_indices,
    last_page_len,
    scale,
    window,
    query_stride,
    key_block,
    key_slot,
    value_block,
    value_slot,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    SHARES: tl.constexpr,
    SHORTEST: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
):
    row, kv_head, share = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first_block, kv_len = extent(kv_indptr, last_page_len, row)
    seen = tl.minimum(kv_len, window)
    length = _share_length(seen, SHARES, SHORTEST)
    begin = kv_len - seen + share * length
    end = tl.minimum(begin + length, kv_len)
    if begin < end:
        dim = tl.arange(0, WIDTH)
        member = tl.arange(0, M)
        head = kv_head * GROUP + member
        real = (member < GROUP)[:, None] & (dim < HEAD_DIM)[None, :]
        place = queries + row.to(tl.int64) * query_stride + head[:, None] * HEAD_DIM + dim[None, :]
        q = tl.load(place, mask=real, other=0.0)
        best = tl.full((M,), NOTHING, tl.float32)
        total = tl.zeros((M,), tl.float32)
        out = tl.zeros((M, WIDTH), tl.float32)
        for start in range(begin, end, N):
            position = start + tl.arange(0, N)
            inside = position < end
            blocks = kv_indices + first_block
            k = keys + kv_head * HEAD_DIM + places(blocks, position, inside, key_block, key_slot)
            v = values + kv_head * HEAD_DIM
            v += places(blocks, position, inside, value_block, value_slot)
            best, total, out = attend(
                q, best, total, out, k, v, inside, inside[None, :], scale, HEAD_DIM, WIDTH
            )
        kept = (row.to(tl.int64) * HEADS + head) * SHARES + share
        tl.store(sizes + kept, best + tl.log(total), mask=member < GROUP)
        place = parts + kept[:, None] * HEAD_DIM + dim[None, :]
        tl.store(place, out / total[:, None], mask=real)


@triton.jit(do_not_specialize=["window"], do_not_specialize_on_alignment=TABLES)
def _merge(
    out,
    parts,
    sizes,
    kv_indptr,
    last_page_len,
    factor,
    window,
    out_stride,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    SHARES: tl.constexpr,
    SHORTEST: tl.constexpr,
):
    row, head = tl.program_id(0), tl.program_id(1)
    _, kv_len = extent(kv_indptr, last_page_len, row)
    seen = tl.minimum(kv_len, window)
    share, dim = tl.arange(0, SHARES), tl.arange(0, WIDTH)
    made = share * _share_length(seen, SHARES, SHORTEST) < seen
    kept = (row.to(tl.int64) * HEADS + head) * SHARES + share
    size = tl.load(sizes + kept, mask=made, other=NOTHING)
    best = tl.max(size, axis=0)
    weight = tl.exp(size - tl.where(best == NOTHING, 0.0, best))
    total = tl.sum(weight, axis=0)
    total = tl.where(total == 0.0, 1.0, total)  # a row without tokens has 0 as its result
    inside = dim < HEAD_DIM
    place = parts + kept[:, None] * HEAD_DIM + dim[None, :]
    part = tl.load(place, mask=made[:, None] & inside[None, :], other=0.0)
    mean = tl.sum(part * weight[:, None], axis=0) / total * factor
    place = out + row.to(tl.int64) * out_stride + head * HEAD_DIM + dim
    tl.store(place, mean.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _share_length(seen, SHARES: tl.constexpr, SHORTEST: tl.constexpr):
    """Tokens of a share of a row that sees so many: whole times SHORTEST."""
    return tl.cdiv(tl.maximum(seen, 1), SHARES * SHORTEST) * SHORTEST
