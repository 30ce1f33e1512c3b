"""Every tensor that a model has, and the check that a file holds these and no others.

Tensors go by llama.cpp's names here (`blk.0.attn_q.weight`); a format with names of its own says
what each is called there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from os import PathLike
from typing import TypeAlias

from engine.errors import ModelError
from engine.models.config import ModelConfig

ModelPath: TypeAlias = str | PathLike[str]

Shape: TypeAlias = tuple[int, ...]
"""Sizes in torch's order: a matrix is (outputs, inputs)."""


def expected_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Every tensor of the model, by name."""
    shapes: dict[str, Shape] = {
        "token_embd.weight": (config.vocab, config.hidden),
        "output_norm.weight": (config.hidden,),
    }
    if not config.tied_head:
        shapes["output.weight"] = (config.vocab, config.hidden)
    for index in range(config.layers):
        shapes |= {f"blk.{index}.{name}": shape for name, shape in _layer(config)}
    return shapes


def _layer(config: ModelConfig) -> Iterator[tuple[str, Shape]]:
    hidden, ffn = config.hidden, config.ffn
    q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    yield "attn_norm.weight", (hidden,)
    yield "attn_q.weight", (q, hidden)
    yield "attn_k.weight", (kv, hidden)
    yield "attn_v.weight", (kv, hidden)
    if config.attention_bias:
        yield "attn_q.bias", (q,)
        yield "attn_k.bias", (kv,)
        yield "attn_v.bias", (kv,)
    if config.qk_norm:
        yield "attn_q_norm.weight", (config.head_dim,)
        yield "attn_k_norm.weight", (config.head_dim,)
    yield "attn_output.weight", (hidden, q)
    if config.output_bias:
        yield "attn_output.bias", (hidden,)
    yield "ffn_norm.weight", (hidden,)
    yield "ffn_gate.weight", (ffn, hidden)
    yield "ffn_up.weight", (ffn, hidden)
    yield "ffn_down.weight", (hidden, ffn)


def check_shapes(
    path: ModelPath, expected: Mapping[str, Shape], found: Mapping[str, Shape]
) -> None:
    """Raise ModelError unless `found`, the tensors of the file or folder, are those expected."""
    for name, shape in expected.items():
        if name not in found:
            raise ModelError(f"{path}: tensor {name} is missing (expected shape {shape})")
        if found[name] != shape:
            raise ModelError(f"{path}: tensor {name} has shape {found[name]}, expected {shape}")
    unknown = sorted(found.keys() - expected.keys())
    if unknown:
        # A bias or an expert that is left out would give wrong answers.
        raise ModelError(f"{path}: tensor {unknown[0]} is of a kind that is not supported")


def check_config(path: ModelPath, config: ModelConfig) -> None:
    """Raise ModelError for numbers that do not fit together."""
    if config.heads % config.kv_heads:
        raise ModelError(
            f"{path}: {config.heads} attention heads cannot share {config.kv_heads} KV heads"
        )
    if config.head_dim % 2:
        raise ModelError(f"{path}: an odd head size, {config.head_dim}, cannot be rotated in pairs")
