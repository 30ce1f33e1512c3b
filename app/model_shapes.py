"""From what somebody calls a model on the command line to the shape that capacity depends on."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.problems import BadConfiguration, Problem, suggest
from engine.capacity import ModelShape
from engine.models.config import ModelConfig
from engine.models.files import read_config
from engine.models.shapes import expected_shapes
from engine.presets import MODELS, DenseModel

_DENSE = frozenset({"llama", "mistral", "qwen2", "qwen3"})
"""Model types whose parameters DenseModel counts."""

_QWEN3_HEAD_DIM = 128
"""What transformers takes where config.json is silent; elsewhere it is hidden / heads."""

_PAGED_LAYERS = frozenset({"full_attention", "sliding_attention"})
"""Layers that keep K and V of every token in the cache."""


def preset_shape(name: str) -> ModelShape:
    """The shape of a preset. Raises ConfigurationError, with the nearest name, for others."""
    if name not in MODELS:
        hint = suggest(name, MODELS, "presets")
        raise BadConfiguration(Problem("--preset", f"unknown preset {name}; {hint}"))
    return MODELS[name].shape(name)


def file_shape(path: Path) -> ModelShape:
    """The shape of the model in a GGUF file, a Hugging Face folder, or a config.json on its own.

    Of a file or folder the tensors are checked, as `octavo serve` does. A config.json may be that
    of a model that cannot be served; parameters are counted for dense Llama, Mistral, Qwen2 and
    Qwen3 models. Raises ConfigurationError.
    """
    if path.suffix == ".json":
        return _json_shape(path)
    return config_shape(path.resolve().name.removesuffix(".gguf"), read_config(path))


def config_shape(name: str, config: ModelConfig) -> ModelShape:
    """The shape of a model whose whole configuration is known."""
    params = sum(math.prod(shape) for shape in expected_shapes(config).values())
    return ModelShape(
        name, config.layers, config.kv_heads, config.head_dim, params, config.context_length
    )


# ── config.json ───────────────────────────────────────────────────────────────────────────────


def _json_shape(path: Path) -> ModelShape:
    keys = _Keys(path, _read(path))
    keys.refuse_other_caches()
    kind = keys.values.get("model_type")
    layers, heads = keys.count("num_hidden_layers"), keys.count("num_attention_heads")
    kv_heads = keys.count("num_key_value_heads", heads)
    if kind == "qwen3" or "head_dim" in keys.values:
        head_dim = keys.count("head_dim", _QWEN3_HEAD_DIM)
    else:
        head_dim = max(1, keys.count("hidden_size") // heads)
    context_length = keys.count("max_position_embeddings")
    name = path.resolve().parent.name
    if kind not in _DENSE:
        return ModelShape(name, layers, kv_heads, head_dim, context_length=context_length)
    return DenseModel(
        layers=layers,
        hidden=keys.count("hidden_size"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=keys.count("intermediate_size"),
        vocab=keys.count("vocab_size"),
        context_length=context_length,
        tied_head=keys.values.get("tie_word_embeddings") is True,
        attention_bias=kind == "qwen2",
        qk_norm=kind == "qwen3",
    ).shape(name)


def _read(path: Path) -> Mapping[str, Any]:
    try:
        values = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise _refused(f"{path}: cannot be read: {reason}") from error
    if isinstance(values, dict):
        values = values.get("text_config", values)  # models that see or hear keep it in there
    if not isinstance(values, dict):
        raise _refused(f"{path}: not a JSON object")
    return values


def _refused(message: str) -> BadConfiguration:
    return BadConfiguration(Problem("--model", message))


@dataclass(frozen=True, slots=True)
class _Keys:
    """A config.json whose numbers are asked for."""

    path: Path
    values: Mapping[str, Any]

    def count(self, key: str, default: int | None = None) -> int:
        """A positive integer; `default` stands for a key that is not there or null."""
        value = self.values.get(key)
        value = default if value is None else value
        if value is None:
            raise _refused(f"{self.path}: {key} is missing")
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise _refused(f"{self.path}: {key} should be a positive integer, not {value!r}")
        return value

    def refuse_other_caches(self) -> None:
        """Refuse models whose cache is not K and V of every token, head and layer."""
        kinds = self.values.get("layer_types")
        others = {str(kind) for kind in kinds} - _PAGED_LAYERS if isinstance(kinds, list) else set()
        if self.values.get("kv_lora_rank"):
            others.add("latent attention (kv_lora_rank)")
        if others:
            raise _refused(f"{self.path}: no arithmetic for {', '.join(sorted(others))}")
