"""The device's sampler draws what the CPU's draws from the same logits."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from engine.backends.cuda.sampler import DeviceSampler
from engine.backends.sampler import sample
from engine.controls import RowControls, SampleRow
from tests.gpu.bed import Bed
from tests.gpu.findings import Finding

CONTROLS = (
    RowControls(temperature=0.0),
    RowControls(temperature=0.8),
    RowControls(temperature=1.0, top_k=40),
    RowControls(temperature=1.3, top_p=0.9),
    RowControls(temperature=1.0, min_p=0.05, logit_bias={3: 4.0}),
    RowControls(temperature=0.9, top_k=100, top_p=0.95, repetition_penalty=1.2),
)
MOST_PARTED = 0.01
"""Of the draws: what lies within rounding of the border between two tokens."""


def run(bed: Bed) -> Iterator[Finding]:
    vocab, count = bed.sizes.large.vocab, 64
    random = torch.Generator().manual_seed(4)
    logits = 3 * torch.randn((count, vocab), generator=random)
    rows = [
        SampleRow(CONTROLS[i % len(CONTROLS)], i, 20 + i, [5, 6, 7, i % vocab], 2)
        for i in range(count)
    ]
    expected = list(sample(logits, rows).tokens)
    sampler = DeviceSampler(bed.device)
    on_device = logits.to(bed.device.torch_device)
    with bed.device.active():
        found = list(sampler.sample(on_device, rows).collect().tokens)
        order = list(reversed(range(count)))
        turned = sampler.sample(on_device[order], [rows[i] for i in order]).collect().tokens
    parted = sum(a != b for a, b in zip(expected, found, strict=True)) / count
    yield Finding("sampling", "draws other than the CPU's", parted, at_most=MOST_PARTED)
    moved = sum(a != b for a, b in zip(reversed(found), turned, strict=True))
    yield Finding("sampling", "draws that depend on the row", float(moved), at_most=0.0)
    took = bed.seconds(lambda: sampler.sample(on_device, rows), bed.sizes.repeats)
    yield Finding("sampling", f"{count} rows of mixed controls", 1e3 * took, "ms")
