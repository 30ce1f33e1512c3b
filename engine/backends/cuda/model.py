"""The decoder on a device: weights that moved there, and the forward pass over `Ops`.

The same decoder as `engine.models.decoder`, for the same models; what differs is who computes what
lies between the products. Tokens of any rows are flattened, n of them:

    residual [n, hidden] ─┬─ norm ─ qkv ─ rotate, write ─ attention ─ product ─┐
                          └──────────────────────────────────────────── add ◀──┘─ norm ─ MLP …

An addition and the norm behind it are one operation. Whatever lies behind the attention of the last
layer is computed for the tokens alone whose logits are wanted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from engine.backends.cuda.ops import Heads, Ops
from engine.backends.cuda.pool import KVPool
from engine.models.config import ModelConfig
from engine.models.decoder import Inputs
from engine.models.products import Matrix, embed, multiply
from engine.models.rope import RopeTable, rope_table
from engine.models.shapes import expected_shapes
from engine.models.weights import Keep, LayerWeights, Weights, assemble

SPREAD = 0.02
"""Standard deviation of random weights, as models are initialised with."""


class LayerAttention(Protocol):
    """Attention that was planned for a step: `Attention` and `GraphAttention` of `.attention`."""

    def run(self, layer: int, queries: Tensor, window: int | None) -> Tensor:
        """[n, heads, head_dim] of queries of that shape, over the layer's part of the pool."""
        ...


class Decoder:
    """A model on a device, to be run over any pool. weights: there, of one type (`moved`)."""

    def __init__(
        self, weights: Weights, config: ModelConfig, ops: Ops, device: torch.device
    ) -> None:
        self.config = config
        self._weights = weights
        self._ops = ops
        table = rope_table(config)
        self._rope = RopeTable(table.cos.to(device), table.sin.to(device))
        self._heads = [_heads(config, layer) for layer in weights.layers]

    def hidden(self, inputs: Inputs, pool: KVPool, attention: LayerAttention) -> Tensor:
        """Compute a step up to its head: writes K and V of its tokens into the pool, returns what
        `logits` takes, [len(logit_rows), hidden].

        attention: planned for the step's rows.
        """
        ops, weights, eps = self._ops, self._weights, self.config.norm_eps
        last = len(weights.layers) - 1
        norms = [layer.attn_norm for layer in weights.layers[1:]] + [weights.norm]
        residual = embed(inputs.tokens, weights.embedding)
        h = ops.rms_norm(residual, weights.layers[0].attn_norm, eps)
        for i, (layer, window) in enumerate(
            zip(weights.layers, self.config.layer_windows, strict=True)
        ):
            qkv = multiply(h, layer.qkv, layer.qkv_bias)
            queries = self._write(i, qkv, inputs, pool)
            if i == last and not len(inputs.logit_rows):
                return residual[:0]
            seen = attention.run(i, queries, window).flatten(1)
            if i == last:
                seen, residual = seen[inputs.logit_rows], residual[inputs.logit_rows]
            product = multiply(seen, layer.attn_out, layer.attn_out_bias)
            h = ops.add_rms_norm(product, residual, layer.ffn_norm, eps)
            h = ops.add_rms_norm(self._mlp(h, layer), residual, norms[i], eps)
        return h

    def logits(self, hidden: Tensor) -> Tensor:
        """The logits [rows, vocab] of what `hidden` returned, in the type of the weights."""
        return multiply(hidden, self._weights.head)

    def _write(self, i: int, qkv: Tensor, inputs: Inputs, pool: KVPool) -> Tensor:
        """Keep a layer's keys and values; returns its queries [n, heads, head_dim]."""
        keys, values = pool.slots[i]
        return self._ops.rotate_and_write(
            qkv, inputs.positions, inputs.slots, self._rope, keys, values, self._heads[i]
        )

    def _mlp(self, h: Tensor, layer: LayerWeights) -> Tensor:
        return multiply(self._ops.silu_mul(multiply(h, layer.gate_up)), layer.down)


def _heads(config: ModelConfig, layer: LayerWeights) -> Heads:
    return Heads(
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        q_norm=layer.q_norm,
        k_norm=layer.k_norm,
        eps=config.norm_eps,
    )


# ── weights ───────────────────────────────────────────────────────────────────────────────────


def keeping(device: torch.device, dtype: torch.dtype) -> Keep:
    """How matrices are kept while they are loaded: on the device, one after the other, so that the
    host holds one of them in float32 at a time."""

    def keep(make: Callable[[], Tensor]) -> Matrix:
        return make().to(device, dtype)

    return keep


def moved(weights: Weights, device: torch.device, dtype: torch.dtype) -> Weights:
    """The weights on a device in a type; what is there already stays as it is.

    A matrix that multiplies by itself stays too: whoever made it knows where it belongs.
    """

    def move(matrix: Any) -> Any:
        return matrix.to(device, dtype) if isinstance(matrix, Tensor) else matrix

    def moved_layer(layer: LayerWeights) -> LayerWeights:
        fields = dataclasses.fields(layer)
        return LayerWeights(**{f.name: move(getattr(layer, f.name)) for f in fields})

    embedding = move(weights.embedding)
    tied = weights.head is weights.embedding
    return Weights(
        embedding=embedding,
        layers=tuple(moved_layer(layer) for layer in weights.layers),
        norm=move(weights.norm),
        head=embedding if tied else move(weights.head),
    )


def random_weights(
    config: ModelConfig, seed: int, device: torch.device, dtype: torch.dtype
) -> Weights:
    """Weights of a model that learnt nothing, made on the device: the same for the same seed, type
    of device and order of tensors. For measurements without a model file."""
    shapes = expected_shapes(config)
    generator = torch.Generator(device).manual_seed(seed)

    def load(name: str) -> Tensor:
        values = torch.empty(shapes[name], dtype=dtype, device=device)
        values.normal_(0.0, SPREAD, generator=generator)
        return values.add_(1.0) if "norm" in name else values

    return assemble(config, load)


def weight_bytes(weights: Weights) -> int:
    """Bytes of all tensors, a tied head counted once; matrices that multiply by themselves not."""
    sizes: dict[int, int] = {}
    parts: list[Weights | LayerWeights] = [weights, *weights.layers]
    for part in parts:
        for field in dataclasses.fields(part):
            value = getattr(part, field.name)
            if isinstance(value, Tensor):
                sizes[value.data_ptr()] = value.nbytes
    return sum(sizes.values())
