"""The real model says in a pool of 12 blocks what it says in a big one, with host memory or not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.engines import Harness
from support.float_parity import MODEL, Ask, Said, asks, differences, said

from engine.backends.cpu import on_torch
from engine.models.config import ModelConfig
from engine.models.weights import Weights

pytestmark = [
    pytest.mark.skipif(not MODEL.exists(), reason=f"{MODEL.name} is not in models/"),
    pytest.mark.timeout(1200),
]


def serve(
    model: tuple[Weights, ModelConfig],
    wanted: list[Ask],
    blocks: int,
    depth: int,
    host_blocks: int = 0,
) -> tuple[list[Said], Harness]:
    backend = on_torch(*model, blocks, host_blocks=host_blocks)
    harness = Harness(backend=backend, blocks=blocks, budget=48, rows=8, depth=depth)
    requests = [harness.submit(ask.prompt, ask.max_tokens, ask.controls) for ask in wanted]
    harness.run()
    backend.close()
    assert harness.pool.free == blocks
    return [said(harness, request) for request in requests], harness


def compare(
    model: tuple[Weights, ModelConfig],
    wanted: list[Ask],
    blocks: int,
    depths: list[int],
    record_property: Callable[[str, object], None],
    host_blocks: int = 0,
) -> None:
    """Beside a big pool; with host memory for all that gives way nothing is computed again."""
    expected, big = serve(model, wanted, 200, depth=0)
    assert big.scheduler.counters.preemptions == 0
    for depth in depths:
        found, harness = serve(model, wanted, blocks, depth, host_blocks)
        counters = harness.scheduler.counters
        assert counters.preemptions > 0
        assert (counters.recomputed_tokens > 0) == (host_blocks == 0)
        assert (counters.restored_blocks > 0) == (host_blocks > 0)
        parted = differences(wanted, expected, found)
        record_property(f"depth {depth}", {"parted": parted, "preemptions": counters.preemptions})
        assert sum(parted.values()) <= len(wanted) // 10


def test_a_few_requests_in_a_small_pool(model, record_property) -> None:
    compare(model, asks(3, max_tokens=14, longest=10), 4, [1], record_property)


@pytest.mark.slow
def test_30_requests_in_12_blocks(model, record_property) -> None:
    compare(model, asks(30, max_tokens=16, longest=90), 12, [0, 1], record_property)


@pytest.mark.slow
def test_30_requests_in_12_blocks_and_host_memory(model, record_property) -> None:
    wanted = asks(30, max_tokens=16, longest=90)
    compare(model, wanted, 12, [0, 1], record_property, host_blocks=60)
