"""Draw tokens under temperature, top_k, top_p and min_p: a row's vocabulary over many programs.

What is computed is `torch_draw`'s, number for number, in passes over the logits:

    weigh               logits ─▶ weights                      12 bytes a token
    count, choose × 3   amounts by digit ─▶ the last order      3 × 4 for top_k, 3 × 12 for top_p
    add                 what is kept, by block                 12
    pick                the block, and the token in it          as good as none

At 64 rows of 128k all of it moves 0.6 GB at most: 0.13 ms at an H200's 4.8 TB/s, an estimate that
no measurement is behind yet. Amounts meet in atomic additions of whole numbers, which give the same
in any order. Nothing waits, and how often kernels are launched follows from which filters are in
use.
"""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.backends.cuda.draw import DrawControls, unit
from engine.backends.cuda.torch_draw import DIGITS

BLOCK: Final = 2048
"""Tokens that a program looks at."""


def draw_in_triton(logits: Tensor, best: Tensor, controls: DrawControls) -> Tensor:
    """A token for each row of logits (see `draw.Draw`)."""
    logits = logits.contiguous()
    rows, vocab = logits.shape
    blocks = triton.cdiv(vocab, BLOCK)
    scale = unit(vocab)
    weights = torch.empty(rows, vocab, dtype=torch.int64, device=logits.device)
    _weigh[(rows, blocks)](weights, logits, best, controls.temperature, vocab, scale, BLOCK)
    first = torch.zeros(rows, dtype=torch.int64, device=logits.device)
    if controls.k is not None:
        first = _last_of(logits, None, first, controls.k)
    if controls.p is not None:
        first = _last_of(logits, weights, first, controls.p)
    sums = torch.empty(rows, blocks, dtype=torch.int64, device=logits.device)
    # Always there, so that a kernel is compiled when the first draw is tried, and not again.
    floors = torch.zeros_like(controls.uniform) if controls.min_p is None else controls.min_p
    kept = (weights, logits, first, floors, vocab, scale, BLOCK)
    _add[(rows, blocks)](sums, *kept)
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    wide = triton.next_power_of_2(blocks)
    _pick[(rows,)](tokens, sums, controls.uniform, *kept, BLOCKS=wide)
    return tokens


def _last_of(logits: Tensor, weights: Tensor | None, first: Tensor, needed: Tensor) -> Tensor:
    """The order [rows] of the last token kept, of those from `first` on.

    weights: None to keep `needed` [rows, 1] tokens, int64; else the share `needed`, float64, of
    their weight is kept. All of a row is where that is the vocabulary, or 1.
    """
    rows, vocab = logits.shape
    grid = (rows, triton.cdiv(vocab, BLOCK))
    most = 1 << max(bits for _, bits in DIGITS)
    bins = torch.zeros(rows, most, dtype=torch.int64, device=logits.device)
    found, left = torch.zeros_like(first), torch.empty_like(first)
    for shift, bits in DIGITS:
        _count[grid](bins, logits, weights, first, found, needed, vocab, BLOCK, shift, bits, most)
        shares = weights is not None
        _choose[(rows,)](bins, found, left, needed, shares, shift, bits, most)
    return torch.maximum(first, found)


@triton.jit
def _order(logit):
    """Whole numbers in the order of logits, from 0; equal for zeros of both signs."""
    bits = logit.to(tl.int32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    return tl.where(bits < 0, -magnitude, magnitude).to(tl.int64) + 2147483648


@triton.jit
def _weigh(weights, logits, best, temperature, vocab, ONE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = token < vocab
    logit = tl.load(logits + row * vocab + token, mask=inside, other=0.0).to(tl.float64)
    largest = tl.load(best + row).to(tl.float64)
    weight = tl.exp((logit - largest) / tl.load(temperature + row)) * ONE
    # False for what is no number, in rows at fault: such a weight would be any whole number.
    weight = tl.where(weight <= ONE, weight, 0.0)
    tl.store(weights + row * vocab + token, weight.to(tl.int64), mask=inside)


@triton.jit
def _count(
    bins,
    logits,
    weights,
    first,
    found,
    needed,
    vocab,
    BLOCK: tl.constexpr,
    SHIFT: tl.constexpr,
    BITS: tl.constexpr,
    MOST: tl.constexpr,
):
    """Add the amounts of a block to the bins of their digits, if they have the digits found."""
    row = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    if weights is None:
        if tl.load(needed + row) >= vocab:
            return
    else:
        if tl.load(needed + row) >= 1.0:
            return
    inside = token < vocab
    place = row * vocab + token
    order = _order(tl.load(logits + place, mask=inside, other=0.0))
    there = inside & (order >= tl.load(first + row))
    there &= (order >> (SHIFT + BITS)) == (tl.load(found + row) >> (SHIFT + BITS))
    amount = tl.full((BLOCK,), 1, tl.int64)
    if weights is not None:
        amount = tl.load(weights + place, mask=there, other=0)
        there &= amount > 0
    digit = (order >> SHIFT) & ((1 << BITS) - 1)
    tl.atomic_add(bins + row * MOST + digit, amount, mask=there, sem="relaxed")


@triton.jit
def _choose(
    bins,
    found,
    left,
    needed,
    SHARES: tl.constexpr,
    SHIFT: tl.constexpr,
    BITS: tl.constexpr,
    MOST: tl.constexpr,
):
    """Find the digit at which the sum from above reaches what is needed; empties the bins.

    Bins of a row of which nothing is dropped are empty, and every digit found is 0 then.
    """
    row = tl.program_id(0).to(tl.int64)
    digit = tl.arange(0, 1 << BITS)
    place = bins + row * MOST + digit
    amount = tl.load(place)
    tl.store(place, tl.zeros_like(amount))
    total = tl.sum(amount, axis=0)
    above = total - (tl.cumsum(amount, axis=0) - amount)
    if SHIFT + BITS < 32:
        wanted = tl.load(left + row)
    elif SHARES:
        wanted = tl.ceil(tl.load(needed + row) * total.to(tl.float64)).to(tl.int64)
        wanted = tl.minimum(tl.maximum(wanted, 1), total)
    else:
        wanted = tl.load(needed + row)
    reached = tl.sum(((above >= wanted) & (total > 0)).to(tl.int32), axis=0)
    last = tl.maximum(reached - 1, 0).to(tl.int64)
    better = tl.sum(tl.where(digit == last, above - amount, 0), axis=0)
    tl.store(left + row, wanted - better)
    tl.store(found + row, tl.load(found + row) | (last << SHIFT))


@triton.jit
def _kept(row, token, weights, logits, first, min_p, vocab, ONE: tl.constexpr):
    """The weights of tokens of a row, 0 for those that are dropped."""
    inside = token < vocab
    place = row * vocab + token
    weight = tl.load(weights + place, mask=inside, other=0)
    order = _order(tl.load(logits + place, mask=inside, other=0.0))
    kept = order >= tl.load(first + row)
    kept &= weight >= (tl.load(min_p + row) * ONE).to(tl.int64)
    return tl.where(kept, weight, 0)


@triton.jit
def _add(sums, weights, logits, first, min_p, vocab, ONE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    kept = _kept(row, token, weights, logits, first, min_p, vocab, ONE)
    tl.store(sums + row * tl.num_programs(1) + tl.program_id(1), tl.sum(kept, axis=0))


@triton.jit
def _pick(
    tokens,
    sums,
    uniform,
    weights,
    logits,
    first,
    min_p,
    vocab,
    ONE: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """Take the token at which the sum of what is kept passes the share `uniform` of all."""
    row = tl.program_id(0).to(tl.int64)
    blocks = tl.cdiv(vocab, BLOCK)
    block = tl.arange(0, BLOCKS)
    amount = tl.load(sums + row * blocks + block, mask=block < blocks, other=0)
    total = tl.sum(amount, axis=0)
    # Rounding must not reach the total, which no token lies beyond.
    target = (tl.load(uniform + row) * total.to(tl.float64)).to(tl.int64)
    target = tl.minimum(target, total - 1)
    passed = tl.cumsum(amount, axis=0) <= target
    before = tl.sum(tl.where(passed, amount, 0), axis=0)
    at = tl.minimum(tl.sum(passed.to(tl.int32), axis=0), blocks - 1)
    token = at * BLOCK + tl.arange(0, BLOCK)
    kept = _kept(row, token, weights, logits, first, min_p, vocab, ONE)
    behind = before + tl.cumsum(kept, axis=0) <= target
    found = at * BLOCK + tl.sum(behind.to(tl.int32), axis=0)
    tl.store(tokens + row, tl.minimum(found, vocab - 1).to(tl.int64))
