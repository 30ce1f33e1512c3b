"""The Llama decoder over a flattened batch: every row is some tokens of one sequence.

    n tokens of the step, of any rows      x            [n, hidden]
    keys and values of all tokens          cache        [layers, blocks, BLOCK, kv_heads, head_dim]

Nothing here knows about prefill and decode; what a token may see is the attention's business.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from engine.models.config import ModelConfig

Attention: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(queries [n, heads, head_dim], one layer's keys and values) -> [n, heads, head_dim]."""


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer. Matrices are [outputs, inputs]; q, k, v and gate, up are stacked."""

    attn_norm: Tensor  # [hidden]
    qkv: Tensor  # [(heads + 2 * kv_heads) * head_dim, hidden]
    attn_out: Tensor  # [hidden, heads * head_dim]
    ffn_norm: Tensor  # [hidden]
    gate_up: Tensor  # [2 * ffn, hidden]
    down: Tensor  # [hidden, ffn]


@dataclass(frozen=True, slots=True)
class Weights:
    """A whole model. A tied head is the embedding itself, held once."""

    embedding: Tensor  # [vocab, hidden]
    layers: tuple[LayerWeights, ...]
    norm: Tensor  # [hidden]
    head: Tensor  # [vocab, hidden]


@dataclass(frozen=True, slots=True)
class KVCache:
    """Keys and values of every block, [layers, blocks, BLOCK, kv_heads, head_dim] each."""

    keys: Tensor
    values: Tensor


@dataclass(frozen=True, slots=True)
class RopeTable:
    """Cosines and sines of the rotary embedding, [context_length, head_dim / 2] each."""

    cos: Tensor
    sin: Tensor


@dataclass(frozen=True, slots=True)
class Inputs:
    """The tokens of one step, int64: ids, positions and cache slots [n], and the tokens whose
    logits are wanted [rows]."""

    tokens: Tensor
    positions: Tensor
    slots: Tensor
    logit_rows: Tensor


def rope_table(config: ModelConfig) -> RopeTable:
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    positions = torch.arange(config.context_length, dtype=torch.float32)
    angles = torch.outer(positions, 1.0 / config.rope_base**exponents)
    return RopeTable(angles.cos(), angles.sin())


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
    for layer, keys, values in zip(weights.layers, cache.keys, cache.values, strict=True):
        h = _norm(x, layer.attn_norm, config)
        q, k, v = _project(h, layer.qkv, config)
        q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
        _write(keys, k, inputs.slots)
        _write(values, v, inputs.slots)
        x = x + functional.linear(attention(q, keys, values).flatten(1), layer.attn_out)
        x = x + _mlp(_norm(x, layer.ffn_norm, config), layer)
    last = _norm(x[inputs.logit_rows], weights.norm, config)
    return functional.linear(last, weights.head)


def _norm(x: Tensor, weight: Tensor, config: ModelConfig) -> Tensor:
    return functional.rms_norm(x, (config.hidden,), weight, config.norm_eps)


def _project(h: Tensor, qkv: Tensor, config: ModelConfig) -> tuple[Tensor, Tensor, Tensor]:
    """Queries [n, heads, head_dim], keys and values [n, kv_heads, head_dim]."""
    heads = functional.linear(h, qkv).view(len(h), -1, config.head_dim)
    q, k, v = heads.split([config.heads, config.kv_heads, config.kv_heads], dim=1)
    return q, k, v


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of x [n, heads, head_dim]: dimension i turns with i + head_dim / 2."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def _write(pool: Tensor, new: Tensor, slots: Tensor) -> None:
    """Put new [n, kv_heads, head_dim] into one layer's pool [blocks, BLOCK, kv_heads, head_dim]."""
    pool.flatten(0, 1).index_copy_(0, slots, new)


def _mlp(h: Tensor, layer: LayerWeights) -> Tensor:
    gate, up = functional.linear(h, layer.gate_up).chunk(2, dim=-1)
    return functional.linear(functional.silu(gate) * up, layer.down)
