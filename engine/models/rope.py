"""The rotary position embedding: how fast each pair of dimensions turns, and the turning.

Formulas as in Hugging Face transformers (modeling_rope_utils.py), to which the tests hold them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.models.config import (
    FrequencyDivisors,
    LinearScaling,
    Llama3Scaling,
    ModelConfig,
    YarnScaling,
)


@dataclass(frozen=True, slots=True)
class RopeTable:
    """Cosines and sines of the rotary embedding, [context_length, head_dim / 2] each."""

    cos: Tensor
    sin: Tensor


def rope_table(config: ModelConfig) -> RopeTable:
    positions = torch.arange(config.context_length, dtype=torch.float32)
    angles = torch.outer(positions, frequencies(config))
    scaling = config.rope_scaling
    magnitude = scaling.attention_factor if isinstance(scaling, YarnScaling) else 1.0
    return RopeTable(angles.cos() * magnitude, angles.sin() * magnitude)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of x [n, heads, head_dim]: dimension i turns with i + head_dim / 2."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def frequencies(config: ModelConfig) -> Tensor:
    """By how much a position turns each pair of dimensions, in radians, [head_dim / 2]."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    unscaled = 1.0 / config.rope_base**exponents
    match config.rope_scaling:
        case None:
            return unscaled
        case LinearScaling(factor):
            return unscaled / factor
        case Llama3Scaling() as scaling:
            return _llama3(unscaled, scaling)
        case YarnScaling() as scaling:
            return _yarn(unscaled, scaling, config)
        case FrequencyDivisors(divisors):
            return unscaled / torch.tensor(divisors)


def _llama3(unscaled: Tensor, scaling: Llama3Scaling) -> Tensor:
    turns = scaling.original_context * unscaled / (2 * math.pi)
    span = scaling.high_freq_factor - scaling.low_freq_factor
    kept = ((turns - scaling.low_freq_factor) / span).clamp(0, 1)
    return torch.lerp(unscaled / scaling.factor, unscaled, kept)


def _yarn(unscaled: Tensor, scaling: YarnScaling, config: ModelConfig) -> Tensor:
    first = _dimension(scaling.beta_fast, scaling, config)
    last = _dimension(scaling.beta_slow, scaling, config)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, config.head_dim - 1)
    if first == last:
        last += 0.001  # a step instead of a division by zero
    dimensions = torch.arange(len(unscaled), dtype=torch.float32)
    slowed = ((dimensions - first) / (last - first)).clamp(0, 1)
    return torch.lerp(unscaled, unscaled / scaling.factor, slowed)


def _dimension(turns: float, scaling: YarnScaling, config: ModelConfig) -> float:
    """Which pair of dimensions turns so often within the original context (a fraction)."""
    ratio = scaling.original_context / (turns * 2 * math.pi)
    return config.head_dim * math.log(ratio) / (2 * math.log(config.rope_base))
