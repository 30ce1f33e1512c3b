"""Models in GGUF files: configuration from the metadata, weights from the tensors.

The `gguf` package reads and dequantises; torch is imported only where weights are made, so that
a configuration can be read without it. Whatever is wrong with a file is a ModelError that names
the file and the thing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from gguf.gguf_reader import ReaderTensor
from gguf.quants import dequantize

from engine.errors import ModelError
from engine.models.config import (
    FrequencyDivisors,
    LinearScaling,
    ModelConfig,
    RopeScaling,
    YarnScaling,
    yarn_magnitude,
)
from engine.models.gguf_file import Metadata, Reader, open_gguf
from engine.models.shapes import ModelPath, Shape, check_config, check_shapes, expected_shapes

if TYPE_CHECKING:
    from engine.models.weights import Cut, Keep, Weights

Float32 = npt.NDArray[np.float32]

_FREQUENCY_DIVISORS = "rope_freqs.weight"


@dataclass(frozen=True, slots=True)
class _Family:
    """What files of one architecture have in common.

    permuted: llama.cpp's converter has changed the order of the rows of q and k.
    attention_bias, qk_norm: as in ModelConfig; a bias may be there without being asked for.
    """

    permuted: bool = False
    attention_bias: bool = False
    qk_norm: bool = False


_FAMILIES = {
    "llama": _Family(permuted=True),  # and Mistral, which llama.cpp converts to it
    "qwen2": _Family(attention_bias=True),
    "qwen3": _Family(qk_norm=True),
}

_UNSUPPORTED_KEYS = (
    "attention.sliding_window_pattern",
    "attention.scale",
    "attention.temperature_scale",
    "rope.scaling.alpha",
)
"""Keys that change what is computed, in ways that the decoder does not know."""


def read_config(path: ModelPath) -> ModelConfig:
    """The configuration of the model in `path`, whose tensors are checked against it."""
    reader = open_gguf(path)
    tensors = _tensors(reader)
    config = _config(path, Metadata(path, reader), tensors)
    expected = expected_shapes(config)
    if isinstance(config.rope_scaling, FrequencyDivisors):
        expected[_FREQUENCY_DIVISORS] = (config.head_dim // 2,)
    check_shapes(path, expected, {name: _shape(tensor) for name, tensor in tensors.items()})
    return config


def load_weights(
    path: ModelPath, config: ModelConfig, keep: Keep | None = None, cut: Cut | None = None
) -> Weights:
    """The weights in `path`, a file of this configuration, dequantised to float32 one by one."""
    import torch

    from engine.models.weights import assemble

    tensors = Tensors(path, config)
    return assemble(config, lambda name: torch.from_numpy(tensors[name]), keep, cut)


class Tensors(Mapping[str, Float32]):
    """Every tensor of the model in `path` by llama.cpp's name, dequantised when it is asked for.

    The rows of q and k come in the order that transformers and our decoder know.
    """

    def __init__(self, path: ModelPath, config: ModelConfig) -> None:
        self._path = path
        self._tensors = _tensors(open_gguf(path))
        self._heads = _permuted_heads(config)

    def __getitem__(self, name: str) -> Float32:
        values = _dequantised(self._path, self._tensors[name])
        part = name.split(".", 2)[-1]  # of blk.0.attn_q.weight
        return _halves(values, self._heads[part]) if part in self._heads else values

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def _tensors(reader: Reader) -> dict[str, ReaderTensor]:
    return {tensor.name: tensor for tensor in reader.tensors}


def _shape(tensor: ReaderTensor) -> Shape:
    # ggml names the fastest dimension first.
    return tuple(int(size) for size in reversed(tensor.shape))


# ── configuration ─────────────────────────────────────────────────────────────────────────────


def _config(path: ModelPath, metadata: Metadata, tensors: dict[str, ReaderTensor]) -> ModelConfig:
    architecture = metadata.text("general.architecture")
    family = _FAMILIES.get(architecture)
    if family is None:
        supported = ", ".join(map(repr, _FAMILIES))
        raise ModelError(
            f"{path}: architecture {architecture!r} is not supported; supported: {supported}"
        )

    def number(key: str, default: float | None = None) -> float:
        return metadata.number(f"{architecture}.{key}", default)

    layers, hidden = int(number("block_count")), int(number("embedding_length"))
    heads = int(number("attention.head_count"))
    head_dim = int(number("attention.key_length", hidden // heads))
    _refuse_unsupported(path, metadata, architecture, head_dim)
    scaling = _rope_scaling(path, metadata, architecture, tensors.get(_FREQUENCY_DIVISORS))
    config = ModelConfig(
        architecture=architecture,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=int(number("attention.head_count_kv", heads)),
        head_dim=head_dim,
        ffn=int(number("feed_forward_length")),
        vocab=_shape(tensors["token_embd.weight"])[0] if "token_embd.weight" in tensors else 0,
        context_length=_context_length(int(number("context_length")), scaling),
        rope_base=float(number("rope.freq_base", 10_000.0)),
        norm_eps=float(number("attention.layer_norm_rms_epsilon")),
        tied_head="output.weight" not in tensors,
        rope_scaling=scaling,
        attention_bias=family.attention_bias or "blk.0.attn_q.bias" in tensors,
        output_bias="blk.0.attn_output.bias" in tensors,
        qk_norm=family.qk_norm,
        windows=_windows(metadata, architecture, layers),
    )
    check_config(path, config)
    return config


def _refuse_unsupported(path: ModelPath, metadata: Metadata, prefix: str, head_dim: int) -> None:
    for key in ("rope.dimension_count", "attention.value_length"):
        value = metadata.number(f"{prefix}.{key}", head_dim)
        if value != head_dim:
            raise ModelError(
                f"{path}: {prefix}.{key} {value} differs from the head size {head_dim}, "
                "which is not supported"
            )
    for key in _UNSUPPORTED_KEYS:
        if f"{prefix}.{key}" in metadata:
            raise ModelError(f"{path}: metadata key {prefix}.{key} is not supported")


def _windows(metadata: Metadata, prefix: str, layers: int) -> tuple[int, ...]:
    key = f"{prefix}.attention.sliding_window"
    return (int(metadata.number(key)),) * layers if key in metadata else ()


def _context_length(trained: int, scaling: RopeScaling | None) -> int:
    return max(trained, scaling.context_length) if isinstance(scaling, YarnScaling) else trained


def _rope_scaling(
    path: ModelPath, metadata: Metadata, prefix: str, divisors: ReaderTensor | None
) -> RopeScaling | None:
    # A file without a type means `linear`, and without a factor 1, as in llama.cpp.
    kind = metadata.text(f"{prefix}.rope.scaling.type", "linear")
    scaling: RopeScaling | None
    match kind:
        case "none":
            scaling = None
        case "linear":
            scaling = _linear(metadata, prefix)
        case "yarn":
            scaling = _yarn(path, metadata, prefix)
        case _:
            raise ModelError(
                f"{path}: rope scaling {kind!r} is not supported; supported: none, linear, yarn"
            )
    if divisors is None:
        return scaling
    if scaling is not None:
        raise ModelError(
            f"{path}: {_FREQUENCY_DIVISORS} beside rope scaling {kind!r} is not supported"
        )
    return FrequencyDivisors(tuple(_dequantised(path, divisors).tolist()))


def _linear(metadata: Metadata, prefix: str) -> LinearScaling | None:
    old_spelling = metadata.number(f"{prefix}.rope.scale_linear", 1.0)
    factor = metadata.number(f"{prefix}.rope.scaling.factor", old_spelling)
    return None if factor == 1 else LinearScaling(factor)


def _yarn(path: ModelPath, metadata: Metadata, prefix: str) -> YarnScaling:
    def number(key: str, default: float | None = None) -> float:
        return metadata.number(f"{prefix}.rope.scaling.{key}", default)

    factor = number("factor")
    if number("yarn_ext_factor", 1.0) != 1:
        raise ModelError(f"{path}: {prefix}.rope.scaling.yarn_ext_factor must be 1")
    suggested = yarn_magnitude(factor)
    multiplier = f"{prefix}.rope.scaling.yarn_log_multiplier"
    if multiplier in metadata:
        suggested /= yarn_magnitude(factor, metadata.number(multiplier))
    return YarnScaling(
        factor=factor,
        original_context=int(
            number("original_context_length", metadata.number(f"{prefix}.context_length"))
        ),
        # The first key replaces what is suggested (transformers' attention_factor), the second
        # multiplies it (llama.cpp's).
        attention_factor=number("yarn_attn_factor", suggested) * number("attn_factor", 1.0),
        beta_fast=number("yarn_beta_fast", 32.0),
        beta_slow=number("yarn_beta_slow", 1.0),
    )


# ── weights ───────────────────────────────────────────────────────────────────────────────────


def _dequantised(path: ModelPath, tensor: ReaderTensor) -> Float32:
    """The tensor in memory of its own, not in the mapped file."""
    try:
        values = dequantize(tensor.data, tensor.tensor_type)
    except NotImplementedError as error:
        kind = tensor.tensor_type.name
        raise ModelError(
            f"{path}: tensor {tensor.name} has type {kind}, which cannot be dequantised"
        ) from error
    mapped = np.shares_memory(values, tensor.data)
    return np.array(values, dtype=np.float32, copy=True if mapped else None)


def _permuted_heads(config: ModelConfig) -> dict[str, int]:
    """The tensors of a layer whose rows are permuted, and how many heads each holds."""
    if not _FAMILIES[config.architecture].permuted:
        return {}
    heads = {"attn_q": config.heads, "attn_k": config.kv_heads}
    return {f"{name}.{kind}": n for name, n in heads.items() for kind in ("weight", "bias")}


def _halves(rows: Float32, heads: int) -> Float32:
    """Undo the order that llama.cpp's converter gives the rows of q and k.

    Its rope turns neighbours (0 1)(2 3)…, ours turns halves (0 d/2)(1 d/2+1)…
    """
    pairs = rows.reshape(heads, -1, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)
