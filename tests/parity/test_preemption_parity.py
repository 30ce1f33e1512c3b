"""The real model says in a pool of 12 blocks what it says in a big one, with host memory or not.

In float32 the sums of a batch depend a little on what else is in it. So greedy tokens may differ
where the two best logits are closer than CLEAR, and a draw where it falls that close to the border
between two tokens: differences are counted, and what comes after the first is not compared.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from support.engines import Harness

from engine.backends.cpu import CPUBackend
from engine.controls import RowControls, TokenLogprobs
from engine.models.config import ModelConfig
from engine.models.files import load_weights, read_config
from engine.models.weights import Weights
from engine.outputs import Finish

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
FIXTURE = ROOT / "tests" / "fixtures" / "smollm2_greedy_f32.jsonl"

CLEAR = 1e-3
"""A gap between the two best logits above which float32 may not change the choice."""

pytestmark = [
    pytest.mark.skipif(not MODEL.exists(), reason=f"{MODEL.name} is not in models/"),
    pytest.mark.timeout(1200),
]


@dataclass(frozen=True)
class Ask:
    prompt: list[int]
    max_tokens: int
    controls: RowControls

    @property
    def greedy(self) -> bool:
        return self.controls.temperature == 0


@dataclass(frozen=True)
class Said:
    tokens: list[int]
    logprobs: list[TokenLogprobs]
    finish: Finish | None


def controls(number: int) -> RowControls:
    """In turn: greedy, sampled, and sampled under every penalty; logprobs always.

    Without top_k many draws end among thousands of tokens so unlikely that rounding tells them
    apart.
    """
    if number % 3 == 0:
        return RowControls(temperature=0.0, logprobs=2)
    penalties = {"presence_penalty": 0.6, "frequency_penalty": 0.3, "repetition_penalty": 1.1}
    return RowControls(seed=number, top_k=20, logprobs=2, **penalties if number % 3 == 1 else {})


def asks(count: int, max_tokens: int, longest: int) -> list[Ask]:
    """The prompts of the fixture, over and over, with lengths and controls that differ."""
    rows = [json.loads(line)["prompt_ids"] for line in FIXTURE.read_text().splitlines()]
    prompts = [row for row in rows if len(row) <= longest]
    return [
        Ask(prompts[number % len(prompts)], max_tokens + number % 7, controls(number))
        for number in range(count)
    ]


@pytest.fixture(scope="module")
def model() -> Iterator[tuple[Weights, ModelConfig]]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # threads that wait for each other cost more on a busy machine
    config = read_config(MODEL)
    yield load_weights(MODEL, config), config
    torch.set_num_threads(before)


def serve(
    model: tuple[Weights, ModelConfig],
    wanted: list[Ask],
    blocks: int,
    depth: int,
    host_blocks: int = 0,
) -> tuple[list[Said], Harness]:
    backend = CPUBackend(*model, blocks, host_blocks=host_blocks)
    harness = Harness(backend=backend, blocks=blocks, budget=48, rows=8, depth=depth)
    requests = [harness.submit(ask.prompt, ask.max_tokens, ask.controls) for ask in wanted]
    harness.run()
    backend.close()
    assert harness.pool.free == blocks
    said = []
    for request in requests:
        outputs = harness.outputs[request, 0]
        logprobs = [each for output in outputs for each in output.logprobs]
        said.append(Said(harness.tokens(request), logprobs, harness.end(request)))
    return said, harness


def differences(wanted: list[Ask], expected: list[Said], found: list[Said]) -> dict[str, int]:
    """How many greedy and drawn texts part, each where it may; all else must be equal."""
    parted = {"greedy": 0, "drawn": 0}
    for ask, ours, theirs in zip(wanted, found, expected, strict=True):
        pairs = zip(ours.tokens, theirs.tokens, strict=False)
        at = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
        if at is None:
            assert (ours.tokens, ours.finish) == (theirs.tokens, theirs.finish)
        elif ask.greedy:
            (_, best), (_, second) = theirs.logprobs[at].top
            assert best - second < CLEAR, (ask, at)
            parted["greedy"] += 1
        else:
            parted["drawn"] += 1
        for a, b in zip(ours.logprobs[:at], theirs.logprobs[:at], strict=True):
            assert a.logprob == pytest.approx(b.logprob, abs=CLEAR)
    return parted


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
