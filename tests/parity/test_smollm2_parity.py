"""Greedy continuations of the real model equal transformers', 20 rows of 64 tokens."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from engine.backends.cpu import CPUBackend, create
from engine.batch import BLOCK
from engine.controls import RowControls
from tests.engine.backends.batches import Work, greedy_rows, make_batch

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
FIXTURE = ROOT / "tests" / "fixtures" / "smollm2_greedy_f32.jsonl"

TOKENS = 64
TOKEN_BUDGET = 48
CLEAR = 1e-3
"""A gap between the two best logits above which float32 may not change the choice."""

pytestmark = [
    pytest.mark.skipif(not MODEL.exists(), reason=f"{MODEL.name} is not in models/"),
    pytest.mark.timeout(1500),
]


@dataclass
class Sequence:
    """A prompt that is being continued: `margins` are the gaps between the two best logits."""

    prompt: list[int]
    table: list[int]
    computed: int = 0
    generated: list[int] = field(default_factory=list)
    margins: list[float] = field(default_factory=list)

    def work(self, budget: int) -> Work:
        known = self.prompt + self.generated
        chunk = known[self.computed :][:budget]
        return Work(self.table, self.computed, chunk, self.computed + len(chunk) == len(known))


def next_step(sequences: list[Sequence]) -> Iterator[tuple[Sequence, Work]]:
    """Decodes first, then prompts in chunks, under a token budget that cuts them."""
    budget = TOKEN_BUDGET
    for sequence in sorted(sequences, key=lambda s: not s.generated):
        if len(sequence.generated) < TOKENS and budget:
            work = sequence.work(budget)
            budget -= len(work.tokens)
            yield sequence, work


def generate(backend: CPUBackend, sequences: list[Sequence]) -> None:
    """Continue all sequences by TOKENS greedy tokens, in mixed batches."""
    controls = RowControls(temperature=0, logprobs=2)
    while step := list(next_step(sequences)):
        batch = make_batch([work for _, work in step])
        ticket = backend.submit(batch)
        backend.sample(ticket, greedy_rows(len(batch.sample_rows), controls))
        result = backend.collect(ticket)
        for sequence, work in step:
            sequence.computed += len(work.tokens)
        sampling = [sequence for sequence, work in step if work.samples]
        for sequence, token, logprobs in zip(sampling, result.tokens, result.logprobs, strict=True):
            sequence.generated.append(token)
            assert logprobs is not None
            (_, best), (_, second) = logprobs.top
            sequence.margins.append(best - second)


Expected = dict[str, Any]
"""A line of the fixture."""


@pytest.fixture(scope="module")
def rows() -> list[Expected]:
    return [json.loads(line) for line in FIXTURE.read_text().splitlines()]


@pytest.fixture(scope="module")
def continued(rows: list[Expected]) -> list[Sequence]:
    return continue_all(rows)


def continue_all(
    rows: list[Expected], kv_dtype: str = "float32", *, from_the_last: bool = False
) -> list[Sequence]:
    """Every row's prompt, continued: all of them together in one cache.

    from_the_last: blocks are handed out in the opposite order.
    """
    backend = create(MODEL, kv_memory_bytes=160 << 20, kv_dtype=kv_dtype)
    blocks = iter(range(backend.total_blocks)[:: -1 if from_the_last else 1])
    sequences = []
    for row in rows:
        length = -(-(len(row["prompt_ids"]) + TOKENS) // BLOCK)
        sequences.append(Sequence(row["prompt_ids"], [next(blocks) for _ in range(length)]))
    generate(backend, sequences)
    backend.close()
    return sequences


def first_difference(sequence: Sequence, row: Expected) -> int | None:
    pairs = zip(sequence.generated, row["greedy_ids"], strict=True)
    return next((i for i, (ours, theirs) in enumerate(pairs) if ours != theirs), None)


def test_rows_with_a_clear_margin_are_equal_in_full(
    rows: list[Expected], continued: list[Sequence]
):
    clear = [i for i, row in enumerate(rows) if row["min_margin"] > CLEAR]
    assert len(clear) == 19
    for i in clear:
        assert continued[i].generated == rows[i]["greedy_ids"], rows[i]["prompt"]


def test_other_rows_differ_first_where_two_logits_are_close(
    rows: list[Expected],
    continued: list[Sequence],
    record_property: Callable[[str, object], None],
):
    differing = 0
    for sequence, row in zip(continued, rows, strict=True):
        at = first_difference(sequence, row)
        if at is not None:
            differing += 1
            assert sequence.margins[at] < CLEAR, (row["prompt"], at)
    record_property("rows that differ", differing)
    assert differing <= 1


def test_the_smallest_margin_of_each_row_is_the_same(
    rows: list[Expected], continued: list[Sequence]
):
    for sequence, row in zip(continued, rows, strict=True):
        if first_difference(sequence, row) is None:
            assert min(sequence.margins) == pytest.approx(row["min_margin"], abs=2e-4)


@pytest.mark.slow
@pytest.mark.parametrize("kv_dtype", ["bfloat16", "int8"])
def test_a_smaller_cache_says_the_same_in_whatever_blocks_it_is(
    rows: list[Expected], kv_dtype: str, record_property: Callable[[str, object], None]
):
    """What rounding changes is recorded: rows equal to float32, in full or up to a close call."""
    found = continue_all(rows, kv_dtype)
    elsewhere = continue_all(rows, kv_dtype, from_the_last=True)
    for one, other in zip(found, elsewhere, strict=True):
        assert (one.generated, one.margins) == (other.generated, other.margins)
    first = [first_difference(sequence, row) for sequence, row in zip(found, rows, strict=True)]
    close = [at is not None and s.margins[at] < CLEAR for at, s in zip(first, found, strict=True)]
    record_property("rows equal in full", first.count(None))
    record_property("rows equal up to a close call", first.count(None) + sum(close))
