"""Guesses change neither what is drawn, seed by seed, nor how often."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from support.drafts import Guesser
from support.engines import Harness

from engine.backends.cpu import on_torch
from engine.clock import VirtualClock
from engine.controls import RowControls
from engine.cost import LinearCost
from engine.drafting.model import DraftModel, DraftSettings
from engine.outputs import Counters
from engine.request import Sequence
from engine.speculation import Drafter, PromptLookup, SpeculationSettings
from tests.engine.models.tiny_llama import CONFIG

PROMPT = np.random.default_rng(3).integers(0, CONFIG.vocab, 20).tolist()
FEW = (3, 14, 15, 26)
"""The only tokens that may be drawn where frequencies are counted."""


def house(tiny: tuple, drafter: Drafter | None = None, rows: int = 16, depth: int = 0) -> Harness:
    backend = on_torch(*tiny, 400)
    return Harness(backend=backend, blocks=400, budget=512, rows=rows, drafter=drafter, depth=depth)


CHEAP = LinearCost(base=1.0, decode=1e-3)


def by_model(tiny: tuple) -> DraftModel:
    """Guesses of the model itself, but for a sharper opinion."""
    weights, config = tiny
    sharper = replace(weights, norm=1.1 * weights.norm)
    settings = DraftSettings(CHEAP, LinearCost(), VirtualClock(), tokens=8)
    return DraftModel(on_torch(sharper, config, 400), settings)


CONTROLS = {
    "greedy": RowControls(temperature=0.0),
    "greedy, penalties": RowControls(temperature=0.0, repetition_penalty=1.3),
    "drawn": RowControls(temperature=0.8, seed=4),
    "drawn of few": RowControls(seed=5, allowed_ids=frozenset(FEW), frequency_penalty=0.4),
    "top p": RowControls(temperature=0.5, seed=6, top_p=0.9, min_tokens=9, logprobs=2),
    "bad words": RowControls(seed=7, allowed_ids=frozenset(FEW), bad_words=((3, 14), (26, 26))),
}


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("controls", CONTROLS.values(), ids=CONTROLS)
def test_each_seed_draws_what_it_draws_without_guesses(tiny, controls, depth) -> None:
    """In float32 sums may differ a little, but in this tiny model no draw falls that close."""

    def answers(drafter: Drafter | None) -> tuple[list[list[int]], int]:
        harness = house(tiny, drafter, depth=depth)
        requests = [harness.submit(PROMPT[i:] + PROMPT, 60, controls, n=2) for i in range(3)]
        harness.run()
        accepted = harness.scheduler.counters.accepted_tokens
        return [harness.tokens(r, index) for r in requests for index in (0, 1)], accepted

    expected, _ = answers(None)
    found, accepted = answers(PromptLookup(SpeculationSettings(CHEAP, 8, 1)))
    assert found == expected
    if controls.allowed_ids is not None or (controls.temperature == 0 and depth == 0):
        assert accepted > 0


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("controls", CONTROLS.values(), ids=CONTROLS)
def test_each_seed_draws_what_it_draws_without_a_draft_model(tiny, controls, depth) -> None:
    def answers(drafter: Drafter | None) -> tuple[list[list[int]], Counters]:
        harness = house(tiny, drafter, depth=depth)
        requests = [harness.submit(PROMPT[i:] + PROMPT, 30, controls, n=2) for i in range(2)]
        harness.run()
        said = [harness.tokens(r, index) for r in requests for index in (0, 1)]
        return said, harness.scheduler.counters

    expected, _ = answers(None)
    found, counters = answers(by_model(tiny))
    assert found == expected
    assert counters.draft_faults == 0
    assert 0.2 * counters.draft_tokens < counters.accepted_tokens
    assert counters.draft_tokens > 30


@pytest.mark.slow
@pytest.mark.parametrize("guessing", ["anything", "a draft model"])
def test_100_000_draws_are_as_frequent_as_the_model_says(tiny, guessing) -> None:
    """Chi-square of three tokens in a row, the second and third of which were guessed."""
    texts = 100_000 // 3 + 1
    alone = house(tiny)
    expected = {
        text: texts * math.prod(_chance(alone, text[:i], text[i]) for i in range(3))
        for text in itertools.product(FEW, repeat=3)
    }

    def anything(sequence: Sequence, place: int) -> int:
        return FEW[place % len(FEW)]

    drafter = Guesser(anything, wrong=0, most=3) if guessing == "anything" else by_model(tiny)
    guessed = house(tiny, drafter, rows=32)
    controls = [RowControls(seed=i, allowed_ids=frozenset(FEW)) for i in range(texts)]
    requests = [guessed.submit(PROMPT, 4, each) for each in controls]
    guessed.run(limit=100_000)
    assert 0 < guessed.scheduler.counters.accepted_tokens < guessed.scheduler.counters.draft_tokens
    found = Counter(tuple(guessed.tokens(request)[:3]) for request in requests)
    assert found.total() == texts
    distance = sum((found[text] - count) ** 2 / count for text, count in expected.items())
    assert distance < _chi_square(len(expected) - 1, deviations=3.72)  # 1 in 10,000 is farther


def _chance(harness: Harness, before: tuple[int, ...], token: int) -> float:
    """How likely the model says a token is, among FEW, behind the prompt and others."""
    asked = RowControls(temperature=0.0, logprobs=CONFIG.vocab)
    request = harness.submit([*PROMPT, *before], 1, asked)
    harness.run()
    (logprobs,) = harness.outputs[request, 0][0].logprobs
    likely = {each: math.exp(value) for each, value in logprobs.top if each in FEW}
    return likely[token] / sum(likely.values())


def _chi_square(freedom: int, deviations: float) -> float:
    """A quantile, by Wilson and Hilferty's approximation (PNAS 17, 1931)."""
    part = 2 / (9 * freedom)
    return freedom * (1 - part + deviations * math.sqrt(part)) ** 3
