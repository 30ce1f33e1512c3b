"""The gate of the MLP, silu(gate) · up: a program for each 1,024 numbers of a row."""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) · up of gate_up [n, 2 width], gates first: [n, width]."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((rows, width), dtype=gate_up.dtype, device=gate_up.device)
    grid = (rows, triton.cdiv(width, BLOCK))
    _silu_mul[grid](out, gate_up, gate_up.stride(0), WIDTH=width, BLOCK=BLOCK, num_warps=4)
    return out


@triton.jit
def _silu_mul(out, gate_up, stride, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    place = gate_up + row * stride + column
    gate = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(place + WIDTH, mask=inside, other=0.0).to(tl.float32)
    product = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out + row * WIDTH + column, product.to(out.dtype.element_ty), mask=inside)
