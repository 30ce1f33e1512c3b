"""Llama-architecture GGUF files: configuration from the metadata, weights from the tensors.

The `gguf` package reads and dequantises; torch is imported only where weights are made, so that
a configuration can be read without it. Whatever is wrong with a file is a ModelError that names
the file and the thing.
"""

from __future__ import annotations

import struct
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from gguf.constants import GGUFValueType
from gguf.gguf_reader import GGUFReader, ReaderTensor
from gguf.quants import dequantize

from engine.errors import ModelError
from engine.models.config import ModelConfig

if TYPE_CHECKING:
    import torch

    from engine.models.llama import LayerWeights, Weights

Path = str | PathLike[str]
Float32 = npt.NDArray[np.float32]
Shape = tuple[int, ...]

_DAMAGE = (ValueError, IndexError, KeyError, TypeError, OverflowError, struct.error)


def read_config(path: Path) -> ModelConfig:
    """The configuration of the model in `path`, whose tensors are checked against it."""
    reader = _open(path)
    config = _config(path, reader)
    _check_tensors(path, reader, config)
    return config


def load_weights(path: Path, config: ModelConfig) -> Weights:
    """The weights in `path` as float32 tensors, dequantised one by one."""
    from engine.models.llama import Weights

    reader = _open(path)
    tensors = _Tensors(path, _check_tensors(path, reader, config))
    embedding = tensors.load("token_embd.weight")
    return Weights(
        embedding=embedding,
        layers=tuple(_layer(tensors, layer, config) for layer in range(config.layers)),
        norm=tensors.load("output_norm.weight"),
        head=embedding if config.tied_head else tensors.load("output.weight"),
    )


class _Reader(GGUFReader):
    """The package's reader, except that arrays are stepped over.

    Decoding a vocabulary of 49,152 strings item by item takes seconds, and no field that a model
    needs is an array.
    """

    def _get_field_parts(
        self, orig_offs: int, raw_type: int
    ) -> tuple[int, list[npt.NDArray[Any]], list[int], list[GGUFValueType]]:
        if raw_type != GGUFValueType.ARRAY or self.byte_order != "I":
            return super()._get_field_parts(orig_offs, raw_type)
        raw_item, count = struct.unpack_from("<IQ", self.data.data, orig_offs)
        begin = orig_offs + 12
        item = GGUFValueType(raw_item)
        if item == GGUFValueType.STRING:
            end = self._after_strings(begin, count)
        elif item in self.gguf_scalar_to_np:
            end = begin + count * np.dtype(self.gguf_scalar_to_np[item]).itemsize
        else:
            return super()._get_field_parts(orig_offs, raw_type)
        if end > len(self.data):
            raise ValueError("an array reaches beyond the end of the file")
        return end - orig_offs, [], [], [GGUFValueType.ARRAY, item]

    def _after_strings(self, offset: int, count: int) -> int:
        data = self.data.data
        for _ in range(count):
            (length,) = struct.unpack_from("<Q", data, offset)
            offset += 8 + length
        return offset


def _open(path: Path) -> _Reader:
    try:
        with open(path, "rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror or error}") from error
    if magic != b"GGUF":
        raise ModelError(f"{path}: not a GGUF file")
    try:
        reader = _Reader(path)
    except _DAMAGE as error:
        raise ModelError(f"{path}: the GGUF file is truncated or damaged ({error})") from error
    if reader.byte_order != "I":
        raise ModelError(f"{path}: the GGUF file has the byte order of another machine")
    return reader


class _Metadata:
    """The scalar fields of a file, by key."""

    def __init__(self, path: Path, reader: _Reader) -> None:
        self._path = path
        self._fields = reader.fields

    def text(self, key: str, default: str | None = None) -> str:
        value = self._scalar(key, default)
        if not isinstance(value, str):
            raise ModelError(f"{self._path}: metadata key {key} should be a text, not {value!r}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._scalar(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise ModelError(
                f"{self._path}: metadata key {key} should be a positive number, not {value!r}"
            )
        return value

    def _scalar(self, key: str, default: object) -> object:
        field = self._fields.get(key)
        if field is None:
            if default is None:
                raise ModelError(f"{self._path}: metadata key {key} is missing")
            return default
        if field.types[0] == GGUFValueType.ARRAY:
            raise ModelError(f"{self._path}: metadata key {key} is a list, which is not supported")
        return field.contents()


def _config(path: Path, reader: _Reader) -> ModelConfig:
    metadata = _Metadata(path, reader)
    architecture = metadata.text("general.architecture")
    if architecture != "llama":
        raise ModelError(
            f"{path}: architecture {architecture!r} is not supported; supported: 'llama'"
        )

    def number(key: str, default: float | None = None) -> float:
        return metadata.number(f"{architecture}.{key}", default)

    shapes = {tensor.name: _shape(tensor) for tensor in reader.tensors}
    hidden = int(number("embedding_length"))
    heads = int(number("attention.head_count"))
    config = ModelConfig(
        architecture=architecture,
        layers=int(number("block_count")),
        hidden=hidden,
        heads=heads,
        kv_heads=int(number("attention.head_count_kv", heads)),
        head_dim=int(number("attention.key_length", hidden // heads)),
        ffn=int(number("feed_forward_length")),
        vocab=shapes.get("token_embd.weight", (0,))[0],
        context_length=int(number("context_length")),
        rope_base=float(number("rope.freq_base", 10_000.0)),
        norm_eps=float(number("attention.layer_norm_rms_epsilon")),
        tied_head="output.weight" not in shapes,
    )
    _refuse_unsupported(path, metadata, config)
    return config


def _refuse_unsupported(path: Path, metadata: _Metadata, config: ModelConfig) -> None:
    if config.heads % config.kv_heads:
        raise ModelError(
            f"{path}: {config.heads} attention heads cannot share {config.kv_heads} KV heads"
        )
    prefix = config.architecture
    for key in ("rope.dimension_count", "attention.value_length"):
        value = metadata.number(f"{prefix}.{key}", config.head_dim)
        if value != config.head_dim:
            raise ModelError(
                f"{path}: {prefix}.{key} {value} differs from the head size {config.head_dim}, "
                "which is not supported"
            )
    scaling = metadata.text(f"{prefix}.rope.scaling.type", "none")
    if scaling != "none":
        raise ModelError(f"{path}: rope scaling {scaling!r} is not supported")


def _expected_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Every tensor the model has, with its shape in torch's order: outputs first."""
    hidden, ffn = config.hidden, config.ffn
    q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    layer: dict[str, Shape] = {
        "attn_norm": (hidden,),
        "attn_q": (q, hidden),
        "attn_k": (kv, hidden),
        "attn_v": (kv, hidden),
        "attn_output": (hidden, q),
        "ffn_norm": (hidden,),
        "ffn_gate": (ffn, hidden),
        "ffn_up": (ffn, hidden),
        "ffn_down": (hidden, ffn),
    }
    shapes: dict[str, Shape] = {
        "token_embd.weight": (config.vocab, hidden),
        "output_norm.weight": (hidden,),
    }
    if not config.tied_head:
        shapes["output.weight"] = (config.vocab, hidden)
    for index in range(config.layers):
        shapes |= {f"blk.{index}.{name}.weight": shape for name, shape in layer.items()}
    return shapes


def _check_tensors(path: Path, reader: _Reader, config: ModelConfig) -> dict[str, ReaderTensor]:
    """The file's tensors by name, once they are known to be exactly those of `config`."""
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    expected = _expected_shapes(config)
    for name, shape in expected.items():
        if name not in tensors:
            raise ModelError(f"{path}: tensor {name} is missing (expected shape {shape})")
        found = _shape(tensors[name])
        if found != shape:
            raise ModelError(f"{path}: tensor {name} has shape {found}, expected {shape}")
    unknown = sorted(tensors.keys() - expected.keys())
    if unknown:
        # A bias, an expert or a table of rope factors that is left out would give wrong answers.
        raise ModelError(f"{path}: tensor {unknown[0]} is of a kind that is not supported")
    return tensors


def _shape(tensor: ReaderTensor) -> Shape:
    # ggml names the fastest dimension first.
    return tuple(int(size) for size in reversed(tensor.shape))


class _Tensors:
    """Dequantises the tensors of one file."""

    def __init__(self, path: Path, tensors: dict[str, ReaderTensor]) -> None:
        self._path = path
        self._tensors = tensors

    def array(self, name: str) -> Float32:
        """Tensor `name` in memory of its own, not in the mapped file."""
        tensor = self._tensors[name]
        try:
            values = dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError as error:
            kind = tensor.tensor_type.name
            raise ModelError(
                f"{self._path}: tensor {name} has type {kind}, which cannot be dequantised"
            ) from error
        mapped = np.shares_memory(values, tensor.data)
        return np.array(values, dtype=np.float32, copy=True if mapped else None)

    def load(self, name: str) -> torch.Tensor:
        import torch

        return torch.from_numpy(self.array(name))

    def load_stacked(self, arrays: list[Float32]) -> torch.Tensor:
        import torch

        return torch.from_numpy(np.concatenate(arrays))


def _layer(tensors: _Tensors, index: int, config: ModelConfig) -> LayerWeights:
    from engine.models.llama import LayerWeights

    def name(part: str) -> str:
        return f"blk.{index}.{part}.weight"

    q = _rotate_half_order(tensors.array(name("attn_q")), config.heads)
    k = _rotate_half_order(tensors.array(name("attn_k")), config.kv_heads)
    v = tensors.array(name("attn_v"))
    gate, up = tensors.array(name("ffn_gate")), tensors.array(name("ffn_up"))
    return LayerWeights(
        attn_norm=tensors.load(name("attn_norm")),
        qkv=tensors.load_stacked([q, k, v]),
        attn_out=tensors.load(name("attn_output")),
        ffn_norm=tensors.load(name("ffn_norm")),
        gate_up=tensors.load_stacked([gate, up]),
        down=tensors.load(name("ffn_down")),
    )


def _rotate_half_order(rows: Float32, heads: int) -> Float32:
    """Undo the order that llama.cpp gives the rows of q and k.

    Its rope turns neighbours (0 1)(2 3)…, ours turns halves (0 d/2)(1 d/2+1)…
    """
    pairs = rows.reshape(heads, -1, 2, rows.shape[-1])
    return pairs.swapaxes(1, 2).reshape(rows.shape)
