"""What the default model says on the native path is the same to the last bit when it is guessed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.draft_models import draft_model
from support.engines import Harness
from support.float_parity import MODEL, asks, said

from engine.backends import load_on_cpu
from engine.cost import LinearCost
from engine.speculation import Drafter, PromptLookup, SpeculationSettings

LIKELY = LinearCost(base=4e-3, decode=3e-4)


@pytest.mark.slow
@pytest.mark.parametrize("depth", [0, 1])
def test_long_answers_of_the_real_model(depth) -> None:
    if not MODEL.exists():
        pytest.skip(f"{MODEL.name} is not in models/")
    loaded = load_on_cpu(MODEL, dtype="int8", folder=MODEL.parent, kv_memory_bytes=1 << 28)
    if not loaded.native:
        pytest.skip("there is no native library here")
    wanted = [replace(ask, max_tokens=150) for ask in asks(9, 6, 200)]

    def answers(drafter: Drafter | None) -> Harness:
        harness = Harness(
            backend=loaded.backend,
            blocks=loaded.backend.total_blocks,
            drafter=drafter,
            depth=depth,
            model_len=2048,
            prefix_cache=False,
        )
        for ask in wanted:
            harness.submit(ask.prompt, ask.max_tokens, ask.controls)
            if ask.greedy:
                harness.run()  # alone
        harness.run()
        return harness

    alone, guessed = answers(None), answers(PromptLookup(SpeculationSettings(LIKELY)))
    for request in range(1, len(wanted) + 1):
        assert said(guessed, request) == said(alone, request)
    assert guessed.scheduler.counters.accepted_tokens > 100
    loaded.backend.close()


@pytest.mark.slow
@pytest.mark.parametrize("depth", [0, 1])
def test_the_real_model_guesses_for_itself_and_is_nearly_always_right(depth) -> None:
    """As a draft model with the same weights: greedy and drawn, alone and together."""
    if not MODEL.exists():
        pytest.skip(f"{MODEL.name} is not in models/")
    kept = {"dtype": "int8", "folder": MODEL.parent}
    loaded = load_on_cpu(MODEL, kv_memory_bytes=1 << 28, **kept)
    draft = load_on_cpu(MODEL, kv_memory_bytes=1 << 27, **kept)
    if not loaded.native:
        pytest.skip("there is no native library here")
    wanted = [replace(ask, max_tokens=100) for ask in asks(9, 6, 200)]

    def answers(drafter: Drafter | None) -> Harness:
        harness = Harness(
            backend=loaded.backend,
            blocks=loaded.backend.total_blocks,
            drafter=drafter,
            depth=depth,
            model_len=2048,
            prefix_cache=False,
        )
        for ask in wanted:
            harness.submit(ask.prompt, ask.max_tokens, ask.controls)
            if ask.greedy:
                harness.run()  # alone
        harness.run()
        return harness

    alone, guessed = answers(None), answers(draft_model(backend=draft.backend))
    for request in range(1, len(wanted) + 1):
        assert said(guessed, request) == said(alone, request)
    counters = guessed.scheduler.counters
    assert counters.draft_faults == 0
    assert counters.draft_tokens > 300
    assert counters.accepted_tokens > 0.95 * counters.draft_tokens
    loaded.backend.close()
    draft.backend.close()
