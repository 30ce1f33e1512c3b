"""What a decoder computes between products and attention: the operations, and plain torch's.

    qkv of a token    q q q q q q | k k | v v      heads, then kv_heads twice, head_dim each
                                |     |    |
                      turned and returned  |
                                      turned, written to keys[slot]
                                           |
                                           written to values[slot]

Everything is accumulated in float32 and rounded once, to the type of what comes in or, in the KV
pool, of what is kept. `TorchOps` is right on any device and slow; `triton_ops.TritonOps` does the
same in a kernel each, and is in a module of its own because it imports triton.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from engine.models.rope import RopeTable, rotate

FP8: Final = torch.float8_e4m3fn
FP8_MAX: Final = 448.0
"""The largest number of float8_e4m3fn (OCP 8-bit floating point); larger ones are kept as it."""


@dataclass(frozen=True, slots=True)
class Heads:
    """How the heads of a fused projection are laid out, normalised and kept.

    heads, kv_heads: of queries, and of keys and values each. q_norm, k_norm [head_dim]: weights of
    a norm of every head before it is rotated (Qwen3), None for none; eps: of that norm. k_scale,
    v_scale: what keys and values are divided by before they are kept, for pools of few bits.
    """

    heads: int
    kv_heads: int
    head_dim: int
    q_norm: Tensor | None
    k_norm: Tensor | None
    eps: float
    k_scale: float = 1.0
    v_scale: float = 1.0


class Ops(Protocol):
    """Operations on the tokens of a step [n, ...], float32 or bfloat16, all on one device.

    Launched and not waited for, in a number and in shapes that follow from the shapes given, never
    from values: so a CUDA graph may hold them.
    """

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Root-mean-square norm of x [n, hidden] times weight [hidden]."""
        ...

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Add x to `residual` [n, hidden] in place; returns the norm of what it then holds."""
        ...

    def rotate_and_write(
        self,
        qkv: Tensor,
        positions: Tensor,
        slots: Tensor,
        rope: RopeTable,
        keys: Tensor,
        values: Tensor,
        heads: Heads,
    ) -> Tensor:
        """Write a layer's keys and values of the step, return its queries [n, heads, head_dim].

        qkv: [n, (heads + 2 kv_heads) · head_dim], biases added. positions, slots: whole numbers
        [n]; slots differ, but for -1, of which nothing is written. keys, values: the layer's pools
        [slots, kv_heads, head_dim] in float32, bfloat16 or float8_e4m3fn, the last saturating.
        """
        ...

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """silu(gate) · up of gate_up [n, 2 ffn], gates first: [n, ffn]."""
        ...

    def move_blocks(
        self,
        source: Sequence[Tensor],
        destination: Sequence[Tensor],
        sources: Tensor,
        destinations: Tensor,
    ) -> None:
        """Copy blocks `sources` [m] of each part to `destinations` [m] of its counterpart.

        source, destination: parts [layers, blocks, ...], the same in both but for the number of
        blocks; on the device or in pinned memory of the host. No source is also a destination.
        """
        ...


class TorchOps:
    """`Ops` in plain torch, an operation after the other, on any device."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return _normalised(x, weight, eps).to(x.dtype)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        residual.add_(x)
        return self.rms_norm(residual, weight, eps)

    def rotate_and_write(
        self,
        qkv: Tensor,
        positions: Tensor,
        slots: Tensor,
        rope: RopeTable,
        keys: Tensor,
        values: Tensor,
        heads: Heads,
    ) -> Tensor:
        split = qkv.float().unflatten(1, (-1, heads.head_dim))
        q, k, v = split.split([heads.heads, heads.kv_heads, heads.kv_heads], dim=1)
        if heads.q_norm is not None:
            q = _normalised(q, heads.q_norm, heads.eps)
        if heads.k_norm is not None:
            k = _normalised(k, heads.k_norm, heads.eps)
        cos, sin = rope.cos[positions].unsqueeze(1), rope.sin[positions].unsqueeze(1)
        _write(keys, slots, rotate(k, cos, sin) / heads.k_scale)
        _write(values, slots, v / heads.v_scale)
        return rotate(q, cos, sin).to(qkv.dtype)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.float().chunk(2, dim=-1)
        return (functional.silu(gate) * up).to(gate_up.dtype)

    def move_blocks(
        self,
        source: Sequence[Tensor],
        destination: Sequence[Tensor],
        sources: Tensor,
        destinations: Tensor,
    ) -> None:
        for taken, given in zip(map(_bits, source), map(_bits, destination), strict=True):
            moved = taken.index_select(1, sources.to(taken.device))
            given.index_copy_(1, destinations.to(given.device, torch.int64), moved.to(given.device))


def _normalised(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm over the last dimension, in float32."""
    return functional.rms_norm(x.float(), weight.shape, weight.float(), eps)


def _write(pool: Tensor, slots: Tensor, vectors: Tensor) -> None:
    """Keep float32 vectors [n, kv_heads, head_dim] in `slots` [n] of the pool, in its type.

    A row without a slot writes once more what the first row with one does, or, if there is none,
    what is in slot 0 already: to leave it out, the host would have to wait for the slots.
    """
    if pool.dtype == FP8:
        vectors = vectors.clamp(-FP8_MAX, FP8_MAX)  # torch's own conversion makes NaN of larger
    kept = slots >= 0
    row = torch.where(kept, torch.arange(len(slots), device=slots.device), kept.int().argmax())
    written, place = _bits(pool), slots[row].clamp(min=0).to(torch.int64)
    new = _bits(vectors.to(pool.dtype))[row]
    written.index_copy_(0, place, torch.where(kept.any(), new, written[place]))


def _bits(tensor: Tensor) -> Tensor:
    """The same memory, as bytes where torch does not index the type."""
    return tensor.view(torch.uint8) if tensor.dtype == FP8 else tensor
