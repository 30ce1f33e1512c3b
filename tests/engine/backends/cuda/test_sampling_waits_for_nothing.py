"""Sampling on a device whose tensors are not the host's: the host looks at nothing before it
collects, and what it then finds is what a CPU has sampled."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.cpu_device import CPUDevice
from support.strict_device import StrictDevice

from engine.backends.cuda.sampler import DeviceSampler
from engine.controls import RowControls, Sampled, SampleRow, ScoredRow

VOCAB = 70
GREEDY = RowControls(temperature=0.0)
CONTROLS = {
    "greedy": GREEDY,
    "drawn": RowControls(temperature=0.7, seed=3),
    "top_k": RowControls(top_k=5),
    "top_p": RowControls(top_p=0.8),
    "min_p": RowControls(min_p=0.1),
    "all three": RowControls(top_k=9, top_p=0.9, min_p=0.01),
    "bias": RowControls(logit_bias={3: 4.0, 9: -100.0}),
    "allowed": RowControls(allowed_ids=frozenset({1, 5, 60})),
    "penalties": RowControls(
        repetition_penalty=1.3, frequency_penalty=0.5, presence_penalty=0.2, temperature=0.0
    ),
    "bad words": RowControls(bad_words=((4,), (5, 6)), temperature=0.0),
    "too early": RowControls(min_tokens=9, eos_ids=frozenset({2})),
    "logprobs": RowControls(logprobs=4),
    "beams": RowControls(beams=3, temperature=0.0, eos_ids=frozenset({2})),
}


def row(controls: RowControls) -> SampleRow:
    return SampleRow(controls, 0, 4, [3, 4, 4, 5], 2)


def sampled(device: CPUDevice, logits: np.ndarray, rows, scored, dtype) -> Sampled:
    with device.active():
        there = device.upload(logits).to(dtype)
        before = device.waits
        pending = DeviceSampler(device).sample(there, rows, scored)
        following = there.index_select(0, pending.tokens.clamp(max=1))
        assert device.waits == before
        assert len(following) == len(rows)
        return pending.collect()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mixed", [False, True], ids=["alone", "among greedy rows"])
@pytest.mark.parametrize("controls", CONTROLS.values(), ids=CONTROLS)
def test_controls_wait_for_nothing(controls, mixed, dtype):
    rows = [row(controls), *[row(GREEDY)] * mixed, row(controls)]
    logits = np.random.default_rng(1).normal(0, 2, (len(rows), VOCAB)).astype(np.float32)
    there, here = (
        sampled(device, logits, rows, (), dtype) for device in (StrictDevice(), CPUDevice())
    )
    assert there == here


def test_all_controls_and_scores_together_wait_for_nothing():
    rows = [row(controls) for controls in CONTROLS.values()]
    scored = (ScoredRow(0, 0, tuple(range(65)), 2), ScoredRow(1, 0, (4,), 0))
    logits = np.random.default_rng(1).normal(0, 2, (len(rows) + 66, VOCAB)).astype(np.float32)
    there, here = (
        sampled(device, logits, rows, scored, torch.float32)
        for device in (StrictDevice(), CPUDevice())
    )
    assert there == here


def test_a_step_without_samples_waits_for_nothing():
    logits = np.zeros((0, VOCAB), np.float32)
    assert sampled(StrictDevice(), logits, [], (), torch.bfloat16).tokens == []
