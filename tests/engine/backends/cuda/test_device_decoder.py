"""The decoder over `Ops` computes what the decoder in torch does, for every kind of model."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.cpu_device import CPUDevice
from support.cuda_parts import kernels

from engine.backends.attention import PagedAttention
from engine.backends.cuda.inputs import inputs_of
from engine.backends.cuda.model import Decoder, keeping, moved, random_weights, weight_bytes
from engine.backends.cuda.pool import KVPool
from engine.backends.cuda.split import split
from engine.backends.kv_cache import KVCache
from engine.models.config import ModelConfig
from engine.models.decoder import forward
from engine.models.rope import rope_table
from engine.models.shapes import expected_shapes
from engine.models.weights import Weights
from tests.engine.backends.batches import Work, make_batch
from tests.engine.models.tiny_llama import CONFIG

CPU = torch.device("cpu")
KINDS: dict[str, ModelConfig] = {
    "llama": CONFIG,
    "untied": replace(CONFIG, tied_head=False),
    "biased": replace(CONFIG, attention_bias=True, output_bias=True),
    "qwen3": replace(CONFIG, qk_norm=True, head_dim=32),
    "mistral": replace(CONFIG, windows=(20, 20)),
    "mixed windows": replace(CONFIG, windows=(None, 20)),
    "one layer": replace(CONFIG, layers=1),
}
TOKENS = [(37 * i) % CONFIG.vocab for i in range(60)]
STEPS = [
    [Work([0, 1, 2, 3], 0, TOKENS[:40], samples=False), Work([4, 5], 0, TOKENS[:17])],
    [Work([4, 5], 17, [5]), Work([0, 1, 2, 3], 40, TOKENS[40:]), Work([6], 0, [9, 8, 7])],
    [Work([6], 3, [1]), Work([4, 5], 18, [2]), Work([0, 1, 2, 3], 60, [3])],
]


def weights_of(config: ModelConfig, spread: float = 0.2) -> Weights:
    """Random weights, wide enough for logits that differ."""
    weights = random_weights(config, 3, CPU, torch.float32)
    for layer in weights.layers:
        for matrix in (layer.qkv, layer.attn_out, layer.gate_up, layer.down):
            assert isinstance(matrix, torch.Tensor)
            matrix.mul_(spread / 0.02)
    assert isinstance(weights.embedding, torch.Tensor)
    weights.embedding.mul_(spread / 0.02)
    return weights


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_the_decoder_in_torch(kind: str) -> None:
    config = KINDS[kind]
    weights = weights_of(config)
    device = CPUDevice()
    parts = kernels(device, config)
    pool = KVPool(device, parts.ops, config, 8, "float32")
    attention = parts.attention(pool)
    decoder = Decoder(weights, config, parts.ops, CPU)
    cache = KVCache(config, 8)
    for work in STEPS:
        batch = make_batch(work)
        inputs = inputs_of(batch, device, None)
        expected = forward(
            weights, config, rope_table(config), cache.layers, inputs, PagedAttention(batch)
        )
        attention.plan(split(batch))
        found = decoder.logits(decoder.hidden(inputs, pool, attention))
        assert expected.std() > 0.1
        torch.testing.assert_close(found, expected, atol=2e-4, rtol=1e-4)


def test_bfloat16_computes_nearly_the_same() -> None:
    config = KINDS["llama"]
    found = []
    for dtype, kv_dtype in ((torch.float32, "float32"), (torch.bfloat16, "bfloat16")):
        weights, device = moved(weights_of(config), CPU, dtype), CPUDevice()
        parts = kernels(device, config, dtype)
        pool = KVPool(device, parts.ops, config, 8, kv_dtype)
        attention = parts.attention(pool)
        batch = make_batch(STEPS[0])
        attention.plan(split(batch))
        decoder = Decoder(weights, config, parts.ops, CPU)
        hidden = decoder.hidden(inputs_of(batch, device, None), pool, attention)
        logits = decoder.logits(hidden)
        assert logits.dtype == dtype
        found.append(logits.float())
    exact, rounded = found
    assert (exact - rounded).norm() / exact.norm() < 3e-2


def test_weights_move_in_one_type_and_a_tied_head_stays_tied() -> None:
    weights = weights_of(KINDS["biased"])
    there = moved(weights, CPU, torch.bfloat16)
    assert there.head is there.embedding
    assert all(
        value.dtype == torch.bfloat16
        for layer in there.layers
        for value in (layer.attn_norm, layer.qkv, layer.qkv_bias, layer.attn_out_bias, layer.down)
        if isinstance(value, torch.Tensor)
    )
    assert moved(there, CPU, torch.bfloat16).layers[0].qkv is there.layers[0].qkv


def test_a_matrix_that_multiplies_by_itself_stays_where_it_is() -> None:
    class Shard:
        def multiply(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
            return x

    shard = Shard()
    assert moved(replace(weights_of(CONFIG), head=shard), CPU, torch.bfloat16).head is shard


def test_a_matrix_is_kept_on_the_device_as_soon_as_it_is_made() -> None:
    kept = keeping(CPU, torch.bfloat16)(lambda: torch.ones(2, 3))
    assert isinstance(kept, torch.Tensor)
    assert kept.dtype == torch.bfloat16


@pytest.mark.parametrize("kind", ["llama", "untied", "qwen3"])
def test_random_weights_are_those_of_their_seed_and_have_every_tensor(kind: str) -> None:
    config = KINDS[kind]
    one, same, other = (random_weights(config, seed, CPU, torch.float32) for seed in (1, 1, 2))
    assert isinstance(one.layers[1].qkv, torch.Tensor)
    assert isinstance(same.layers[1].qkv, torch.Tensor)
    assert torch.equal(one.layers[1].qkv, same.layers[1].qkv)
    assert not torch.equal(one.norm, other.norm)
    assert 0.5 < float(one.norm.mean()) < 1.5
    sizes = [torch.Size(shape).numel() for shape in expected_shapes(config).values()]
    assert weight_bytes(one) == 4 * sum(sizes)
