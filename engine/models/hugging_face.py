"""Models in Hugging Face folders: configuration from config.json, weights from safetensors.

Defaults are those of transformers. torch is imported only where weights are made. Whatever is
wrong is a ModelError that names the file and the thing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.errors import ModelError
from engine.models.config import (
    LinearScaling,
    Llama3Scaling,
    ModelConfig,
    RopeScaling,
    YarnScaling,
    yarn_magnitude,
)
from engine.models.safetensors_folder import SafetensorsFolder
from engine.models.shapes import check_config, check_shapes, expected_shapes

if TYPE_CHECKING:
    from engine.models.weights import Cut, Keep, Weights


@dataclass(frozen=True, slots=True)
class _Family:
    """What config.json of one model type leaves unsaid.

    attention_bias, qk_norm: as in ModelConfig. biased_by_key: the key attention_bias gives a bias
    to queries, keys, values and output. head_dim: None for hidden / heads. window: None if the
    key sliding_window means nothing, else its default. window_by_key: it counts only beside
    use_sliding_window.
    """

    attention_bias: bool = False
    biased_by_key: bool = False
    qk_norm: bool = False
    head_dim: int | None = None
    window: int | None = None
    window_by_key: bool = False


_FAMILIES = {
    "llama": _Family(biased_by_key=True),
    "mistral": _Family(window=4096),
    "qwen2": _Family(attention_bias=True, window=4096, window_by_key=True),
    "qwen3": _Family(
        biased_by_key=True, qk_norm=True, head_dim=128, window=4096, window_by_key=True
    ),
}

_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""llama.cpp's name of a tensor (engine.models.shapes) → transformers'."""

_IGNORED = re.compile(r"\.rotary_emb\.inv_freq$")
"""Tensors that old checkpoints carry and that follow from the configuration."""


def read_config(folder: Path) -> ModelConfig:
    """The configuration of the model in `folder`, whose tensors are checked against it."""
    return _open(folder)[0]


def load_weights(
    folder: Path, config: ModelConfig, keep: Keep | None = None, cut: Cut | None = None
) -> Weights:
    """The weights in `folder`, a model of this configuration, as float32 tensors."""
    from engine.models.weights import assemble

    tensors = SafetensorsFolder(folder)
    return assemble(config, lambda name: tensors.load(file_name(name)), keep, cut)


def _open(folder: Path) -> tuple[ModelConfig, SafetensorsFolder]:
    config = _config(_Keys.read(folder / "config.json"))
    tensors = SafetensorsFolder(folder)
    expected = {file_name(name): shape for name, shape in expected_shapes(config).items()}
    found = {name: shape for name, shape in tensors.shapes.items() if not _IGNORED.search(name)}
    if config.tied_head:
        found.pop("lm_head.weight", None)  # some checkpoints hold the embedding twice
    check_shapes(folder, expected, found)
    return config, tensors


def file_name(name: str) -> str:
    """transformers' name of the tensor that llama.cpp calls `name`."""
    *block, part, kind = name.split(".")
    prefix = f"model.layers.{block[1]}." if block else ""
    return f"{prefix}{_NAMES[part]}.{kind}"


class _Keys:
    """A JSON object whose values are asked for with their types."""

    def __init__(self, where: str, values: Mapping[str, Any]) -> None:
        self.where = where
        self.values = values

    @classmethod
    def read(cls, path: Path) -> _Keys:
        try:
            values = json.loads(path.read_bytes())
        except (OSError, ValueError) as error:
            raise ModelError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
        if not isinstance(values, dict):
            raise ModelError(f"{path}: not a JSON object")
        return cls(str(path), values)

    def error(self, message: str) -> ModelError:
        return ModelError(f"{self.where}: {message}")

    def number(self, key: str, default: float | None = None) -> float:
        """A number above zero; `default` stands for a key that is not there or null."""
        value = self.values.get(key)
        if value is None:
            value = default
        if value is None:
            raise self.error(f"{key} is missing")
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise self.error(f"{key} should be a positive number, not {value!r}")
        return value

    def count(self, key: str, default: int) -> int:
        """A whole number, perhaps zero."""
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self.error(f"{key} should be a whole number, not {value!r}")
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.values.get(key, default)
        if not isinstance(value, bool):
            raise self.error(f"{key} should be true or false, not {value!r}")
        return value

    def text(self, key: str, default: str) -> str:
        value = self.values.get(key, default)
        if not isinstance(value, str):
            raise self.error(f"{key} should be a text, not {value!r}")
        return value


def _config(keys: _Keys) -> ModelConfig:
    architecture = keys.text("model_type", "")
    family = _FAMILIES.get(architecture)
    if family is None:
        supported = ", ".join(map(repr, _FAMILIES))
        raise keys.error(f"model_type {architecture!r} is not supported; supported: {supported}")
    _refuse_unsupported(keys)
    layers, hidden = int(keys.number("num_hidden_layers")), int(keys.number("hidden_size"))
    heads = int(keys.number("num_attention_heads"))
    biased = family.biased_by_key and keys.flag("attention_bias")
    context_length = int(keys.number("max_position_embeddings"))
    rope = _rope_keys(keys)
    original_context = keys.number(
        "original_max_position_embeddings",
        rope.number("original_max_position_embeddings", context_length),
    )
    scaling = _rope_scaling(rope, int(original_context), context_length)
    if isinstance(scaling, YarnScaling):
        context_length = max(context_length, scaling.context_length)
    config = ModelConfig(
        architecture=architecture,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=int(keys.number("num_key_value_heads", heads)),
        head_dim=int(keys.number("head_dim", family.head_dim or hidden // heads)),
        ffn=int(keys.number("intermediate_size")),
        vocab=int(keys.number("vocab_size")),
        context_length=context_length,
        rope_base=float(rope.number("rope_theta", keys.number("rope_theta", 10_000.0))),
        norm_eps=float(keys.number("rms_norm_eps")),
        tied_head=keys.flag("tie_word_embeddings"),
        rope_scaling=scaling,
        attention_bias=family.attention_bias or biased,
        output_bias=biased,
        qk_norm=family.qk_norm,
        windows=_windows(keys, family, layers),
    )
    check_config(keys.where, config)
    return config


def _refuse_unsupported(keys: _Keys) -> None:
    quantisation = keys.values.get("quantization_config")
    if quantisation is not None:
        method = quantisation.get("quant_method") if isinstance(quantisation, dict) else None
        raise keys.error(f"quantization_config ({method}) is not supported")
    activation = keys.text("hidden_act", "silu")
    if activation != "silu":
        raise keys.error(f"hidden_act {activation!r} is not supported; supported: 'silu'")
    if keys.flag("mlp_bias"):
        raise keys.error("mlp_bias is not supported")


def _windows(keys: _Keys, family: _Family, layers: int) -> tuple[int | None, ...]:
    if family.window is None or (family.window_by_key and not keys.flag("use_sliding_window")):
        return ()
    if keys.values.get("sliding_window", family.window) is None:
        return ()
    window = int(keys.number("sliding_window", family.window))
    windows = {"full_attention": None, "sliding_attention": window}
    kinds = keys.values.get("layer_types")
    if kinds is None:
        full = keys.count("max_window_layers", 28) if family.window_by_key else 0
        return (None,) * min(full, layers) + (window,) * (layers - full)
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise keys.error(f"layer_types should list {layers} layers")
    for kind in kinds:
        if kind not in windows:
            raise keys.error(f"layer_types has {kind!r}, which is not supported")
    return tuple(windows[kind] for kind in kinds)


# ── rotary embedding ──────────────────────────────────────────────────────────────────────────


def _rope_keys(keys: _Keys) -> _Keys:
    """What is said about the rotary embedding: `rope_parameters`, or `rope_scaling` of old."""
    for key in ("rope_scaling", "rope_parameters"):
        values = keys.values.get(key)
        if values:
            if not isinstance(values, dict) or any(isinstance(v, dict) for v in values.values()):
                raise keys.error(f"{key} of this form is not supported: {values!r}")
            return _Keys(f"{keys.where}: {key}", values)
    return _Keys(keys.where, {})


def _rope_scaling(rope: _Keys, original_context: int, context_length: int) -> RopeScaling | None:
    rotated = rope.number("partial_rotary_factor", 1.0)
    if rotated != 1:
        raise rope.error(f"partial_rotary_factor {rotated} is not supported")
    kind = rope.text("rope_type", rope.text("type", "default"))
    match kind:
        case "default":
            return None
        case "linear":
            return LinearScaling(rope.number("factor"))
        case "llama3":
            return Llama3Scaling(
                factor=rope.number("factor"),
                low_freq_factor=rope.number("low_freq_factor"),
                high_freq_factor=rope.number("high_freq_factor"),
                original_context=original_context,
            )
        case "yarn":
            return _yarn(rope, original_context, context_length)
        case _:
            raise rope.error(
                f"rope_type {kind!r} is not supported; supported: default, linear, llama3, yarn"
            )


def _yarn(rope: _Keys, original_context: int, context_length: int) -> YarnScaling:
    factor = rope.number("factor", context_length / original_context)
    suggested = yarn_magnitude(factor)
    if rope.values.get("mscale") and rope.values.get("mscale_all_dim"):
        suggested = yarn_magnitude(factor, rope.number("mscale"))
        suggested /= yarn_magnitude(factor, rope.number("mscale_all_dim"))
    return YarnScaling(
        factor=factor,
        original_context=original_context,
        attention_factor=rope.number("attention_factor", suggested),
        beta_fast=rope.number("beta_fast", 32.0),
        beta_slow=rope.number("beta_slow", 1.0),
        truncate=rope.flag("truncate", default=True),
    )
