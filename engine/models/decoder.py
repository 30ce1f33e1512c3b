"""The decoder of Llama, Mistral, Qwen2 and Qwen3 over a flattened batch.

    n tokens of the step, of any rows      x                  [n, hidden]
    their new keys and values              cache[layer]       written at `slots`, one a token

Nothing here knows about prefill and decode; what a token may see is the attention's business. What
a model does not have (a bias, a norm of queries and keys) is None in its weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from engine.models.config import ModelConfig
from engine.models.products import embed, multiply
from engine.models.rope import RopeTable, rotate
from engine.models.weights import LayerWeights, Weights


class LayerKV(Protocol):
    """Keys and values of one layer, each in its slot, in whatever format."""

    def write(self, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Keep keys and values [n, kv_heads, head_dim] in `slots` [n]."""
        ...

    def read(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [n, kv_heads, head_dim] of `slots` [n], as they were or nearly so."""
        ...


class Attention(Protocol):
    """Attention of the step's tokens over everything in the cache that they may see."""

    def __call__(self, queries: Tensor, kv: LayerKV, window: int | None) -> Tensor:
        """queries [n, heads, head_dim] over one layer's cache; returns [n, heads, head_dim].

        window: how many tokens a query sees, itself included; None for all.
        """
        ...


@dataclass(frozen=True, slots=True)
class Inputs:
    """The tokens of one step, int64: ids, positions and cache slots [n], and the tokens whose
    logits are wanted [rows]."""

    tokens: Tensor
    positions: Tensor
    slots: Tensor
    logit_rows: Tensor


@torch.inference_mode()
def forward(
    weights: Weights,
    config: ModelConfig,
    rope: RopeTable,
    cache: Sequence[LayerKV],
    inputs: Inputs,
    attention: Attention,
) -> Tensor:
    """Compute a step: writes K and V of its tokens, returns logits [len(logit_rows), vocab]."""
    cos = rope.cos[inputs.positions].unsqueeze(1)  # [n, 1, head_dim / 2]
    sin = rope.sin[inputs.positions].unsqueeze(1)
    x = embed(inputs.tokens, weights.embedding)
    for layer, kv, window in zip(weights.layers, cache, config.layer_windows, strict=True):
        q, k, v = _project(_norm(x, layer.attn_norm, config), layer, config)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        kv.write(inputs.slots, k, v)
        seen = attention(q, kv, window).flatten(1)
        x = x + multiply(seen, layer.attn_out, layer.attn_out_bias)
        x = x + _mlp(_norm(x, layer.ffn_norm, config), layer)
    last = _norm(x[inputs.logit_rows], weights.norm, config)
    return multiply(last, weights.head)


def _norm(x: Tensor, weight: Tensor, config: ModelConfig) -> Tensor:
    """Root-mean-square norm over the last dimension."""
    return functional.rms_norm(x, weight.shape, weight, config.norm_eps)


def _project(h: Tensor, layer: LayerWeights, config: ModelConfig) -> tuple[Tensor, Tensor, Tensor]:
    """Queries [n, heads, head_dim], keys and values [n, kv_heads, head_dim]."""
    heads = multiply(h, layer.qkv, layer.qkv_bias).view(len(h), -1, config.head_dim)
    q, k, v = heads.split([config.heads, config.kv_heads, config.kv_heads], dim=1)
    if layer.q_norm is not None and layer.k_norm is not None:
        q, k = _norm(q, layer.q_norm, config), _norm(k, layer.k_norm, config)
    return q, k, v


def _mlp(h: Tensor, layer: LayerWeights) -> Tensor:
    gate, up = multiply(h, layer.gate_up).chunk(2, dim=-1)
    return multiply(functional.silu(gate) * up, layer.down)
