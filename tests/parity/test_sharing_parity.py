"""The real model says the same with the prefix cache as without, and in a group alone or beside
others."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.engines import Harness
from support.float_parity import MODEL, Ask, Said, asks, differences

from engine.backends.cpu import on_torch

pytestmark = [
    pytest.mark.skipif(not MODEL.exists(), reason=f"{MODEL.name} is not in models/"),
    pytest.mark.timeout(600),
    pytest.mark.slow,
]

BLOCKS = 200
GROUP = 4


def house(model, *, cache: bool) -> Harness:
    backend = on_torch(*model, BLOCKS)
    return Harness(backend=backend, blocks=BLOCKS, budget=48, rows=16, prefix_cache=cache)


def said(harness: Harness, request: int, index: int = 0) -> Said:
    outputs = harness.outputs[request, index]
    tokens = [token for output in outputs for token in output.tokens]
    logprobs = [each for output in outputs for each in output.logprobs]
    return Said(tokens, logprobs, outputs[-1].finish)


def rounds(model, wanted: list[Ask], *, cache: bool) -> tuple[list[list[Said]], int]:
    """All of them at once, and when they have ended all of them again."""
    harness = house(model, cache=cache)
    found = []
    for _ in range(2):
        requests = [harness.submit(ask.prompt, ask.max_tokens, ask.controls) for ask in wanted]
        harness.run()
        found.append([said(harness, request) for request in requests])
    harness.backend.close()
    return found, harness.scheduler.counters.cached_tokens


def test_what_is_found_in_the_prefix_cache_changes_no_answer(model, record_property) -> None:
    wanted = asks(12, max_tokens=10, longest=120)
    expected, without = rounds(model, wanted, cache=False)
    found, cached = rounds(model, wanted, cache=True)
    assert without == 0
    assert cached > 0.5 * sum(len(ask.prompt) for ask in wanted)
    for first, second in zip(expected, found, strict=True):
        parted = differences(wanted, first, second)
        record_property("parted", parted)
        assert sum(parted.values()) <= 2


def test_a_group_says_the_same_alone_and_beside_neighbours(model, record_property) -> None:
    one, *others = asks(9, max_tokens=12, longest=60)
    one = replace(one, controls=replace(one.controls, temperature=0.9, top_k=20, seed=7))

    def group(neighbours: list[Ask]) -> list[Said]:
        harness = house(model, cache=True)
        for ask in neighbours:
            harness.submit(ask.prompt, ask.max_tokens, ask.controls)
        request = harness.submit(one.prompt, one.max_tokens, one.controls, n=GROUP)
        harness.run()
        harness.backend.close()
        return [said(harness, request, index) for index in range(GROUP)]

    alone, beside = group([]), group(others)
    assert len({tuple(each.tokens) for each in alone}) > 1, "the samples differ"
    parted = differences([one] * GROUP, alone, beside)
    record_property("parted", parted)
    assert sum(parted.values()) <= 1
