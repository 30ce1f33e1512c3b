"""n sequences of one request: a random stream each, their own ends, one prompt.

What holds: what sequence i says depends on prompt, controls, seed and i alone. So n = 2 gives the
first two of n = 4, the first of which is what the request says with n = 1, and a second call gives
the same. Over made-up logits (`support.hashed`) that is true to the bit; on a float32 model as far
as float32 goes, because a sibling computes its last prompt token in another batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from support.engines import Harness
from support.hashed import HashedBackend

from engine.backends.cpu import on_torch
from engine.controls import RowControls, TokenLogprobs
from engine.outputs import FinishReason

PROMPT = [(7 * i) % 61 for i in range(37)]
SAMPLED = RowControls(seed=5, temperature=1.0, logprobs=3)
GREEDY = RowControls(temperature=0.0, logprobs=3)
TOKENS = 12
BLOCKS = 40

Engines = Callable[..., Harness]


@pytest.fixture(params=["hashed", "model"])
def engines(request: pytest.FixtureRequest, tiny: tuple) -> Engines:
    """Makes engines over made-up logits, or over a real model."""

    def make(blocks: int = BLOCKS, **options) -> Harness:
        real = request.param == "model"
        backend = on_torch(*tiny, blocks) if real else HashedBackend(blocks)
        return Harness(blocks=blocks, backend=backend, budget=24, model_len=128, **options)

    return make


def ask(harness: Harness, controls: RowControls, n: int, max_tokens: int = TOKENS) -> int:
    return harness.submit(PROMPT, max_tokens, controls, n=n)


def texts(engines: Engines, controls: RowControls, n: int, **options) -> list[list[int]]:
    harness = engines(**options)
    request = ask(harness, controls, n)
    harness.run()
    return [harness.tokens(request, index) for index in range(n)]


def logprobs(harness: Harness, request: int, index: int) -> list[TokenLogprobs]:
    return [each for output in harness.outputs[request, index] for each in output.logprobs]


@pytest.mark.parametrize("depth", [0, 1])
def test_sequences_under_one_seed_differ_and_come_again_in_the_same_order(engines, depth) -> None:
    first = texts(engines, SAMPLED, 4, depth=depth)
    assert len({tuple(text) for text in first}) == 4
    assert texts(engines, SAMPLED, 4, depth=depth) == first
    assert texts(engines, replace(SAMPLED, seed=6), 4, depth=depth) != first


@pytest.mark.parametrize("controls", [GREEDY, replace(SAMPLED, top_k=1)])
def test_greedy_sequences_are_equal(engines, controls: RowControls) -> None:
    first, *others = texts(engines, controls, 4)
    assert others == [first] * 3


@pytest.mark.parametrize("n", [1, 2, 3])
def test_fewer_sequences_say_what_the_first_of_more_say(engines, n: int) -> None:
    assert texts(engines, SAMPLED, n) == texts(engines, SAMPLED, 4)[:n]


@pytest.mark.parametrize("depth", [0, 1])
def test_streams_do_not_depend_on_depth_neighbours_or_preemption(engines, depth: int) -> None:
    expected = texts(engines, SAMPLED, 4)
    harness = engines(blocks=14, depth=depth)
    others = [harness.submit(PROMPT[:20], 50, RowControls(seed=i), n=2) for i in range(2)]
    group = ask(harness, SAMPLED, 4)
    harness.run()
    assert [harness.tokens(group, index) for index in range(4)] == expected
    assert harness.scheduler.counters.preemptions > 0
    assert all(len(harness.tokens(other, index)) == 50 for other in others for index in (0, 1))


@pytest.mark.parametrize("depth", [0, 1])
def test_each_index_is_told_its_own_tokens_and_one_end(engines, depth: int) -> None:
    harness = engines(depth=depth)
    eos = frozenset(range(0, 61, 9))
    request = ask(harness, replace(SAMPLED, temperature=2.0, eos_ids=eos, seed=1), 4)
    harness.run()
    assert {key for key in harness.outputs if key[0] == request} == {(request, i) for i in range(4)}
    lengths = set()
    for index in range(4):
        outputs = harness.outputs[request, index]
        assert [output.finish is not None for output in outputs[:-1]] == [False] * (
            len(outputs) - 1
        )
        tokens = harness.tokens(request, index)
        if outputs[-1].finish.reason is FinishReason.STOP:
            assert outputs[-1].finish.stop_token == tokens[-1]
            assert tokens[-1] in eos
        else:
            assert len(tokens) == TOKENS
        assert not set(tokens[:-1]) & eos
        lengths.add(len(tokens))
    assert len(lengths) > 1, "all ended at the same length"
    total = sum(len(harness.tokens(request, index)) for index in range(4))
    assert harness.scheduler.counters.generated_tokens == total
    assert harness.scheduler.counters.finished == 1


@pytest.mark.parametrize("n", [1, 4])
def test_the_prompt_is_computed_once_whatever_n(engines, n: int) -> None:
    harness = engines()
    ask(harness, SAMPLED, n)
    harness.run()
    # A sibling computes the last prompt token again, to have logits of its own.
    assert harness.scheduler.counters.prompt_tokens == len(PROMPT) + n - 1


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("tokens", [0, 1, 5])
def test_an_abort_in_the_middle_frees_all_four(engines, tokens: int, depth: int) -> None:
    harness = engines(depth=depth)
    request = ask(harness, SAMPLED, 4)
    while len(harness.tokens(request, 0)) < tokens:
        harness.step()
    harness.step()
    assert harness.pool.free < BLOCKS
    harness.abort(request)
    harness.run()
    assert harness.pool.free == BLOCKS
    assert harness.scheduler.counters.cancelled == 1
    assert all(harness.end(request, index) is None for index in range(4))


# ── log-probabilities ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("count", [0, 1, 5])
@pytest.mark.parametrize("depth", [0, 1])
def test_each_token_of_each_sequence_has_its_logprobs(engines, depth: int, count: int) -> None:
    harness = engines(depth=depth)
    request = ask(harness, replace(SAMPLED, logprobs=count), 3)
    harness.run()
    for index in range(3):
        found = logprobs(harness, request, index)
        assert len(found) == TOKENS
        for token, each in zip(harness.tokens(request, index), found, strict=True):
            values = [value for _, value in each.top]
            assert len(values) == count
            assert values == sorted(values, reverse=True)
            assert max([each.logprob, *values]) <= 0
            assert math.fsum(map(math.exp, values)) <= 1 + 1e-9
            assert dict(each.top).get(token, each.logprob) == each.logprob


def test_no_logprobs_unless_asked_for(engines) -> None:
    harness = engines()
    request = ask(harness, replace(SAMPLED, logprobs=None), 2)
    harness.run()
    assert all(output.logprobs == () for i in (0, 1) for output in harness.outputs[request, i])


def test_logprobs_of_a_forced_text_are_the_same_at_any_temperature_and_index(engines) -> None:
    forced = {"logit_bias": {17: 100.0}, "logprobs": 5}
    harness = engines(rows=6)
    cold = ask(harness, RowControls(temperature=0.0, **forced), 2)
    warm = ask(harness, RowControls(seed=3, temperature=1.5, top_k=4, **forced), 2)
    harness.run()
    first, *others = (
        (harness.tokens(request, index), logprobs(harness, request, index))
        for request in (cold, warm)
        for index in (0, 1)
    )
    assert first[0] == [17] * TOKENS
    assert all(each.logprob < -1 for each in first[1]), "the bias would show"
    for tokens, found in others:
        assert tokens == first[0]
        for a, b in zip(found, first[1], strict=True):
            assert a.logprob == pytest.approx(b.logprob, abs=1e-4)
            assert [t for t, _ in a.top] == [t for t, _ in b.top]
            assert [v for _, v in a.top] == pytest.approx([v for _, v in b.top], abs=1e-4)


@pytest.mark.parametrize("depth", [0, 1])
def test_over_made_up_logits_the_streams_are_the_same_to_the_bit(depth: int) -> None:
    def play(blocks: int, n: int) -> list[tuple[list[int], list[TokenLogprobs]]]:
        harness = Harness(blocks=blocks, backend=HashedBackend(blocks), budget=24, depth=depth)
        first = harness.submit(PROMPT, 40, replace(SAMPLED, frequency_penalty=0.5), n=n)
        harness.submit(PROMPT, 40, replace(SAMPLED, seed=8), n=2)
        harness.run()
        return [(harness.tokens(first, i), logprobs(harness, first, i)) for i in range(n)]

    assert play(10, n=2) == play(200, n=2) == play(200, n=4)[:2]
    assert play(200, n=1) == play(200, n=4)[:1]
