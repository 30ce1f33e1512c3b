"""The operations of `ops` in Triton, a kernel each: what the CUDA backend uses on a GPU.

Importing this module imports triton.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from engine.backends.cuda.kernels import block_moves, fused_heads, rms_norm, silu_mul
from engine.backends.cuda.ops import Heads
from engine.models.rope import RopeTable


class TritonOps:
    """The Ops protocol. Rows of activations may lie apart; in a row numbers are side by side."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return rms_norm.rms_norm(x, weight, eps)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        return rms_norm.rms_norm(x, weight, eps, residual)

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
        return fused_heads.rotate_and_write(qkv, positions, slots, rope, keys, values, heads)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        return silu_mul.silu_mul(gate_up)

    def move_blocks(
        self,
        source: Sequence[Tensor],
        destination: Sequence[Tensor],
        sources: Tensor,
        destinations: Tensor,
    ) -> None:
        block_moves.move_blocks(source, destination, sources, destinations)
