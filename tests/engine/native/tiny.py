"""Small random models in int8, for the native library."""

from __future__ import annotations

import dataclasses
import functools

import pytest
import torch

from engine.backends.native_cache import NativeKVCache
from engine.models import quantisation
from engine.models.config import ModelConfig
from engine.models.rope import rope_table
from engine.models.weights import Weights, assemble
from engine.native.build import CannotBuild, build
from engine.native.library import open_library
from engine.native.model import NativeModel
from tests.engine.models.tiny_llama import CONFIG, random_tensors

ISAS = ["portable", "avx2", "avx512", "amx"]


@functools.cache
def library():
    """The library, built if need be; skips where there is no compiler."""
    try:
        return open_library(build())
    except CannotBuild as reason:
        pytest.skip(str(reason))


def int8_weights(config: ModelConfig = CONFIG, seed: int = 0) -> Weights:
    """Random weights, quantised for random activations."""
    tensors = {name: torch.from_numpy(t) for name, t in random_tensors(config, seed).items()}
    watched = quantisation.watched(functools.partial(assemble, config, tensors.__getitem__))
    random = torch.Generator().manual_seed(seed)
    for layer in watched.layers:
        for name in quantisation.MATRICES:
            matrix = getattr(layer, name)
            inputs = matrix.make().shape[1]
            channels = torch.rand(inputs, generator=random) + 0.5
            matrix.multiply(torch.randn(32, inputs, generator=random) * channels, None)
    return quantisation.quantised(watched)


def native_model(config: ModelConfig = CONFIG, isa: str | None = None, seed: int = 0):
    """The library's model; skips where the processor lacks the instruction set."""
    if isa is not None and not library().octavo_has(isa.encode()):
        pytest.skip(f"{isa} cannot be used here")
    return NativeModel(library(), int8_weights(config, seed), config, rope_table(config), isa=isa)


def shaped(heads: int, kv_heads: int, head_dim: int, **more: object) -> ModelConfig:
    return dataclasses.replace(
        CONFIG, heads=heads, kv_heads=kv_heads, head_dim=head_dim, layers=1, **more
    )


def poisoned(config: ModelConfig, blocks: int, kv_dtype: str) -> NativeKVCache:
    """A cache whose unwritten slots would show."""
    cache = NativeKVCache(config, blocks, kv_dtype)
    for part in cache.parts:
        part.fill_(torch.nan if part.is_floating_point() else -128)
    return cache
