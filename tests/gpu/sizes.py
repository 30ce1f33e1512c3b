"""How large everything is: models of random weights, contexts, repeats."""

from __future__ import annotations

from dataclasses import dataclass, replace

from engine.models.config import ModelConfig

LLAMA_8B = ModelConfig(
    architecture="llama",
    layers=32,
    hidden=4096,
    heads=32,
    kv_heads=8,
    head_dim=128,
    ffn=14_336,
    vocab=128_256,
    context_length=131_072,
    rope_base=500_000.0,
    norm_eps=1e-5,
    tied_head=False,
)
"""Llama-3.1-8B's shape; its scaling of rotations costs nothing and is left out."""

TINY = ModelConfig(
    architecture="qwen3",
    layers=3,
    hidden=384,
    heads=6,
    kv_heads=2,
    head_dim=64,
    ffn=512,
    vocab=1000,
    context_length=2048,
    rope_base=10_000.0,
    norm_eps=1e-6,
    tied_head=False,
    qk_norm=True,
)
"""Small, with groups of three heads and normalised ones."""

SMALLEST = replace(TINY, layers=2, hidden=64, heads=4, head_dim=16, ffn=96, vocab=160)


@dataclass(frozen=True, slots=True)
class Sizes:
    """tiny: a model that a CPU computes in float32 beside the device. large: one to be measured.

    context: tokens that a decode sees. decode_rows: numbers of sequences, the most important first.
    prefill: tokens of a prompt. requests, rows, most_output: of the engine's workload, whose
    prompts have up to `context` tokens. growth: decodes of the test that KV grows in.
    """

    tiny: ModelConfig
    large: ModelConfig
    context: int
    decode_rows: tuple[int, ...]
    prefill: int
    requests: int
    rows: int
    most_output: int
    growth: int
    repeats: int
    copied_bytes: int
    product: int
    step_tokens: int
    head_dims: tuple[int, ...]


REAL = Sizes(
    tiny=TINY,
    large=LLAMA_8B,
    context=1024,
    decode_rows=(64, 1, 8, 32, 128),
    prefill=2048,
    requests=96,
    rows=64,
    most_output=128,
    growth=70,
    repeats=30,
    copied_bytes=4 << 30,
    product=8192,
    step_tokens=2048,
    head_dims=(64, 128),
)
REHEARSAL = Sizes(
    tiny=SMALLEST,
    large=SMALLEST,
    context=40,
    decode_rows=(4, 1),
    prefill=48,
    requests=6,
    rows=4,
    most_output=6,
    growth=20,
    repeats=2,
    copied_bytes=1 << 16,
    product=16,
    step_tokens=32,
    head_dims=(16,),
)
