"""The decoder of Llama, Mistral, Qwen2 and Qwen3 over a flattened batch.

    n tokens of the step, of any rows      x            [n, hidden]
    keys and values of all tokens          cache        [layers, blocks, BLOCK, kv_heads, head_dim]

Nothing here knows about prefill and decode; what a token may see is the attention's business. What
a model does not have (a bias, a norm of queries and keys) is None in its weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from engine.models.config import ModelConfig
from engine.models.rope import RopeTable, rotate
from engine.models.weights import LayerWeights, Weights


class Attention(Protocol):
    """Attention of the step's tokens over everything in the cache that they may see."""

    def __call__(self, queries: Tensor, keys: Tensor, values: Tensor, window: int | None) -> Tensor:
        """queries [n, heads, head_dim] over one layer's pools; returns [n, heads, head_dim].

        window: how many tokens a query sees, itself included; None for all.
        """
        ...


@dataclass(frozen=True, slots=True)
class KVCache:
    """Keys and values of every block, [layers, blocks, BLOCK, kv_heads, head_dim] each."""

    keys: Tensor
    values: Tensor


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
    cache: KVCache,
    inputs: Inputs,
    attention: Attention,
) -> Tensor:
    """Compute a step: writes K and V of its tokens, returns logits [len(logit_rows), vocab]."""
    cos = rope.cos[inputs.positions].unsqueeze(1)  # [n, 1, head_dim / 2]
    sin = rope.sin[inputs.positions].unsqueeze(1)
    x = functional.embedding(inputs.tokens, weights.embedding)
    for layer, keys, values, window in zip(
        weights.layers, cache.keys, cache.values, config.layer_windows, strict=True
    ):
        q, k, v = _project(_norm(x, layer.attn_norm, config), layer, config)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        _write(keys, k, inputs.slots)
        _write(values, v, inputs.slots)
        seen = attention(q, keys, values, window).flatten(1)
        x = x + functional.linear(seen, layer.attn_out, layer.attn_out_bias)
        x = x + _mlp(_norm(x, layer.ffn_norm, config), layer)
    last = _norm(x[inputs.logit_rows], weights.norm, config)
    return functional.linear(last, weights.head)


def _norm(x: Tensor, weight: Tensor, config: ModelConfig) -> Tensor:
    """Root-mean-square norm over the last dimension."""
    return functional.rms_norm(x, weight.shape, weight, config.norm_eps)


def _project(h: Tensor, layer: LayerWeights, config: ModelConfig) -> tuple[Tensor, Tensor, Tensor]:
    """Queries [n, heads, head_dim], keys and values [n, kv_heads, head_dim]."""
    heads = functional.linear(h, layer.qkv, layer.qkv_bias).view(len(h), -1, config.head_dim)
    q, k, v = heads.split([config.heads, config.kv_heads, config.kv_heads], dim=1)
    if layer.q_norm is not None and layer.k_norm is not None:
        q, k = _norm(q, layer.q_norm, config), _norm(k, layer.k_norm, config)
    return q, k, v


def _write(pool: Tensor, new: Tensor, slots: Tensor) -> None:
    """Put new [n, kv_heads, head_dim] into one layer's pool [blocks, BLOCK, kv_heads, head_dim]."""
    pool.flatten(0, 1).index_copy_(0, slots, new)


def _mlp(h: Tensor, layer: LayerWeights) -> Tensor:
    gate, up = functional.linear(h, layer.gate_up).chunk(2, dim=-1)
    return functional.linear(functional.silu(gate) * up, layer.down)
