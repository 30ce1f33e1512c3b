"""Products of activations with a matrix of weights, in whatever form the matrix is kept.

    float32    [outputs, inputs]                             a tensor
    int8       [outputs, inputs], a scale for each output    `QuantisedMatrix`

An int8 product quantises its activations row by row, each row with a scale of its own, so that a
row's result does not depend on its neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

INT8_MAX = 127


class AppliedMatrix(Protocol):
    """A matrix that knows how to multiply."""

    def multiply(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """x [rows, inputs] times the matrix, plus bias [outputs]: float32 [rows, outputs]."""
        ...


Matrix: TypeAlias = Tensor | AppliedMatrix


def multiply(x: Tensor, matrix: Matrix, bias: Tensor | None = None) -> Tensor:
    """x [rows, inputs] times `matrix`, plus `bias` [outputs] if there is one."""
    if isinstance(matrix, Tensor):
        return functional.linear(x, matrix, bias)
    return matrix.multiply(x, bias)


@dataclass(frozen=True, slots=True)
class QuantisedMatrix:
    """A matrix in int8: numbers [outputs, inputs] times scales [outputs].

    smooth [inputs] multiplies activations before they are quantised; the numbers have been divided
    by it (SmoothQuant, https://arxiv.org/abs/2211.10438). None for ones.
    """

    numbers: Tensor
    scales: Tensor
    smooth: Tensor | None = None

    def multiply(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        numbers, scales = quantise_rows(x if self.smooth is None else x * self.smooth)
        # oneDNN wants the weights column-major: this transposed view.
        sums = torch._int_mm(numbers, self.numbers.t())
        product = sums.float().mul_(scales[:, None] * self.scales)
        return product if bias is None else product.add_(bias)


@dataclass(frozen=True, slots=True)
class QuantisedEmbedding:
    """A quantised head as the embedding: rows of the matrix with the smoothing taken out."""

    matrix: QuantisedMatrix

    def rows(self, tokens: Tensor) -> Tensor:
        matrix = self.matrix
        found = matrix.numbers[tokens].float().mul_(matrix.scales[tokens][:, None])
        return found if matrix.smooth is None else found.mul_(matrix.smooth)


Embedding: TypeAlias = Tensor | QuantisedEmbedding


def embed(tokens: Tensor, embedding: Embedding) -> Tensor:
    """The embeddings [n, hidden] of token ids [n]."""
    if isinstance(embedding, Tensor):
        return functional.embedding(tokens, embedding)
    return embedding.rows(tokens)


def quantise_rows(x: Tensor, most: int = INT8_MAX) -> tuple[Tensor, Tensor]:
    """x [rows, n] as int8 numbers [rows, n] of at most `most`, and scales [rows].

    A row of zeros has scale 0 and stays zero.
    """
    scales = x.abs().amax(dim=1) / most
    inverse = torch.where(scales > 0, scales.reciprocal(), 0)
    return (x * inverse[:, None]).round_().to(torch.int8), scales
