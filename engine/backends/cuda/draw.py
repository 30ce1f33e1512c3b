"""Draw tokens on the device, in whole numbers: the same bits in whatever order they are added.

The weight of a token, exp((logit - best) / temperature), is kept as a multiple of 2^-45 (for a
vocabulary of 128k; the sum of all fits 63 bits). Sums of such numbers are exact, so neither the
scan that a GPU chooses for a shape nor the order of its atomics changes a draw, and a token that is
drawn in one batch is drawn in every other. What is lost is below 2^-28 of a row's probability.

Where top_k and top_p end is found without sorting. A float32 logit, read as sign and magnitude, is
a whole number of the same order; its 32 bits are looked at as three digits, best first:

    amounts by the first digit     ▁▂▅█▆▃▁   the digit at which the sum from above reaches what is
                                       ↑     needed is that of the last token kept
    by the second, inside it       ▂▁█▃      and so on; the third digit is the token's logit itself
                                      ↑
    the amounts: 1 for each token (top_k), its weight (top_p)

A pass reads and writes some 50 bytes a token: at 64 rows of 128k, 0.4 GB or 0.1 ms of an H200's
4.8 TB/s. Sorting reads no less, and torch starts it for one row at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from engine.backends.cuda.parcel import Parcel
from engine.backends.sampler import uniforms
from engine.controls import SampleRow

DIGITS: Final = ((21, 11), (10, 11), (0, 10))
"""(shift, bits) of the digits of an order, from the first."""


class Filters(NamedTuple):
    """What top_k and top_p drop from some rows. k is the vocabulary, and p is 1, where they drop
    nothing. k int64, p float64, both [rows, 1]; None where no row needs one."""

    k: Tensor | None
    p: Tensor | None


class DrawPlan:
    """What is uploaded to draw for rows, and what is done with it.

    rows: those to draw for, in the order of their logits.
    """

    def __init__(self, rows: Sequence[SampleRow], vocab: int, parcel: Parcel) -> None:
        controls = [row.controls for row in rows]
        self._vocab = vocab
        self._k = np.array([c.top_k if 0 < c.top_k < vocab else vocab for c in controls])
        self._p = np.array([c.top_p for c in controls])
        min_p = np.array([c.min_p for c in controls])
        self._filtered = np.flatnonzero((self._k < vocab) | (self._p < 1))
        self._floors = bool((min_p > 0).any())
        columns = np.stack([[c.temperature for c in controls], uniforms(rows), min_p])
        self._columns = parcel.add(columns[:, :, None])
        self._at = parcel.add(self._filtered)
        self._ks = parcel.add(self._k[self._filtered, None])
        self._ps = parcel.add(self._p[self._filtered, None])

    def run(self, logits: Tensor, best: Tensor, sent: Sequence[Tensor]) -> Tensor:
        """A token for each row of logits [rows, vocab], float32, whose maxima are `best` [rows].

        Any token where these are not finite. The logits are not changed.
        """
        temperature, uniform, min_p = sent[self._columns]
        scale = unit(self._vocab)
        weights = _weights(logits, best, temperature, scale)
        if len(self._filtered) == len(logits):
            _filter(weights, logits, self._filters(sent))
        elif len(self._filtered):
            at = sent[self._at]
            some = weights.index_select(0, at)
            _filter(some, logits.index_select(0, at), self._filters(sent))
            weights.index_copy_(0, at, some)
        if self._floors:
            weights.masked_fill_(weights < (min_p * scale).to(torch.int64), 0)
        return _pick(weights, uniform)

    def _filters(self, sent: Sequence[Tensor]) -> Filters:
        return Filters(
            sent[self._ks] if (self._k < self._vocab).any() else None,
            sent[self._ps] if (self._p < 1).any() else None,
        )


def unit(vocab: int) -> float:
    """What a weight of 1 is kept as: the largest power of two of which `vocab` fit 62 bits."""
    return float(1 << 62 - vocab.bit_length())


def _weights(logits: Tensor, best: Tensor, temperature: Tensor, scale: float) -> Tensor:
    """The weights [rows, vocab] int64 relative to the best token's, which is `scale`."""
    there = torch.where(best.isfinite(), best, 0).double()[:, None]
    return torch.sub(logits, there).div_(temperature).exp_().mul_(scale).to(torch.int64)


def _filter(weights: Tensor, logits: Tensor, filters: Filters) -> None:
    """Make the weights of what top_k, and of the rest what top_p drops 0, in place."""
    orders = logit_orders(logits)
    if filters.k is not None:
        ones = weights.new_ones(1, 1).expand_as(weights)
        weights.masked_fill_(orders < last_of(orders, ones, filters.k), 0)
    if filters.p is not None:
        total = weights.sum(dim=-1, keepdim=True)
        mass = (filters.p * total).ceil().to(torch.int64).clamp(min=1).minimum(total)
        weights.masked_fill_(orders < last_of(orders, weights, mass), 0)


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
