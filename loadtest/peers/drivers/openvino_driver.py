"""Drives OpenVINO GenAI's continuous batching on a folder that holds an OpenVINO model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import openvino
import openvino_genai as genai

Generate = Callable[[Sequence[Sequence[int]], int], None]


def load(settings: Mapping[str, Any]) -> tuple[int, Generate]:
    """settings: `model`, the folder; `vocab`; `cache_gb`, `sequences`, `step_tokens` for its
    scheduler; `plugin`, properties of the CPU plugin."""
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = settings["cache_gb"]
    scheduler.max_num_seqs = settings["sequences"]
    scheduler.max_num_batched_tokens = settings["step_tokens"]
    scheduler.dynamic_split_fuse = True
    scheduler.enable_prefix_caching = False
    pipeline = genai.ContinuousBatchingPipeline(
        settings["model"], scheduler, "CPU", settings["plugin"]
    )

    def generate(prompts: Sequence[Sequence[int]], output: int) -> None:
        config = genai.GenerationConfig()
        config.max_new_tokens = output
        config.do_sample = False
        config.ignore_eos = True
        config.eos_token_id = 2  # it wants one that is not negative, ignored or not
        config.stop_token_ids = {2}
        tensors = [openvino.Tensor(np.array([prompt], np.int64)) for prompt in prompts]
        answers = pipeline.generate(tensors, [config] * len(tensors))
        if any(len(answer.m_generation_ids[0]) != output for answer in answers):
            raise RuntimeError("error: an answer has another length than was asked for")

    return int(settings["vocab"]), generate
