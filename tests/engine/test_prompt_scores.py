"""How likely the tokens of a prompt are is told once, in full, whatever becomes of the request."""

from __future__ import annotations

import random

import pytest
from support.engines import Harness

from engine.backends.scripted import raising
from engine.beam_search import BeamSearch
from engine.controls import RowControls, TokenLogprobs
from engine.outputs import FinishReason

SCORED = RowControls(temperature=0.0, prompt_logprobs=1)


def scores(harness: Harness, request: int, index: int = 0) -> tuple[TokenLogprobs, ...]:
    """What was told of the prompt, which is with the first output that has tokens, and no other."""
    told = [output for output in harness.outputs[request, index] if output.tokens]
    assert all(output.prompt_logprobs == () for output in told[1:])
    return told[0].prompt_logprobs


def expected(prompt: list[int]) -> list[tuple[float, int]]:
    """What the scripted backend says, from positions and tokens alone."""
    return [(-(place + 1) / 10, token) for place, token in enumerate(prompt[1:])]


def said(logprobs: tuple[TokenLogprobs, ...]) -> list[tuple[float, int]]:
    return [(each.logprob, each.top[0][0]) for each in logprobs]


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 33, 100])
def test_each_token_but_the_first_is_scored_in_whatever_chunks(length: int, depth: int) -> None:
    for budget in (1, 3, 16, 17, 128):
        harness = Harness(budget=budget, rows=1, depth=depth)
        prompt = list(range(500, 500 + length))
        request = harness.submit(prompt, 3, SCORED)
        harness.run()
        assert said(scores(harness, request)) == expected(prompt)
        assert harness.tokens(request) == [prompt[i % length] for i in range(3)]


def test_nothing_is_scored_unasked() -> None:
    harness = Harness()
    request = harness.submit(40)
    harness.run()
    assert scores(harness, request) == ()
    assert all(batch.scored == () for batch in harness.backend.batches)


def test_what_is_cached_is_computed_all_the_same_and_serves_others_afterwards() -> None:
    harness = Harness()
    prompt = list(range(100))
    for controls, cached in ((SCORED, 0), (SCORED, 0), (RowControls(temperature=0.0), 96)):
        request = harness.submit(prompt, 2, controls)
        harness.run()
        assert harness.outputs[request, 0][0].cached == cached
    assert said(scores(harness, 2)) == said(scores(harness, 1)) == expected(prompt)


def test_every_sequence_of_a_request_is_told() -> None:
    harness = Harness(budget=16)
    prompt = list(range(40))
    parallel = harness.submit(prompt, 3, SCORED, n=3)
    beams = harness.submit(prompt, 3, SCORED, n=2, beams=BeamSearch(2))
    harness.run()
    told = [scores(harness, parallel, index) for index in range(3)]
    told += [scores(harness, beams, index) for index in range(2)]
    assert [said(each) for each in told] == [expected(prompt)] * 5


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("host_blocks", [0, 8])
@pytest.mark.parametrize("seed", range(8))
def test_preemption_neither_loses_nor_repeats_any(seed: int, host_blocks: int, depth: int) -> None:
    rng = random.Random(seed)
    harness = Harness(blocks=12, budget=24, rows=6, depth=depth, host_blocks=host_blocks)
    prompts = {}
    for _ in range(8):
        prompt = [rng.randrange(1000) for _ in range(rng.randrange(2, 70))]
        controls = rng.choice([SCORED, RowControls(temperature=0.0)])
        shape = rng.choice([{}, {"n": 2}, {"beams": BeamSearch(2)}])
        request = harness.submit(prompt, rng.randrange(4, 30), controls, **shape)
        prompts[request] = prompt if controls is SCORED else []
        for _ in range(rng.randrange(4)):
            harness.step()
    harness.run()
    assert harness.scheduler.counters.preemptions > 0
    for request, prompt in prompts.items():
        assert said(scores(harness, request)) == expected(prompt)
    assert harness.pool.free == harness.pool.total


@pytest.mark.parametrize("depth", [0, 1])
def test_what_was_scored_before_a_preemption_is_not_scored_again(depth: int) -> None:
    harness = Harness(blocks=6, budget=9, depth=depth)
    older = harness.submit(10, 20)  # its second block is one that the prompt would have taken
    prompt = list(range(80))
    request = harness.submit(prompt, 1, SCORED)
    harness.run()
    assert harness.scheduler.counters.preemptions == 1
    assert len(harness.tokens(older)) == 20
    assert said(scores(harness, request)) == expected(prompt)
    rows = [row for batch in harness.backend.batches for row in batch.scored]
    if depth == 0:  # else what was in flight at the preemption was scored in vain
        assert sum(len(row.targets) for row in rows) == len(prompt) - 1
    assert any(row.first for row in rows)


@pytest.mark.parametrize("depth", [0, 1])
def test_a_fault_in_a_neighbour_neither_loses_nor_repeats_any(depth: int) -> None:
    # The first row of steps 2 and 4 is a neighbour that decodes, while the prompt is computed.
    harness = Harness(budget=16, rows=4, depth=depth, nan_rows={2: [0], 4: [0]})
    neighbours = [harness.submit(3, 20) for _ in range(3)]
    prompt = list(range(90))
    request = harness.submit(prompt, 2, SCORED)
    harness.run()
    failed = [each for each in neighbours if harness.end(each).reason is FinishReason.ERROR]
    assert failed
    assert said(scores(harness, request)) == expected(prompt)


def test_a_prompt_whose_step_fails_ends_its_request() -> None:
    harness = Harness(budget=16, hooks={1: raising(RuntimeError("broken"))})
    request = harness.submit(40, 2, SCORED)
    harness.run()
    assert harness.end(request).reason is FinishReason.ERROR
