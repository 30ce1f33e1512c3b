"""From float32 weights to int8 ones, with activations smoothed into the weights.

A few channels of the activations are far larger than the others, and a scale for the whole row
leaves these with few steps. SmoothQuant (https://arxiv.org/abs/2211.10438) divides channel j of the
activations by

    s[j] = peak(x[j]) ** alpha / peak(w[:, j]) ** (1 - alpha)

and multiplies the weights by it, which changes nothing but where the difficulty is. The peaks of
the activations come from a short text, once.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.models.config import ModelConfig
from engine.models.products import (
    INT8_MAX,
    AppliedMatrix,
    Matrix,
    QuantisedEmbedding,
    QuantisedMatrix,
    multiply,
    quantise_rows,
)
from engine.models.weights import LayerWeights, Weights

ALPHA = 0.6
HEAD_ALPHA = 0.5
"""The head is smoothed less: where it is the embedding too, its rows are read back as they are."""

SMALLEST = 1e-5
"""Peaks below this count as this much."""

MATRICES = ("qkv", "attn_out", "gate_up", "down")
"""The matrices of a layer."""


@dataclass(slots=True)
class Watched:
    """A matrix that notes the peak of each channel of what it multiplies."""

    matrix: Tensor
    peaks: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.peaks = torch.zeros(self.matrix.shape[1])

    def multiply(self, x: Tensor, bias: Tensor | None) -> Tensor:
        self.peaks = torch.maximum(self.peaks, x.abs().amax(dim=0))
        return multiply(x, self.matrix, bias)


def watched(weights: Weights) -> Weights:
    """The same weights with every matrix `Watched`."""

    def watch(matrix: Matrix) -> Watched:
        assert isinstance(matrix, Tensor)
        return Watched(matrix)

    layers = tuple(_mapped(layer, watch) for layer in weights.layers)
    return replace(weights, layers=layers, head=watch(weights.head))


def quantised(weights: Weights, most: int = INT8_MAX) -> Weights:
    """int8 weights from `watched` ones that have seen some text, which are used up.

    most: the largest number of a weight.
    """

    def convert(matrix: Matrix, alpha: float = ALPHA) -> QuantisedMatrix:
        assert isinstance(matrix, Watched)
        result = quantised_matrix(matrix.matrix, matrix.peaks, most, alpha)
        matrix.matrix = torch.empty(0)  # its memory is needed for the next ones
        return result

    layers = tuple(_mapped(layer, convert) for layer in weights.layers)
    assert isinstance(weights.head, Watched)
    tied = weights.head.matrix is weights.embedding
    head = convert(weights.head, HEAD_ALPHA)
    embedding = head if tied else QuantisedMatrix(*quantise_rows(_dense(weights.embedding), most))
    return replace(weights, layers=layers, head=head, embedding=QuantisedEmbedding(embedding))


def _mapped(layer: LayerWeights, change: Callable[[Matrix], AppliedMatrix]) -> LayerWeights:
    """The layer with each of its matrices changed."""
    return replace(
        layer,
        qkv=change(layer.qkv),
        attn_out=change(layer.attn_out),
        gate_up=change(layer.gate_up),
        down=change(layer.down),
    )


def quantised_matrix(
    matrix: Tensor, peaks: Tensor, most: int = INT8_MAX, alpha: float = ALPHA
) -> QuantisedMatrix:
    """A matrix whose activations have these peaks, smoothed and in int8.

    Without peaks (nothing was seen) nothing is smoothed.
    """
    if not peaks.any():
        return QuantisedMatrix(*quantise_rows(matrix, most))
    factors = peaks.clamp(min=SMALLEST) ** alpha
    factors /= matrix.abs().amax(dim=0).clamp(min=SMALLEST) ** (1 - alpha)
    factors = (factors / factors.median()).clamp_(min=SMALLEST)
    numbers, scales = quantise_rows(matrix * factors, most)
    return QuantisedMatrix(numbers, scales, factors.reciprocal())


def _dense(matrix: object) -> Tensor:
    assert isinstance(matrix, Tensor)
    return matrix


# ── on disk ───────────────────────────────────────────────────────────────────────────────────


def save(weights: Weights, path: Path) -> None:
    """Write int8 weights to `path`, all at once: nobody ever reads a part of it."""
    tensors: dict[str, Tensor] = {"norm": weights.norm}
    for name, matrix in _named(weights):
        tensors[f"{name}.numbers"] = matrix.numbers
        tensors[f"{name}.scales"] = matrix.scales
        if matrix.smooth is not None:
            tensors[f"{name}.smooth"] = matrix.smooth
    for index, layer in enumerate(weights.layers):
        for name in LayerWeights.__slots__:
            value = getattr(layer, name)
            if isinstance(value, Tensor):
                tensors[f"{index}.{name}"] = value
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}.partial")
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, partial)
    partial.replace(path)


def load(path: Path, config: ModelConfig) -> Weights:
    """Read what `save` wrote. Raises OSError, SafetensorError or KeyError if it is not whole."""
    tensors = load_file(path)

    def matrix(name: str) -> QuantisedMatrix:
        smooth = tensors.get(f"{name}.smooth")
        return QuantisedMatrix(tensors[f"{name}.numbers"], tensors[f"{name}.scales"], smooth)

    def layer(index: int) -> LayerWeights:
        values = {
            name: matrix(f"{index}.{name}") if name in MATRICES else tensors.get(f"{index}.{name}")
            for name in LayerWeights.__slots__
        }
        return LayerWeights(**values)  # type: ignore[arg-type]

    head = matrix("head")
    embedding = head if config.tied_head else matrix("embedding")
    return Weights(
        embedding=QuantisedEmbedding(embedding),
        layers=tuple(map(layer, range(config.layers))),
        norm=tensors["norm"],
        head=head,
    )


def _named(weights: Weights) -> list[tuple[str, QuantisedMatrix]]:
    """Every int8 matrix, by the name it is saved under."""
    found = {"head": weights.head}
    assert isinstance(weights.embedding, QuantisedEmbedding)
    if weights.embedding.matrix is not weights.head:
        found["embedding"] = weights.embedding.matrix
    for index, layer in enumerate(weights.layers):
        found |= {f"{index}.{name}": getattr(layer, name) for name in MATRICES}
    return [(name, matrix) for name, matrix in found.items() if isinstance(matrix, QuantisedMatrix)]
