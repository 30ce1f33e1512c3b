"""Beam search finds what transformers' finds: the same sequences, in the same order.

A small random Llama under every combination of penalty and stopping rule, with no, one and several
tokens that end a sequence; alone, beside others, and in a pool so small that groups are preempted.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.engines import GREEDY, Harness
from transformers import PreTrainedModel

from engine.backends.cpu import on_torch
from engine.beam_search import BeamSearch
from engine.controls import RowControls
from engine.models.config import ModelConfig
from engine.models.files import load_weights, read_config
from engine.models.weights import Weights
from tests.engine.models.tiny_models import VOCAB, random_model

WIDTH, TOKENS = 4, 14
PROMPTS = [
    np.random.default_rng(i).integers(0, VOCAB, n).tolist() for i, n in enumerate((5, 16, 37))
]
PENALTIES = [-1.0, 0.0, 1.0, 2.5]
STOPPING = [True, False, "never"]
ENDS = [frozenset(), frozenset(range(0, VOCAB, 40)), frozenset(range(0, VOCAB, 9))]
"""Ids that end a sequence: none, and as many as end some, or most, of all hypotheses early."""

Ask = tuple[list[int], BeamSearch, RowControls]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PreTrainedModel]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    model = random_model("llama")
    model.generation_config.pad_token_id = 0
    model.generation_config.eos_token_id = None
    yield model
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def ours(model: PreTrainedModel, tmp_path_factory) -> tuple[Weights, ModelConfig]:
    folder: Path = tmp_path_factory.mktemp("beams")
    model.save_pretrained(folder)
    config = read_config(folder)
    return load_weights(folder, config), config


def expected(model: PreTrainedModel, ask: Ask, **options: Any) -> list[list[int]]:
    """The generated tokens of all beams, cut behind the token that ended them."""
    prompt, beams, controls = ask
    ends = sorted(controls.ending_ids)
    with torch.inference_mode():
        found = model.generate(
            torch.tensor([prompt]),
            num_beams=beams.width,
            num_return_sequences=beams.width,
            do_sample=False,
            max_new_tokens=TOKENS,
            length_penalty=beams.length_penalty,
            early_stopping=beams.early_stopping,
            eos_token_id=ends or None,
            **options,
        )
    return [_cut(row[len(prompt) :], controls.ending_ids) for row in found.tolist()]


def _cut(tokens: list[int], ends: frozenset[int]) -> list[int]:
    end = next((i for i, token in enumerate(tokens) if token in ends), len(tokens))
    return tokens[: end + 1]


def found(harness: Harness, asks: list[Ask]) -> list[list[list[int]]]:
    requests = [
        harness.submit(prompt, TOKENS, controls, n=beams.width, beams=beams)
        for prompt, beams, controls in asks
    ]
    harness.run()
    assert harness.pool.free == harness.pool.total
    return [
        [harness.tokens(request, index) for index in range(beams.width)]
        for request, (_, beams, _) in zip(requests, asks, strict=True)
    ]


def engine(ours: tuple[Weights, ModelConfig], blocks: int = 200, **options: Any) -> Harness:
    return Harness(backend=on_torch(*ours, blocks), blocks=blocks, model_len=128, **options)


def asks(controls: RowControls = GREEDY) -> list[Ask]:
    return [
        (prompt, BeamSearch(WIDTH, penalty, stopping), replace(controls, eos_ids=ends))
        for prompt, penalty, stopping, ends in itertools.product(PROMPTS, PENALTIES, STOPPING, ENDS)
    ]


def some(count: int) -> list[Ask]:
    """Asks that are far apart: every prompt, penalty, rule and set of ends is among a few."""
    every = asks()
    return [every[(37 * number) % len(every)] for number in range(count)]


@pytest.mark.parametrize("count", [24, pytest.param(108, marks=pytest.mark.slow)])
def test_sequences_and_their_order_are_those_of_transformers(model, ours, count: int) -> None:
    lengths: set[int] = set()
    for ask in some(count):
        (ids,) = found(engine(ours), [ask])
        assert ids == expected(model, ask), ask
        lengths.update(map(len, ids))
    assert len(lengths) > 5, "the ends that were chosen are hit early and late"


@pytest.mark.parametrize("width", [2, 8])
def test_narrow_and_wide_searches_are_those_of_transformers(model, ours, width: int) -> None:
    for prompt, ends in itertools.product(PROMPTS, ENDS):
        ask = (prompt, BeamSearch(width), replace(GREEDY, eos_ids=ends))
        (ids,) = found(engine(ours), [ask])
        assert ids == expected(model, ask), ask


@pytest.mark.parametrize(
    ("controls", "options"),
    [
        ({"min_tokens": 6}, {"min_new_tokens": 6}),
        ({"repetition_penalty": 1.3}, {"repetition_penalty": 1.3}),
        ({"logit_bias": {7: 4.0, 9: -3.0}}, {"sequence_bias": [[[7], 4.0], [[9], -3.0]]}),
    ],
)
def test_controls_edit_log_probabilities_as_in_transformers(model, ours, controls, options) -> None:
    changed = 0
    for prompt, ends in itertools.product(PROMPTS, ENDS[1:]):
        ask = (prompt, BeamSearch(WIDTH), replace(GREEDY, eos_ids=ends, **controls))
        (ids,) = found(engine(ours), [ask])
        assert ids == expected(model, ask, **options), ask
        changed += ids != expected(model, ask)
    assert changed > 1


@pytest.mark.parametrize("depth", [0, 1])
def test_neighbours_and_preemption_change_nothing(model, ours, depth: int) -> None:
    wanted = some(9)
    small = engine(ours, blocks=16, rows=24, budget=48, depth=depth)
    assert found(small, wanted) == [expected(model, ask) for ask in wanted]
    assert small.scheduler.counters.preemptions > 0
