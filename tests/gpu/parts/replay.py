"""A graph that is replayed while KV grows computes what is computed without it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from engine.backends.cuda.model import random_weights
from tests.engine.backends.batches import Work, make_batch
from tests.gpu.bed import Bed
from tests.gpu.findings import Finding
from tests.gpu.rooms import blocks_of, decodes, rooms, tables

ERROR = 2e-2
"""Between two ways in bfloat16, relative to the largest logit: sums are split otherwise."""


def run(bed: Bed) -> Iterator[Finding]:
    config, rows = bed.sizes.tiny, 3
    weights = random_weights(config, 3, bed.device.torch_device, bed.dtype)
    total = 5 + bed.sizes.growth
    made = rooms(bed, weights, config, 2 * blocks_of(rows, total), [rows, 4])
    places = tables(2 * rows, total)
    texts = np.random.default_rng(2).integers(0, config.vocab, (rows, total)).tolist()
    eager, captured = places[:rows], places[rows:]
    prompts = [Work(place, 0, text[:5]) for place, text in zip(places, texts + texts, strict=True)]
    made.logits(make_batch(prompts))
    worst, parted = 0.0, 0
    for position in range(5, total):
        tokens = [text[position] for text in texts]
        # Fewer rows at times, so that the larger bucket is padded.
        n = rows - (position % 3 == 0)
        one = made.logits(decodes(eager[:n], position, tokens[:n])).float()
        other = made.logits(decodes(captured[:n], position, tokens[:n]), graph=True).float()
        if n < rows:
            for blocks in (eager, captured):
                made.logits(decodes(blocks[n:], position, tokens[n:]))
        worst = max(worst, float((one - other).abs().max() / one.abs().max()))
        parted += int((one.argmax(-1) != other.argmax(-1)).sum())
    name = f"{bed.sizes.growth} decodes over growing KV"
    yield Finding("replay", name, worst, at_most=ERROR)
    yield Finding("replay", "best tokens that differ", float(parted), f"of {rows * (total - 5)}")
