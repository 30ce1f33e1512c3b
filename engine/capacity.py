"""Capacity in plain arithmetic: the bytes of a KV cache, who fits in, how fast decoding can be.

    a token of KV     2 (K and V) · layers · KV heads · (head_dim · bytes + scale)
    a request         ⌈tokens / 16⌉ blocks; what its last block has too much is the tail
    a decode step     at least weight bytes / bandwidth: every weight is read once

A decode step of B sequences multiplies and adds once for each parameter and sequence: 2 · P · B
operations, beside P · b bytes of weights that it reads. Both take equally long at

    B = peak · b / (2 · bandwidth)

sequences, whatever the size of the model. Below, a step waits for memory, and another sequence
costs it no time but that of reading its KV; above, it waits for arithmetic. The floor counts all
parameters; of an embedding that is not the output head too, a step reads a few rows only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from engine.batch import BLOCK
from engine.blocks import blocks_for


@dataclass(frozen=True, slots=True)
class KvDtype:
    """How an element of K or V is kept.

    bytes: of an element. scale_bytes: of the scale that a token's head has besides, once for K and
    once for V.
    """

    name: str
    bytes: int
    scale_bytes: int = 0

    def vector_bytes(self, head_dim: int) -> int:
        """Bytes of the K or the V of one token and head."""
        return head_dim * self.bytes + self.scale_bytes


KV_DTYPES: Final = {
    dtype.name: dtype
    for dtype in (
        KvDtype("float32", 4),
        KvDtype("float16", 2),
        KvDtype("bfloat16", 2),
        KvDtype("fp8", 1),
        KvDtype("int8", 1, scale_bytes=4),
    )
}

WEIGHT_BYTES: Final = {
    "float32": 4.0,
    "float16": 2.0,
    "bfloat16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "int4": 0.5,
}
"""Bytes of a parameter. Scales of quantised weights are left out: one a channel, or one a group."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What capacity depends on. name, params, context_length: None where nobody said."""

    name: str | None
    layers: int
    kv_heads: int
    head_dim: int
    params: int | None = None
    context_length: int | None = None

    def kv_bytes_per_token(self, dtype: KvDtype) -> int:
        """Bytes that the keys and values of one token take over all layers."""
        return 2 * self.layers * self.kv_heads * dtype.vector_bytes(self.head_dim)


@dataclass(frozen=True, slots=True)
class Device:
    """What computes. bytes_per_s: memory bandwidth; flops_per_s: dense operations.

    measured: estimates of this machine, not a vendor's figures.
    """

    name: str
    memory_bytes: int
    bytes_per_s: float
    flops_per_s: float
    measured: bool
    source: str


# ── requests ──────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Held:
    """What one request, or all of them together, hold of a paged cache.

    live_bytes: KV of tokens that are there. tail_bytes: the rest of what is allocated.
    """

    tokens: int
    blocks: int
    allocated_bytes: int
    live_bytes: int
    tail_bytes: int


@dataclass(frozen=True, slots=True)
class Reserved:
    """What the same requests hold if each reserves blocks for `tokens` from the start.

    wasted_bytes: what is reserved and not live.
    """

    tokens: int
    blocks: int
    bytes: int
    wasted_bytes: int


def held(tokens: int, token_bytes: int) -> Held:
    """What a request of `tokens` tokens holds."""
    blocks = blocks_for(tokens)
    allocated, live = blocks * BLOCK * token_bytes, tokens * token_bytes
    return Held(tokens, blocks, allocated, live, allocated - live)


def together(requests: Iterable[Held]) -> Held:
    """The sum of what requests hold."""
    parts = list(requests)
    return Held(
        tokens=sum(part.tokens for part in parts),
        blocks=sum(part.blocks for part in parts),
        allocated_bytes=sum(part.allocated_bytes for part in parts),
        live_bytes=sum(part.live_bytes for part in parts),
        tail_bytes=sum(part.tail_bytes for part in parts),
    )


def reserved(maximum: int, requests: Sequence[Held], token_bytes: int) -> Reserved:
    """What `requests` hold if each reserves `maximum` tokens, whatever it has."""
    blocks = blocks_for(maximum) * len(requests)
    size = blocks * BLOCK * token_bytes
    return Reserved(maximum, blocks, size, size - together(requests).live_bytes)


# ── a pool, and who fits into it ──────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Fit:
    """How many requests of `tokens` tokens, and so of `blocks` blocks, a pool holds at once."""

    tokens: int
    blocks: int
    requests: int


@dataclass(frozen=True, slots=True)
class Pool:
    """A KV cache of `bytes`.

    tokens: what its blocks hold when all are full. reserving: how many requests it holds if each
    reserves the maximum; None if no maximum is known.
    """

    bytes: int
    blocks: int
    tokens: int
    fits: tuple[Fit, ...]
    reserving: int | None


def pool(size: int, token_bytes: int, lengths: Iterable[int], maximum: int | None) -> Pool:
    """A cache of `size` bytes, with how many requests of each of `lengths` it holds.

    maximum: tokens that a request may have, for comparison with reserving them.
    """
    blocks = size // (BLOCK * token_bytes)
    fits = (Fit(each, blocks_for(each), blocks // blocks_for(each)) for each in lengths)
    return Pool(
        bytes=size,
        blocks=blocks,
        tokens=blocks * BLOCK,
        fits=tuple(fits),
        reserving=None if maximum is None else blocks // blocks_for(maximum),
    )


# ── the floor of a decode step ────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of a model as they are kept."""

    dtype: str
    bytes: int

    @classmethod
    def of(cls, params: int, dtype: str) -> Weights:
        """`params` parameters of one of WEIGHT_BYTES."""
        return cls(dtype, round(params * WEIGHT_BYTES[dtype]))


@dataclass(frozen=True, slots=True)
class Roofline:
    """What no step undercuts. read_bytes_s: bytes of memory read a second. int8_ops_s:
    multiplications and additions a second in products of int8 matrices."""

    read_bytes_s: float
    int8_ops_s: float


@dataclass(frozen=True, slots=True)
class Decode:
    """What no decode step on a device undercuts.

    floor_s: seconds to read the weights, at any batch. live_floor_s: the same with the KV of the
    live requests; None without them. compute_bound_from: sequences from which the arithmetic of the
    weights takes longer than reading them.
    """

    floor_s: float
    live_floor_s: float | None
    compute_bound_from: float


def decode(device: Device, weights: Weights, live_bytes: int | None) -> Decode:
    """The floor for a model with these weights; live_bytes: KV that a step reads besides.

    Weights are taken to be multiplied at the device's one rate, also those of fewer bits.
    """
    rate = device.bytes_per_s
    return Decode(
        floor_s=weights.bytes / rate,
        live_floor_s=None if live_bytes is None else (weights.bytes + live_bytes) / rate,
        compute_bound_from=device.flops_per_s * WEIGHT_BYTES[weights.dtype] / (2 * rate),
    )


# ── all of it ─────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Capacity:
    """The whole answer; what was not asked, or does not follow from what is known, is None.

    maximum: tokens that a request would reserve if it had to.
    """

    model: ModelShape
    kv_dtype: str
    block_tokens: int
    bytes_per_token: int
    bytes_per_block: int
    maximum: int | None
    requests: tuple[Held, ...]
    total: Held | None
    reserved: Reserved | None
    device: Device | None
    weights: Weights | None
    decode: Decode | None
    pool: Pool | None


def capacity(
    model: ModelShape,
    kv_dtype: KvDtype,
    *,
    lengths: Sequence[int] = (),
    maximum: int | None = None,
    device: Device | None = None,
    weights: Weights | None = None,
    pool_bytes: int | None = None,
) -> Capacity:
    """All that follows for a model.

    lengths: tokens of live requests, each at least one. maximum: tokens that a request would
    reserve if it had to. pool_bytes: size of the KV cache. Pools are shown for the live lengths or,
    without any, for a few usual ones.
    """
    token_bytes = model.kv_bytes_per_token(kv_dtype)
    requests = tuple(held(tokens, token_bytes) for tokens in lengths)
    total = together(requests) if requests else None
    live_bytes = total.live_bytes if total else None
    kept = reserved(maximum, requests, token_bytes) if maximum and requests else None
    shown = sorted(set(lengths)) or _usual_lengths(model.context_length)
    return Capacity(
        model=model,
        kv_dtype=kv_dtype.name,
        block_tokens=BLOCK,
        bytes_per_token=token_bytes,
        bytes_per_block=BLOCK * token_bytes,
        maximum=maximum,
        requests=requests,
        total=total,
        reserved=kept,
        device=device,
        weights=weights,
        decode=decode(device, weights, live_bytes) if device and weights else None,
        pool=None if pool_bytes is None else pool(pool_bytes, token_bytes, shown, maximum),
    )


def _usual_lengths(context_length: int | None) -> list[int]:
    usual = [512, 2048, 8192, 32_768]
    if context_length is None:
        return usual
    return [*(tokens for tokens in usual if tokens < context_length), context_length]
