"""Draw tokens in plain torch, on any device.

Where top_k and top_p end is found without sorting. A float32 logit, read as sign and magnitude, is
a whole number of the same order; its 32 bits are looked at as three digits, best first:

    amounts by the first digit     ▁▂▅█▆▃▁   the digit at which the sum from above reaches what is
                                       ↑     needed is that of the last token kept
    by the second, inside it       ▂▁█▃      and so on; the third digit is the token's logit itself
                                      ↑
    the amounts: 1 for each token (top_k), its weight (top_p)

A digit reads and writes some 50 bytes a token: at 64 rows of 128k, 0.4 GB, which an H200 with its
4.8 TB/s moves in 0.1 ms. That is reckoned, not measured; `kernels.draws` needs a quarter of it.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from engine.backends.cuda.draw import DrawControls, unit

DIGITS: Final = ((21, 11), (10, 11), (0, 10))
"""(shift, bits) of the digits of an order, from the first."""


def draw_in_torch(logits: Tensor, best: Tensor, controls: DrawControls) -> Tensor:
    """A token for each row of logits (see `draw.Draw`)."""
    scale = unit(logits.shape[1])
    weights = _weights(logits, best, controls.temperature, scale)
    _filter(weights, logits, controls)
    if controls.min_p is not None:
        weights.masked_fill_(weights < (controls.min_p * scale).to(torch.int64), 0)
    return _pick(weights, controls.uniform)


def _filter(weights: Tensor, logits: Tensor, controls: DrawControls) -> None:
    """Make the weights of what top_k, and of the rest what top_p drops 0, in place."""
    if controls.k is None and controls.p is None:
        return
    orders = logit_orders(logits)
    if controls.k is not None:
        ones = weights.new_ones(1, 1).expand_as(weights)
        weights.masked_fill_(orders < last_of(orders, ones, controls.k), 0)
    if controls.p is not None:
        total = weights.sum(dim=-1, keepdim=True)
        mass = (controls.p * total).ceil().to(torch.int64).clamp(min=1).minimum(total)
        weights.masked_fill_(orders < last_of(orders, weights, mass), 0)


def _weights(logits: Tensor, best: Tensor, temperature: Tensor, scale: float) -> Tensor:
    """The weights [rows, vocab] int64 relative to the best token's, which is `scale`."""
    there = torch.where(best.isfinite(), best, 0).double()[:, None]
    return torch.sub(logits, there).div_(temperature).exp_().mul_(scale).to(torch.int64)


def logit_orders(logits: Tensor) -> Tensor:
    """Whole numbers in [0, 2^32), int64, in the order of float32 logits; equal for ±0."""
    bits = logits.contiguous().view(torch.int32)
    magnitudes = bits & 0x7FFF_FFFF
    return torch.where(bits < 0, -magnitudes, magnitudes).to(torch.int64).add_(1 << 31)


def last_of(orders: Tensor, amounts: Tensor, needed: Tensor) -> Tensor:
    """The largest order [rows, 1] from which on the amounts of a row reach what is needed.

    orders [rows, n] in [0, 2^32); amounts [rows, n], int64 and not negative; needed [rows, 1],
    between 1 and their sum. It is the order of an amount that is not 0.
    """
    found = torch.zeros_like(needed)
    for shift, bits in DIGITS:
        digits = orders.bitwise_right_shift(shift).bitwise_and_((1 << bits) - 1)
        bins = amounts.new_zeros(len(orders), 1 << bits).scatter_add_(1, digits, amounts)
        above = bins.flip(1).cumsum_(1).flip(1)  # of a digit and all better ones
        digit = (above >= needed).sum(dim=1, keepdim=True).sub_(1).clamp_(min=0)
        needed = needed - (above - bins).gather(1, digit)
        found = found | digit << shift
        amounts = torch.where(digits == digit, amounts, 0)
    return found


def _pick(weights: Tensor, uniform: Tensor) -> Tensor:
    """The token [rows] of weights [rows, vocab] at which the sum passes `uniform` of all."""
    cumulative = weights.cumsum_(dim=-1)
    total = cumulative[:, -1:]
    # Rounding must not reach the total, which no token lies beyond.
    target = torch.minimum((uniform * total).to(torch.int64), total - 1)
    tokens = torch.searchsorted(cumulative, target, right=True).squeeze(1)
    return tokens.clamp_(max=weights.shape[1] - 1)
