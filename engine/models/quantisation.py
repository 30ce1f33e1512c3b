"""From float32 weights to int8 ones, with activations smoothed into the weights.

A matrix that is `Watched` multiplies as before, and becomes int8 when it does so for the first
time: what it multiplied, a short text, says what its activations are like. So no activations are
kept, and no more than one matrix of the layers is there in float32.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional

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
from engine.models.smoothing import MOST_OUTPUTS, Side, balanced
from engine.models.weights import Keep, LayerWeights, Weights

MATRICES = ("qkv", "attn_out", "gate_up", "down")
"""The matrices of a layer."""

LIKELY = 2048
"""Rows of the head that its factors heed: of the tokens that the text makes most probable."""

CHUNK_TOKENS = 128
CHUNK_ROWS = 4096
"""What is computed at once where the vocabulary is long, for the memory it takes."""


def _given_back() -> Tensor:
    raise ValueError("a watched matrix multiplies once")


@dataclass(slots=True)
class Watched:
    """A matrix that is made in float32 when it multiplies, and is int8 from then on.

    most: the largest number of a weight. quantised: what became of it; None before.
    """

    make: Callable[[], Tensor]
    most: int
    quantised: QuantisedMatrix | None = None

    def multiply(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """x times the float32 matrix, once. Raises ValueError for a second time."""
        matrix = self.make()
        product = multiply(x, matrix)
        self._become(matrix, balanced(*layer_sides(x, matrix, product)))
        return product if bias is None else product.add_(bias)

    def finished(self) -> QuantisedMatrix:
        """What became of it, or becomes of it now without smoothing."""
        return self.quantised or self._become(self.make(), None)

    def _become(self, matrix: Tensor, factors: Tensor | None) -> QuantisedMatrix:
        """Make the int8 matrix, whose activations are divided by `factors`."""
        self.quantised = quantised_matrix(matrix, factors, self.most)
        self.make = _given_back  # whatever it held is needed for the next ones
        return self.quantised


@dataclass(slots=True)
class WatchedHead(Watched):
    """The head, whose products nobody needs: the text's probabilities are computed here.

    tied: it is the embedding too.
    """

    tied: bool = False

    def multiply(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """Zeros [rows, 1], whatever x is; the head becomes int8."""
        assert bias is None
        matrix = self.make()
        self._become(matrix, balanced(*head_sides(x, matrix)))
        return torch.zeros(len(x), 1)


def watched(load: Callable[[Keep], Weights], most: int = INT8_MAX) -> Weights:
    """The weights that `load` gives, with every matrix `Watched`.

    most: the largest number of a weight.
    """
    weights = load(lambda make: Watched(make, most))
    dense, tied = _dense(weights.head), weights.head is weights.embedding
    return replace(weights, head=WatchedHead(lambda: dense, most, tied=tied))


def quantised(weights: Weights) -> Weights:
    """The int8 weights that `watched` ones have become, or become now without smoothing."""

    def convert(matrix: Matrix) -> QuantisedMatrix:
        assert isinstance(matrix, Watched)
        return matrix.finished()

    assert isinstance(weights.head, WatchedHead)
    layers = tuple(_mapped(layer, convert) for layer in weights.layers)
    head, embedding = convert(weights.head), _dense(weights.embedding)
    own = head if weights.head.tied else quantised_matrix(embedding, None, weights.head.most)
    return replace(weights, layers=layers, head=head, embedding=QuantisedEmbedding(own))


def _mapped(layer: LayerWeights, change: Callable[[Matrix], AppliedMatrix]) -> LayerWeights:
    """The layer with each of its matrices changed."""
    return replace(
        layer,
        qkv=change(layer.qkv),
        attn_out=change(layer.attn_out),
        gate_up=change(layer.gate_up),
        down=change(layer.down),
    )


def layer_sides(x: Tensor, matrix: Tensor, product: Tensor) -> tuple[Side, Side]:
    """Activations x [tokens, inputs] and weights of a layer's matrix, product: of the two.

    An error counts by what it is of the token's product: the first token of a text may have a
    thousand times the activations of the others, and no more to say.
    """
    counts = product.square().sum(dim=1).clamp_(min=torch.finfo(product.dtype).tiny).reciprocal_()
    evenly = torch.ones(len(matrix))
    return Side.of(x, counts), Side.of(matrix, evenly, most=MOST_OUTPUTS)


def head_sides(x: Tensor, matrix: Tensor) -> tuple[Side, Side]:
    """Activations and weights of the head, where an error counts by what it does to a distribution.

    For small errors of the logits the divergence of the distributions is half the variance of the
    errors over the distribution. So channel j of the activations counts as the variance of w[:, j]
    over each token's distribution, on average, and a row of the weights as its mean probability.
    """
    likely = torch.zeros(len(matrix))
    means = torch.zeros(matrix.shape[1])
    for rows in x.split(CHUNK_TOKENS):
        probabilities = functional.linear(rows, matrix).softmax(dim=-1)
        likely += probabilities.sum(dim=0)
        means += (probabilities @ matrix).square().sum(dim=0)
    squares = torch.zeros(matrix.shape[1])
    for some, rows in zip(likely.split(CHUNK_ROWS), matrix.split(CHUNK_ROWS), strict=True):
        squares += some @ rows.square()
    evenly = torch.full((len(x),), 1 / len(x))
    top = likely.topk(min(LIKELY, len(likely))).indices
    energy = (squares - means).clamp_(min=0) / len(x)
    return Side.of(x, evenly), Side.of(matrix[top], likely[top] / len(x), energy)


def quantised_matrix(
    matrix: Tensor, factors: Tensor | None = None, most: int = INT8_MAX
) -> QuantisedMatrix:
    """A matrix in int8, for activations that are divided by `factors` [inputs]; None for ones."""
    numbers, scales = [], []
    for rows in matrix.split(CHUNK_ROWS):
        made = quantise_rows(rows if factors is None else rows * factors, most)
        numbers.append(made[0])
        scales.append(made[1])
    smooth = None if factors is None else factors.reciprocal()
    return QuantisedMatrix(torch.cat(numbers), torch.cat(scales), smooth)


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
