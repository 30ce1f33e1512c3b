"""Log-probabilities of prompts: those that the same tokens would have had as answers."""

from pathlib import Path

import numpy as np
import pytest
import torch
from support.engines import Harness

from engine.backends.cpu import create
from engine.backends.sampler import SCORED_AT_ONCE, score
from engine.controls import RowControls, ScoredRow
from engine.errors import RowFault
from tests.engine.models.tiny_llama import CONFIG, random_tensors, write_gguf

PROMPT = [int(t) for t in np.random.default_rng(0).integers(0, CONFIG.vocab, 40)]
ANSWERED = RowControls(temperature=0.0, logprobs=3)
SCORED = RowControls(temperature=0.0, logprobs=3, prompt_logprobs=3)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_gguf(path, random_tensors())
    return path


@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("budget", [16, 25, 256])
def test_a_prompt_is_as_likely_as_it_was_as_an_answer(path, dtype, depth, budget):
    backend = create(path, dtype=dtype, kv_memory_bytes=1 << 20)
    harness = Harness(backend=backend, blocks=backend.total_blocks, depth=depth, budget=budget)
    first = harness.submit(PROMPT, 30, ANSWERED)
    harness.run()
    answer = harness.tokens(first)
    known = [each for output in harness.outputs[first, 0] for each in output.logprobs]

    neighbour = harness.submit(PROMPT[:7], 20)
    again = harness.submit([*PROMPT, *answer], 1, SCORED)
    harness.run()
    scored = harness.outputs[again, 0][0].prompt_logprobs
    assert len(scored) == len(PROMPT) + len(answer) - 1
    assert len(harness.tokens(neighbour)) == 20
    for one, other in zip(scored[len(PROMPT) - 1 :], known, strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
        values = [logprob for _, logprob in other.top]
        assert [logprob for _, logprob in one.top] == pytest.approx(values, abs=1e-4)


def test_each_row_has_as_many_alternatives_as_it_asks_for():
    logits = torch.randn(2 * SCORED_AT_ONCE + 9, 50)
    targets = [int(token) for token in logits.argmax(dim=-1)]
    split = SCORED_AT_ONCE + 5
    rows = [ScoredRow(4, 0, targets[:split], 0), ScoredRow(7, 3, targets[split:], 2)]
    none, two = score(logits, rows)
    assert [each.top for each in none] == [()] * split
    assert [each.top[0] for each in two] == [
        (token, each.logprob) for token, each in zip(targets[split:], two, strict=True)
    ]
    expected = logits.double().log_softmax(dim=-1).amax(dim=-1).tolist()
    assert [each.logprob for each in [*none, *two]] == expected
    assert {each.rank for each in [*none, *two]} == {1}


def test_a_rank_counts_the_tokens_that_are_likelier():
    logits = torch.tensor([[3.0, 1.0, 2.0, 1.0]] * 4)
    (known,) = score(logits, [ScoredRow(0, 0, [0, 1, 2, 3], 1)])
    assert [each.rank for each in known] == [1, 3, 2, 3]


def test_logits_that_are_not_finite_are_a_fault_of_their_row():
    logits = torch.zeros(3, 5)
    logits[2, 1] = torch.nan
    rows = [ScoredRow(1, 0, [0, 1], 0), ScoredRow(6, 0, [2], 0)]
    with pytest.raises(RowFault) as caught:
        score(logits, rows)
    assert list(caught.value.rows) == [6]
