"""Heads of a fused projection: normalised, turned, and written to their slots in one pass.

A program takes a tile of heads of one token, of queries, keys or values:

    tile      0        1      2       3          of 6 + 2 + 2 heads, four in a tile
    heads   q q q q   q q    k k     v v

A head is read as its two halves, whose numbers turn in pairs:

    a' = a cos - b sin    b' = b cos + a sin
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.backends.cuda.ops import FP8_MAX, Heads
from engine.models.rope import RopeTable

TILE = 8
"""Heads of a program."""

LARGEST = tl.constexpr(FP8_MAX)


def rotate_and_write(
    qkv: Tensor,
    positions: Tensor,
    slots: Tensor,
    rope: RopeTable,
    keys: Tensor,
    values: Tensor,
    heads: Heads,
) -> Tensor:
    """See `ops.Ops`. Pools may have any stride from slot to slot."""
    tokens = len(qkv)
    shape = tokens, heads.heads, heads.head_dim
    queries = torch.empty(shape, dtype=qkv.dtype, device=qkv.device)
    tiles = triton.cdiv(heads.heads, TILE) + 2 * triton.cdiv(heads.kv_heads, TILE)
    half = triton.next_power_of_2(heads.head_dim // 2)
    _rotate_and_write[(tokens, tiles)](
        queries,
        keys,
        values,
        qkv,
        positions,
        slots,
        rope.cos,
        rope.sin,
        heads.q_norm,
        heads.k_norm,
        heads.eps,
        1 / heads.k_scale,
        1 / heads.v_scale,
        qkv.stride(0),
        keys.stride(0),
        values.stride(0),
        HEADS=heads.heads,
        KV_HEADS=heads.kv_heads,
        HEAD_DIM=heads.head_dim,
        TILE=TILE,
        HALF=half,
        num_warps=max(TILE * half // (8 * 32), 1),  # 8 numbers a thread: 16 bytes in bfloat16
    )
    return queries


@triton.jit(do_not_specialize_on_alignment=["positions", "slots"])
def _rotate_and_write(
    queries,
    keys,
    values,
    qkv,
    positions,
    slots,
    cos,
    sin,
    q_norm,
    k_norm,
    eps,
    k_factor,
    v_factor,
    qkv_stride,
    key_stride,
    value_stride,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TILE: tl.constexpr,
    HALF: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    query_tiles: tl.constexpr = (HEADS + TILE - 1) // TILE
    key_tiles: tl.constexpr = (KV_HEADS + TILE - 1) // TILE
    source = qkv + token * qkv_stride
    if tile < query_tiles:
        head = tile * TILE + tl.arange(0, TILE)
        a, b = _read(source, head, HEADS, HEAD_DIM, HALF)
        a, b = _normalised(a, b, q_norm, eps, HEAD_DIM, HALF)
        a, b = _turned(a, b, tl.load(positions + token), cos, sin, HEAD_DIM, HALF)
        _write(queries + token * HEADS * HEAD_DIM, a, b, head, HEADS, HEAD_DIM, HALF)
    else:
        slot = tl.load(slots + token).to(tl.int64)
        if slot >= 0:
            if tile < query_tiles + key_tiles:
                head = (tile - query_tiles) * TILE + tl.arange(0, TILE)
                a, b = _read(source + HEADS * HEAD_DIM, head, KV_HEADS, HEAD_DIM, HALF)
                a, b = _normalised(a, b, k_norm, eps, HEAD_DIM, HALF)
                a, b = _turned(a, b, tl.load(positions + token), cos, sin, HEAD_DIM, HALF)
                place = keys + slot * key_stride
                _write(place, a * k_factor, b * k_factor, head, KV_HEADS, HEAD_DIM, HALF)
            else:
                head = (tile - query_tiles - key_tiles) * TILE + tl.arange(0, TILE)
                first = source + (HEADS + KV_HEADS) * HEAD_DIM
                a, b = _read(first, head, KV_HEADS, HEAD_DIM, HALF)
                place = values + slot * value_stride
                _write(place, a * v_factor, b * v_factor, head, KV_HEADS, HEAD_DIM, HALF)


@triton.jit
def _read(source, head, HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, HALF: tl.constexpr):
    """Both halves of these heads, [TILE, HALF] each in float32; zeros where there is nothing."""
    pair = tl.arange(0, HALF)
    place = source + head[:, None] * HEAD_DIM + pair[None, :]
    inside = (head < HEADS)[:, None] & (pair < HEAD_DIM // 2)[None, :]
    a = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(place + HEAD_DIM // 2, mask=inside, other=0.0).to(tl.float32)
    return a, b


@triton.jit
def _normalised(a, b, weight, eps, HEAD_DIM: tl.constexpr, HALF: tl.constexpr):
    """Root-mean-square norm of each head; as they are without a weight."""
    if weight is not None:
        pair = tl.arange(0, HALF)
        inside = pair < HEAD_DIM // 2
        squares = tl.sum(a * a, axis=1) + tl.sum(b * b, axis=1)
        scale = tl.rsqrt(squares / HEAD_DIM + eps)[:, None]
        of_a = tl.load(weight + pair, mask=inside, other=0.0).to(tl.float32)
        of_b = tl.load(weight + HEAD_DIM // 2 + pair, mask=inside, other=0.0).to(tl.float32)
        a = a * scale * of_a[None, :]
        b = b * scale * of_b[None, :]
    return a, b


@triton.jit
def _turned(a, b, position, cos, sin, HEAD_DIM: tl.constexpr, HALF: tl.constexpr):
    """The rotary embedding of a position, from tables [context_length, HEAD_DIM / 2]."""
    pair = tl.arange(0, HALF)
    inside = pair < HEAD_DIM // 2
    place = position.to(tl.int64) * (HEAD_DIM // 2) + pair
    c = tl.load(cos + place, mask=inside, other=0.0).to(tl.float32)[None, :]
    s = tl.load(sin + place, mask=inside, other=0.0).to(tl.float32)[None, :]
    return a * c - b * s, b * c + a * s


@triton.jit
def _write(
    destination, a, b, head, HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, HALF: tl.constexpr
):
    """Both halves of these heads, in the type that is kept there."""
    pair = tl.arange(0, HALF)
    place = destination + head[:, None] * HEAD_DIM + pair[None, :]
    inside = (head < HEADS)[:, None] & (pair < HEAD_DIM // 2)[None, :]
    tl.store(place, _rounded(a, destination.dtype.element_ty), mask=inside)
    tl.store(place + HEAD_DIM // 2, _rounded(b, destination.dtype.element_ty), mask=inside)


@triton.jit
def _rounded(numbers, dtype: tl.constexpr):
    """To the type; eight bits saturate, and NaN stays NaN in all."""
    if dtype == tl.float8e4nv:
        numbers = tl.clamp(numbers, -LARGEST, LARGEST, propagate_nan=tl.PropagateNan.ALL)
    return numbers.to(dtype)
