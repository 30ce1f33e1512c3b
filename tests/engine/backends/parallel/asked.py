"""What ranks are asked, and what they say through a whole engine."""

from __future__ import annotations

from typing import Any

import numpy as np
from support.engines import Harness
from support.float_parity import Ask, said

from engine.controls import RowControls
from tests.engine.models.tiny_llama import CONFIG

ASKS = [
    Ask(
        np.random.default_rng(number).integers(0, CONFIG.vocab, 9 + 7 * number).tolist(),
        20 + number,
        RowControls(temperature=0.0, logprobs=2)
        if number % 2
        else RowControls(seed=number, temperature=0.8, repetition_penalty=1.1, logprobs=2),
    )
    for number in range(6)
]


def answers(backend: Any, blocks: int, depth: int = 0, n: int = 1) -> list:
    harness = Harness(backend=backend, blocks=blocks, budget=24, depth=depth, model_len=128)
    asked = [harness.submit(ask.prompt, ask.max_tokens, ask.controls, n=n) for ask in ASKS]
    harness.run()
    return [said(harness, request) for request in asked]
