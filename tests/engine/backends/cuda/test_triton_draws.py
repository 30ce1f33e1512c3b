"""Draws in Triton are those in plain torch, to the token, and sampling through them the CPU's."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton")

from support.cpu_device import CPUDevice
from support.interpreter import interpreted

from engine.backends.cuda.draw import DrawControls
from engine.backends.cuda.kernels.draws import BLOCK, draw_in_triton
from engine.backends.cuda.sampler import DeviceSampler
from engine.backends.cuda.torch_draw import draw_in_torch
from engine.backends.sampler import sample
from engine.controls import RowControls, SampleRow

CONTROLS = [
    RowControls(seed=1),
    RowControls(seed=2, top_k=5, temperature=0.7),
    RowControls(seed=3, top_p=0.8, logit_bias={4: 2.0}),
    RowControls(seed=4, min_p=0.1, allowed_ids=frozenset({1, 2, 3, 9})),
    RowControls(seed=5, top_k=40, top_p=0.9, min_p=0.01, temperature=1.5),
    RowControls(temperature=0.0),
]


@pytest.fixture(autouse=True)
def _interpreted() -> Iterator[None]:
    with interpreted():
        yield


def column(draw: st.DrawFn, rows: int, values: list[float], dtype: torch.dtype) -> torch.Tensor:
    chosen = draw(st.lists(st.sampled_from(values), min_size=rows, max_size=rows))
    return torch.tensor(chosen, dtype=dtype)[:, None]


@st.composite
def draws(draw: st.DrawFn) -> tuple[torch.Tensor, DrawControls]:
    """Logits, with forbidden and tying tokens among them, and every mixture of filters."""
    vocab = draw(st.sampled_from([1, 3, 50, BLOCK, BLOCK + 7]))
    rows, seed = draw(st.integers(1, 3)), draw(st.integers(0, 2**32))
    rng = np.random.default_rng(seed)
    logits = torch.from_numpy(rng.normal(0, draw(st.sampled_from([0.01, 2.0, 9.0])), (rows, vocab)))
    logits = logits.to(draw(st.sampled_from([torch.float32, torch.bfloat16]))).float()
    logits[:, 1 :: draw(st.integers(2, 5))] = draw(st.sampled_from([-math.inf, 0.0, -0.0]))
    some = [
        column(draw, rows, [vocab, 1, min(3, vocab), min(40, vocab)], torch.int64),
        column(draw, rows, [1.0, 0.9, 0.5, 1e-9, 0.0, 1 - 2**-53], torch.float64),
        column(draw, rows, [0.0, 0.1, 1.0], torch.float64),
    ]
    filters = [each if draw(st.booleans()) else None for each in some]
    temperature = column(draw, rows, [0.3, 1.0, 1.7, 40.0, 1e-6, 5e-324], torch.float64)
    uniform = column(draw, rows, [0.0, *rng.random(4), 1 - 2**-53], torch.float64)
    return logits, DrawControls(temperature, uniform, *filters)


@settings(max_examples=30)
@given(draws())
def test_a_draw_gives_the_token_that_plain_torch_gives(case: tuple[torch.Tensor, DrawControls]):
    logits, controls = case
    before, best = logits.clone(), logits.amax(dim=-1)
    found = draw_in_triton(logits, best, controls)
    assert found.tolist() == draw_in_torch(logits, best, controls).tolist()
    assert found.dtype == torch.int64
    assert torch.equal(logits, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_sampler_that_draws_in_triton_gives_the_cpu_samplers_tokens(dtype: torch.dtype):
    rows = [SampleRow(controls, 0, place, (), 0) for place, controls in enumerate(CONTROLS * 3)]
    values = np.random.default_rng(5).normal(0, 2, (len(rows), 2500)).astype(np.float32)
    logits = torch.from_numpy(values).to(dtype)
    pending = DeviceSampler(CPUDevice(), draw_in_triton).sample(logits, rows)
    assert pending.collect().tokens == sample(logits.float(), rows).tokens


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_row_at_fault_gets_some_token_and_its_neighbours_theirs(value: float):
    logits = torch.randn(3, 60, generator=torch.Generator().manual_seed(0))
    logits[1] = value
    ones = torch.ones(3, 1, dtype=torch.float64)
    controls = DrawControls(ones, 0.4 * ones, 7 * ones.long(), 0.9 * ones, 0.01 * ones)
    tokens = draw_in_triton(logits, logits.amax(dim=-1), controls)
    assert 0 <= tokens[1] < 60
    others = [0, 2]
    alone = DrawControls(*(column[others] for column in controls))
    expected = draw_in_torch(logits[others], logits[others].amax(dim=-1), alone)
    assert tokens[others].tolist() == expected.tolist()
