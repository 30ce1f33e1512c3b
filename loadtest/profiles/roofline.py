"""A step-cost model computed from public figures of a GPU and a model.

    base             weight bytes / bandwidth                    every weight is read once
    prompt, decode   2 · parameters / operations a second        one multiply-add a parameter
    KV read          KV bytes of a token / bandwidth
    context          4 · layers · heads · head_dim / operations  a query times a key, and a value

Weights and KV are bfloat16. A roofline would be the larger of reading and computing, a linear model
adds the two: it errs to the slow side, by a factor of two at most. No kernel reaches the vendor's
figures; the shares below are what good ones do.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from engine.batch import BLOCK
from engine.capacity import KV_DTYPES, Device, Weights, decode
from engine.cost import LinearCost
from engine.presets import DenseModel

BANDWIDTH_SHARE: Final = 1 / 1.3
"""Of the memory bandwidth: decoding within 1.3 times the floor."""

COMPUTE_SHARE: Final = 0.6
"""Of the dense operations, in large matrix products."""

USABLE_SHARE: Final = 0.9
"""Of the memory, for weights and KV; the rest is the driver's, activations, and air."""


def together(device: Device, count: int) -> Device:
    """Several of a device that compute one model, each a part of every matrix.

    They have their memories, bandwidths and operations together. What they say to each other is
    left out, so this errs to the fast side: twice a layer activations are summed over all of them.
    """
    return replace(
        device,
        name=f"{count} {device.name}",
        memory_bytes=count * device.memory_bytes,
        bytes_per_s=count * device.bytes_per_s,
        flops_per_s=count * device.flops_per_s,
    )


def roofline_pool_tokens(device: Device, model: DenseModel, name: str) -> int | None:
    """Tokens whose KV fits beside the weights; None where the weights leave no room for a block."""
    shape, weights = model.shape(name), Weights.of(model.params, "bfloat16")
    left = int(USABLE_SHARE * device.memory_bytes) - weights.bytes
    blocks = left // (BLOCK * shape.kv_bytes_per_token(KV_DTYPES["bfloat16"]))
    return blocks * BLOCK if blocks > 0 else None


def roofline_cost(device: Device, model: DenseModel, name: str) -> LinearCost:
    """What steps of a model take on a device, roughly."""
    shape = model.shape(name)
    weights = Weights.of(model.params, "bfloat16")
    operations = device.flops_per_s * COMPUTE_SHARE
    token = 2 * model.params / operations
    kv_bytes = shape.kv_bytes_per_token(KV_DTYPES["bfloat16"])
    return LinearCost(
        base=decode(device, weights, None).floor_s / BANDWIDTH_SHARE,
        prompt_token=token,
        decode=token,
        kv_read=kv_bytes / (device.bytes_per_s * BANDWIDTH_SHARE),
        chunk_context=4 * model.layers * model.heads * model.head_dim / operations,
    )
