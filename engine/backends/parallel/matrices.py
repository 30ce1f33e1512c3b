"""Products with matrices of which every rank holds a part.

    ReducedMatrix     columns    y = Σ over ranks of x[its inputs] · shardᵀ          all-reduce
    GatheredMatrix    rows       y = the ranks' outputs side by side                 all-gather
    a plain shard     rows       y = its own outputs, which nobody else needs        nothing

The first two are the ends of what a rank computes by itself: a plain shard (queries, keys, values;
gate and up) comes before each reduced one (attention's output; down).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from engine.backends.parallel.shards import Shard
from engine.models.products import Matrix, multiply
from engine.models.weights import LayerWeights, Weights


class Collectives(Protocol):
    """What the ranks of a group do together; all of them call the same in the same order.

    Raises CollectiveFailed where one of them is gone, or does not come within the group's time.
    """

    def all_reduce(self, x: Tensor) -> None:
        """Add up x of all ranks, in place: the same bits on each."""
        ...

    def all_gather(self, x: Tensor) -> list[Tensor]:
        """x of each rank, in the order of ranks; their shapes are the same."""
        ...


@dataclass(frozen=True, slots=True)
class ReducedMatrix:
    """A matrix [outputs, inputs] of which this rank has the columns [outputs, its inputs]."""

    shard: Matrix
    group: Collectives

    def multiply(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """x [rows, its inputs]: the whole product [rows, outputs], with the bias added once."""
        product = multiply(x, self.shard)
        if len(product):
            self.group.all_reduce(product)
        return product if bias is None else product.add_(bias)


@dataclass(frozen=True, slots=True)
class GatheredMatrix:
    """A matrix [outputs, inputs] of which this rank has the rows [its outputs, inputs].

    All shards are of the same size: the last one ends in zeros if `outputs` cannot be divided.
    """

    shard: Matrix
    outputs: int
    group: Collectives

    def multiply(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """x [rows, inputs], the same on all ranks: the whole product [rows, outputs]."""
        if not len(x):
            return x.new_empty(0, self.outputs)
        parts = self.group.all_gather(multiply(x, self.shard))
        whole = torch.cat(parts, dim=1)[:, : self.outputs].contiguous()
        return whole if bias is None else whole.add_(bias)


def joined(weights: Weights, shard: Shard, group: Collectives) -> Weights:
    """The weights that `shard` was cut from, with the matrices that end in a collective.

    A head that is the embedding has not been cut yet, since every rank needs all of that.
    """
    head = weights.head
    if shard.whole.tied_head:
        assert isinstance(weights.embedding, Tensor), "shards are not quantised"
        head = shard.vocabulary(weights.embedding)
    return replace(
        weights,
        layers=tuple(_joined_layer(layer, group) for layer in weights.layers),
        head=GatheredMatrix(head, shard.whole.vocab, group),
    )


def _joined_layer(layer: LayerWeights, group: Collectives) -> LayerWeights:
    return replace(
        layer,
        attn_out=ReducedMatrix(layer.attn_out, group),
        down=ReducedMatrix(layer.down, group),
    )
