"""The weights of a model, as the decoder reads them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from engine.models.config import ModelConfig
from engine.models.products import Embedding, Matrix


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer. Matrices are [outputs, inputs]; q, k, v and gate, up are stacked.

    Rows of q and k are in the order of Hugging Face, which rotates dimension i of a head with
    i + head_dim / 2. What a model does not have is None.
    """

    attn_norm: Tensor  # [hidden]
    qkv: Matrix  # [(heads + 2 * kv_heads) * head_dim, hidden]
    qkv_bias: Tensor | None  # [(heads + 2 * kv_heads) * head_dim]
    q_norm: Tensor | None  # [head_dim]
    k_norm: Tensor | None  # [head_dim]
    attn_out: Matrix  # [hidden, heads * head_dim]
    attn_out_bias: Tensor | None  # [hidden]
    ffn_norm: Tensor  # [hidden]
    gate_up: Matrix  # [2 * ffn, hidden]
    down: Matrix  # [hidden, ffn]


@dataclass(frozen=True, slots=True)
class Weights:
    """A whole model. A tied head is the embedding itself, held once."""

    embedding: Embedding  # [vocab, hidden]
    layers: tuple[LayerWeights, ...]
    norm: Tensor  # [hidden]
    head: Matrix  # [vocab, hidden]


Keep: TypeAlias = Callable[[Callable[[], Tensor]], Matrix]
"""What a layer's matrix is kept as, from how to make it in float32."""

Cut: TypeAlias = Callable[[str, Tensor], Tensor]
"""What is kept of a tensor, from its name and all of it."""


def assemble(
    config: ModelConfig,
    load: Callable[[str], Tensor],
    keep: Keep | None = None,
    cut: Cut | None = None,
) -> Weights:
    """The weights of a model whose tensors `load` gives, by the names of `engine.models.shapes`.

    keep: what the matrices of its layers are kept as; None: in float32, made at once. cut: what is
    kept of each tensor; None: all.
    """
    if cut is not None:
        load = _cutting(load, cut)
    embedding = load("token_embd.weight")
    return Weights(
        embedding=embedding,
        layers=tuple(_layer(config, load, keep, f"blk.{index}.") for index in range(config.layers)),
        norm=load("output_norm.weight"),
        head=embedding if config.tied_head else load("output.weight"),
    )


def _cutting(load: Callable[[str], Tensor], cut: Cut) -> Callable[[str], Tensor]:
    return lambda name: cut(name, load(name))


def _layer(
    config: ModelConfig, load: Callable[[str], Tensor], keep: Keep | None, prefix: str
) -> LayerWeights:
    def stacked(*names: str) -> Tensor:
        return torch.cat([load(prefix + name) for name in names])

    def optional(present: bool, *names: str) -> Tensor | None:
        return stacked(*names) if present else None

    def kept(*names: str) -> Matrix:
        def make() -> Tensor:
            return stacked(*names) if len(names) > 1 else load(prefix + names[0])

        return make() if keep is None else keep(make)

    return LayerWeights(
        attn_norm=load(prefix + "attn_norm.weight"),
        qkv=kept("attn_q.weight", "attn_k.weight", "attn_v.weight"),
        qkv_bias=optional(config.attention_bias, "attn_q.bias", "attn_k.bias", "attn_v.bias"),
        q_norm=optional(config.qk_norm, "attn_q_norm.weight"),
        k_norm=optional(config.qk_norm, "attn_k_norm.weight"),
        attn_out=kept("attn_output.weight"),
        attn_out_bias=optional(config.output_bias, "attn_output.bias"),
        ffn_norm=load(prefix + "ffn_norm.weight"),
        gate_up=kept("ffn_gate.weight", "ffn_up.weight"),
        down=kept("ffn_down.weight"),
    )
