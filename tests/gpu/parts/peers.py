"""transformers' continuous batching on the same shape, if transformers is there."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch

from engine.models.config import ModelConfig
from tests.gpu.bed import Bed
from tests.gpu.findings import Finding

OUTPUT = 64


def run(bed: Bed) -> Iterator[Finding]:
    try:
        import transformers
    except ImportError as error:
        yield Finding("peers", "transformers", f"not measured: {error}")
        return
    yield Finding("peers", "transformers", str(transformers.__version__))
    if bed.rehearsed:
        return
    rows, context = bed.sizes.rows, bed.sizes.context
    model = _model(transformers, bed.sizes.large, bed)
    prompts = [[(i + j) % 1000 for j in range(context - OUTPUT)] for i in range(rows)]
    _generate(transformers, model, prompts[:2], 4)
    short = _generate(transformers, model, prompts, 1)
    long = _generate(transformers, model, prompts, OUTPUT)
    step = (long - short) / (OUTPUT - 1)
    yield Finding("peers", f"transformers, {rows} sequences: a step", 1e3 * step, "ms")
    yield Finding("peers", f"transformers, {rows} sequences: rate", rows / step, "tok/s")


def _model(transformers: Any, config: ModelConfig, bed: Bed) -> Any:
    """A Llama of random weights."""
    shape = transformers.LlamaConfig(
        vocab_size=config.vocab,
        hidden_size=config.hidden,
        intermediate_size=config.ffn,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.kv_heads,
        max_position_embeddings=config.context_length,
        rope_theta=config.rope_base,
        tie_word_embeddings=config.tied_head,
    )
    before = torch.get_default_dtype()
    torch.set_default_dtype(bed.dtype)
    try:
        with torch.device(bed.device.torch_device):
            return transformers.LlamaForCausalLM(shape).eval()
    finally:
        torch.set_default_dtype(before)


def _generate(transformers: Any, model: Any, prompts: list[list[int]], tokens: int) -> float:
    """Seconds for so many tokens behind each prompt."""
    wanted = transformers.GenerationConfig(
        max_new_tokens=tokens, do_sample=False, eos_token_id=-1, pad_token_id=0, use_cache=False
    )
    started = time.perf_counter()
    model.generate_batch(inputs=prompts, generation_config=wanted)
    torch.cuda.synchronize()
    return time.perf_counter() - started
