"""Root-mean-square norm of rows, with or without a residual that is added before: a program a row.

A row is read once, is as wide as registers of a program hold (some 16,384 numbers), and is padded
with zeros to a power of two, which add nothing to its squares.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None) -> Tensor:
    """The norm of x [n, width] times weight [width], in the type of x.

    residual [n, width]: x is added to it in place, and the norm is of what it then holds.
    """
    rows, width = x.shape
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    block = triton.next_power_of_2(width)
    _rms_norm[(rows,)](
        out,
        x,
        residual,
        weight,
        eps,
        x.stride(0),
        0 if residual is None else residual.stride(0),
        WIDTH=width,
        BLOCK=block,
        num_warps=min(max(block // 512, 1), 16),
    )
    return out


@triton.jit
def _rms_norm(
    out,
    x,
    residual,
    weight,
    eps,
    x_stride,
    residual_stride,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    number = tl.load(x + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
    if residual is not None:
        place = residual + row * residual_stride + column
        number += tl.load(place, mask=inside, other=0.0).to(tl.float32)
        kept = number.to(residual.dtype.element_ty)
        tl.store(place, kept, mask=inside)
        number = kept.to(tl.float32)
    squares = tl.sum(number * number, axis=0)
    scaled = number * tl.rsqrt(squares / WIDTH + eps)
    scaled *= tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * WIDTH + column, scaled.to(out.dtype.element_ty), mask=inside)
