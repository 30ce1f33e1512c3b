"""A prompt of a large model against the time in which its products can be computed."""

from __future__ import annotations

from collections.abc import Iterator

from engine.backends.cuda.model import random_weights
from engine.models.config import ModelConfig
from tests.engine.backends.batches import Work, make_batch
from tests.gpu.bed import Bed, product_rate
from tests.gpu.findings import Finding
from tests.gpu.rooms import blocks_of, rooms, tables


def run(bed: Bed) -> Iterator[Finding]:
    config, tokens = bed.sizes.large, bed.sizes.prefill
    rate = product_rate(bed)
    yield Finding("prefill", "products", rate / 1e12, "TFLOP/s")
    weights = random_weights(config, 0, bed.device.torch_device, bed.dtype)
    made = rooms(bed, weights, config, blocks_of(1, tokens), [])
    batch = make_batch([Work(tables(1, tokens)[0], 0, [i % config.vocab for i in range(tokens)])])
    took = bed.seconds(lambda: made.logits(batch), max(1, bed.sizes.repeats // 3))
    floor = operations(config, tokens) / rate
    yield Finding("prefill", f"{tokens} tokens: floor", 1e3 * floor, "ms")
    yield Finding("prefill", f"{tokens} tokens: a step", 1e3 * took, "ms")
    yield Finding("prefill", f"{tokens} tokens: step over floor", took / floor)
    yield Finding("prefill", f"{tokens} tokens: rate", tokens / took, "tok/s")


def operations(config: ModelConfig, tokens: int) -> int:
    """Multiplications and additions of a prompt: products, attention, the head once."""
    wide = config.heads * config.head_dim
    qkv = config.hidden * (wide + 2 * config.kv_heads * config.head_dim)
    layer = qkv + wide * config.hidden + 3 * config.hidden * config.ffn
    attention = 2 * wide * tokens * (tokens + 1) // 2
    return 2 * (config.layers * (layer * tokens + attention) + config.hidden * config.vocab)
