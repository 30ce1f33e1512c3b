"""What a model is, in numbers. Needs neither torch nor the weights."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

from engine.capacity import KvDtype


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Positions are divided by `factor`."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3.1's scaling: slow dimensions turn `factor` times slower, fast ones as before.

    Slow: fewer than low_freq_factor turns within `original_context` tokens; fast: more than
    high_freq_factor; between them one fades into the other.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """YaRN (https://arxiv.org/abs/2309.00071).

    Dimensions of fewer than beta_slow turns within `original_context` tokens turn `factor` times
    slower, those of more than beta_fast as before. attention_factor: what cosines and sines are
    multiplied by. truncate: whether the bounds between the two are rounded to whole dimensions.
    """

    factor: float
    original_context: int
    attention_factor: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True

    @property
    def context_length(self) -> int:
        """Tokens that the scaling reaches."""
        return int(self.factor * self.original_context)


@dataclass(frozen=True, slots=True)
class FrequencyDivisors:
    """A divisor for the frequency of each pair of dimensions, head_dim / 2 of them."""

    divisors: tuple[float, ...]


RopeScaling: TypeAlias = LinearScaling | Llama3Scaling | YarnScaling | FrequencyDivisors


def yarn_magnitude(factor: float, mscale: float = 1.0) -> float:
    """The attention factor that YaRN's paper suggests, its logarithm weighted by `mscale`."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of a decoder-only transformer, and all in which the supported ones differ.

    hidden: width of the residual stream. ffn: width inside the MLP.
    heads, kv_heads: query heads and the key/value heads they share in equal groups.
    context_length: positions the model was made for. rope_base: theta of the rotary embedding.
    tied_head: the output head is the embedding matrix.
    attention_bias: queries, keys and values have a bias; output_bias: so has attention's output.
    qk_norm: every head of queries and keys is normalised before it is rotated.
    windows: for each layer how many tokens a query sees, itself included, None for all; empty if
    every layer sees all.
    """

    architecture: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    context_length: int
    rope_base: float
    norm_eps: float
    tied_head: bool
    rope_scaling: RopeScaling | None = None
    attention_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    windows: tuple[int | None, ...] = ()

    @property
    def layer_windows(self) -> tuple[int | None, ...]:
        """The window of each layer."""
        return self.windows or (None,) * self.layers

    def kv_bytes_per_token(self, dtype: KvDtype) -> int:
        """Bytes that the keys and values of one token take over all layers."""
        return 2 * self.layers * self.kv_heads * dtype.vector_bytes(self.head_dim)
