"""The native library draws the tokens that torch draws, whatever the rest of the batch is."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.backends.runners import NativeRunner
from engine.backends.sampler import draw_in_torch, sample
from engine.controls import RowControls, SampleRow
from engine.errors import RowFault
from engine.grammar import Mask, allows
from tests.engine.native.tiny import CONFIG, ISAS, int8_weights, library

VOCAB = 3000
CONTROLS = [
    {},
    {"temperature": 0.7},
    {"temperature": 1e-3},
    {"temperature": 1e-300},
    {"temperature": 50.0},
    {"top_k": 2},
    {"top_k": 50, "temperature": 0.8},
    {"top_k": VOCAB - 1},
    {"top_k": VOCAB},
    {"top_p": 0.9},
    {"top_p": 1e-9},
    {"top_p": 0.999999},
    {"top_p": 0.5, "temperature": 3.0},
    {"top_k": 40, "top_p": 0.8, "min_p": 0.01},
    {"min_p": 0.1},
    {"min_p": 1.0},
]


@pytest.fixture(scope="module", params=ISAS)
def runner(request):
    if not library().octavo_has(request.param.encode()):
        pytest.skip(f"this processor has no {request.param}")
    made = NativeRunner(library(), int8_weights(), CONFIG, 2, threads=2, isa=request.param)
    yield made
    made.close()


def sample_rows(count: int, **controls: object) -> list[SampleRow]:
    return [SampleRow(RowControls(seed=i, **controls), 0, 9, [1] * 9, 3) for i in range(count)]


def logits_of(kind: str, rows: int) -> Tensor:
    random = torch.Generator().manual_seed(7)
    if kind == "coarse":  # many ties
        return torch.randint(-8, 9, (rows, VOCAB), generator=random).float()
    logits = torch.randn(rows, VOCAB, generator=random) * (6 if kind == "peaked" else 1)
    if kind == "masked":
        logits[:, ::3] = -math.inf
    return logits


@pytest.mark.parametrize("kind", ["flat", "peaked", "coarse", "masked"])
@pytest.mark.parametrize("controls", CONTROLS, ids=str)
def test_it_draws_what_torch_draws(runner, kind: str, controls: dict[str, float]) -> None:
    logits = logits_of(kind, 24)
    rows = sample_rows(24, **controls)
    arguments = logits, range(24), logits.amax(dim=1), rows
    assert runner.draw(*arguments).tolist() == draw_in_torch(*arguments).tolist()


def mask_of(kind: str, vocab: int, seed: int) -> Mask:
    """Which tokens may be; for some rows fewer words than the vocabulary has, or more."""
    random = np.random.default_rng(seed)
    words = max(1, -(-vocab // 32) + (0, -1, 1)[seed % 3])
    share = {"few": 0.002, "half": 0.5, "most": 0.999, "all": 1.0}[kind]
    bits = (random.random(32 * words) < share).astype(np.uint8)
    bits[seed % min(vocab, 32)] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)


def under_masks(rows: list[SampleRow], kind: str, vocab: int) -> list[SampleRow]:
    """Every fifth row has none."""
    return [
        replace(row, mask=mask_of(kind, vocab, i) if i % 5 else None) for i, row in enumerate(rows)
    ]


def choose(runner, logits: Tensor, rows: list[SampleRow]) -> list[int]:
    """What it takes; torch must take the same, whether or not it is told what is largest."""
    largest = logits.argmax(dim=1).to(torch.int32).numpy()
    sampled = sample(logits, rows, largest, runner.draw, runner.best_allowed)
    assert sampled == sample(logits, rows) == sample(logits, rows, largest)
    assert sampled == sample(logits, rows, None, runner.draw, runner.best_allowed)
    return list(sampled.tokens)


@pytest.mark.parametrize("kind", ["flat", "peaked", "coarse"])
@pytest.mark.parametrize("controls", [{"temperature": 0.0}, *CONTROLS], ids=str)
def test_under_masks_it_takes_what_torch_takes(runner, kind, controls) -> None:
    for mask in ("few", "half", "most", "all"):
        rows = under_masks(sample_rows(24, **controls), mask, VOCAB)
        tokens = choose(runner, logits_of(kind, 24), rows)
        for row, token in zip(rows, tokens, strict=True):
            assert row.mask is None or allows(row.mask, token)


@pytest.mark.parametrize("vocab", [1, 2, 7, 31, 32, 33, 63, 64, 65, 513])
def test_masks_of_vocabularies_of_any_size(runner, vocab: int) -> None:
    logits = torch.randn(15, vocab, generator=torch.Generator().manual_seed(vocab))
    for controls in ({"temperature": 0.0}, {}, {"top_k": max(1, vocab - 1)}, {"top_p": 0.7}):
        for kind in ("few", "half", "all"):
            choose(runner, logits, under_masks(sample_rows(15, **controls), kind, vocab))


def test_masks_go_with_what_else_edits(runner) -> None:
    mixed: list[dict[str, object]] = [
        {"temperature": 0.0, "logit_bias": {5: 3.0}},
        {"logit_bias": {5: 3.0}, "repetition_penalty": 1.3},
        {"temperature": 0.0, "min_tokens": 20, "stop_ids": frozenset({5, 6})},
        {"allowed_ids": frozenset(range(0, VOCAB, 2))},
    ]
    rows = [sample_rows(16, **mixed[i % 4])[i] for i in range(16)]
    choose(runner, logits_of("peaked", 16), under_masks(rows, "half", VOCAB))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rows_whose_masks_leave_nothing_are_faults(runner, temperature: float) -> None:
    rows = sample_rows(4, temperature=temperature)
    logits = logits_of("flat", 4)
    logits[3, 40] = -math.inf
    nothing, gone = np.zeros(2, np.int32), np.array([0, 1 << 8], np.int32)
    rows[1] = replace(rows[1], mask=nothing)
    rows[3] = replace(rows[3], mask=gone)
    for how in ((), (runner.draw, runner.best_allowed)):
        with pytest.raises(RowFault) as caught:
            sample(logits, rows, None, *how)
        assert list(caught.value.rows) == [1, 3]


@pytest.mark.parametrize("vocab", [1, 2, 7, 15, 16, 17, 513])
def test_a_vocabulary_may_have_any_size(runner, vocab: int) -> None:
    logits = torch.randn(8, vocab, generator=torch.Generator().manual_seed(vocab))
    for controls in ({}, {"top_k": 1}, {"top_k": max(1, vocab - 1)}, {"top_p": 0.7}):
        arguments = logits, range(8), logits.amax(dim=1), sample_rows(8, **controls)
        assert runner.draw(*arguments).tolist() == draw_in_torch(*arguments).tolist()


def test_equal_logits_all_stay_and_each_can_be_drawn(runner) -> None:
    logits = torch.zeros(200, 64)
    rows = sample_rows(200, top_k=1, top_p=0.01)
    drawn = runner.draw(logits, range(200), logits.amax(dim=1), rows)
    assert len(set(drawn.tolist())) > 40


def test_neighbours_order_and_threads_change_no_draw(runner) -> None:
    logits = logits_of("flat", 32)
    best = logits.amax(dim=1)
    rows = [sample_rows(32, **CONTROLS[i % len(CONTROLS)])[i] for i in range(32)]
    together = runner.draw(logits, range(32), best, rows).tolist()
    for i in np.random.default_rng(0).permutation(32).tolist():
        assert runner.draw(logits, [i], best[[i]], [rows[i]]).tolist() == [together[i]]
    runner.threads = 1
    assert runner.draw(logits, range(32), best, rows).tolist() == together
    runner.threads = 2


def test_rows_that_edit_rows_that_draw_and_greedy_rows_mix(runner) -> None:
    logits = logits_of("peaked", 12)
    before = logits.clone()
    mixed: list[dict[str, object]] = [
        {"temperature": 0.0},
        {"temperature": 0.0, "logit_bias": {5: 100.0}},
        {"top_k": 50, "top_p": 0.9},
        {"top_p": 0.9, "logit_bias": {5: 3.0}, "repetition_penalty": 1.3},
    ]
    rows = [sample_rows(12, **mixed[i % 4])[i] for i in range(12)]
    largest = logits.argmax(dim=1).to(torch.int32).numpy()
    natively = sample(logits, rows, largest, runner.draw)
    assert natively == sample(logits, rows) == sample(logits, rows, largest)
    assert [natively.tokens[i] for i in (1, 5, 9)] == [5, 5, 5]
    assert torch.equal(logits, before)
