"""A small random Llama, written as a GGUF file the way llama.cpp's converter writes one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, quants

from engine.models.config import ModelConfig

F32 = GGMLQuantizationType.F32

CONFIG = ModelConfig(
    architecture="llama",
    layers=2,
    hidden=64,
    heads=4,
    kv_heads=2,
    head_dim=16,
    ffn=96,
    vocab=160,
    context_length=128,
    rope_base=10_000.0,
    norm_eps=1e-5,
    tied_head=True,
)

Tensors = dict[str, np.ndarray]


def random_tensors(config: ModelConfig = CONFIG, seed: int = 0) -> Tensors:
    """Weights by GGUF name, q and k in Hugging Face's row order."""
    rng = np.random.default_rng(seed)
    hidden, ffn = config.hidden, config.ffn
    q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (config.vocab, hidden),
        "output_norm.weight": (hidden,),
    }
    if not config.tied_head:
        shapes["output.weight"] = (config.vocab, hidden)
    for i in range(config.layers):
        shapes |= {
            f"blk.{i}.attn_norm.weight": (hidden,),
            f"blk.{i}.attn_q.weight": (q, hidden),
            f"blk.{i}.attn_k.weight": (kv, hidden),
            f"blk.{i}.attn_v.weight": (kv, hidden),
            f"blk.{i}.attn_output.weight": (hidden, q),
            f"blk.{i}.ffn_norm.weight": (hidden,),
            f"blk.{i}.ffn_gate.weight": (ffn, hidden),
            f"blk.{i}.ffn_up.weight": (ffn, hidden),
            f"blk.{i}.ffn_down.weight": (hidden, ffn),
        }
    return {
        name: rng.normal(1.0 if "norm" in name else 0.0, 0.2, shape).astype(np.float32)
        for name, shape in shapes.items()
    }


def metadata(config: ModelConfig = CONFIG) -> dict[str, Any]:
    """The keys a converter writes for `config`, values by key."""
    return {
        "llama.block_count": config.layers,
        "llama.context_length": config.context_length,
        "llama.embedding_length": config.hidden,
        "llama.feed_forward_length": config.ffn,
        "llama.attention.head_count": config.heads,
        "llama.attention.head_count_kv": config.kv_heads,
        "llama.attention.layer_norm_rms_epsilon": config.norm_eps,
        "llama.rope.freq_base": config.rope_base,
        "llama.rope.dimension_count": config.head_dim,
        "tokenizer.ggml.tokens": [f"token {i}" for i in range(config.vocab)],
        "tokenizer.ggml.token_type": [1] * config.vocab,
    }


def write_gguf(
    path: Path,
    tensors: Tensors,
    *,
    config: ModelConfig = CONFIG,
    kind: GGMLQuantizationType = F32,
    architecture: str = "llama",
    fields: Mapping[str, Any] | None = None,
) -> Tensors:
    """Write the file; returns the weights a reader should find, in Hugging Face's order.

    kind: the type of the matrices; vectors stay float32. fields: what differs from `metadata`;
    None leaves a key out.
    """
    writer = GGUFWriter(path, architecture)
    for key, value in (metadata(config) | dict(fields or {})).items():
        _add_field(writer, key.replace("llama.", f"{architecture}.", 1), value)
    stored = {}
    for name, values in tensors.items():
        data, stored[name] = _encode(_llama_cpp_order(name, values, config), name, kind)
        writer.add_tensor(name, data, raw_dtype=kind if values.ndim > 1 else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return {name: _hugging_face_order(name, values, config) for name, values in stored.items()}


def _add_field(writer: GGUFWriter, key: str, value: Any) -> None:
    match value:
        case None:
            pass
        case str():
            writer.add_string(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case list():
            writer.add_array(key, value)


def _encode(
    values: np.ndarray, name: str, kind: GGMLQuantizationType
) -> tuple[np.ndarray, np.ndarray]:
    """What is stored for these values, and what they are once read again."""
    if values.ndim == 1:
        return values, values
    data = quants.quantize(values, kind)
    return data, quants.dequantize(data, kind).reshape(values.shape)


def _heads(name: str, config: ModelConfig) -> int | None:
    if name.endswith("attn_q.weight"):
        return config.heads
    if name.endswith("attn_k.weight"):
        return config.kv_heads
    return None


def _llama_cpp_order(name: str, values: np.ndarray, config: ModelConfig) -> np.ndarray:
    """Rows i and i + head_dim / 2 of a head become neighbours, for llama.cpp's rope."""
    heads = _heads(name, config)
    if heads is None:
        return values
    halves = values.reshape(heads, 2, config.head_dim // 2, -1)
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)


def _hugging_face_order(name: str, values: np.ndarray, config: ModelConfig) -> np.ndarray:
    heads = _heads(name, config)
    if heads is None:
        return values
    pairs = values.reshape(heads, config.head_dim // 2, 2, -1)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)
