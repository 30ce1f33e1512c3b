"""Drives vLLM on a Hugging Face folder, its engine in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vllm import LLM, SamplingParams

Generate = Callable[[Sequence[Sequence[int]], int], None]


def load(settings: Mapping[str, Any]) -> tuple[int, Generate]:
    """settings: `model`, the folder; `dtype`, `length` of a sequence and number of `sequences`."""
    engine = LLM(
        settings["model"],
        dtype=settings["dtype"],
        max_model_len=settings["length"],
        max_num_seqs=settings["sequences"],
        enable_prefix_caching=False,
        disable_log_stats=True,
    )

    def generate(prompts: Sequence[Sequence[int]], output: int) -> None:
        sampling = SamplingParams(max_tokens=output, temperature=0.0, ignore_eos=True)
        requests = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        engine.generate(requests, sampling, use_tqdm=False)

    return int(engine.model_config.get_vocab_size()), generate
