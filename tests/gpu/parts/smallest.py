"""A few tokens through every kernel, for whoever looks at each access to memory."""

from __future__ import annotations

from collections.abc import Iterator

from engine.backends.cuda.model import random_weights
from tests.engine.backends.batches import Work, make_batch
from tests.gpu.bed import Bed
from tests.gpu.findings import Finding
from tests.gpu.rooms import decodes, rooms


def run(bed: Bed) -> Iterator[Finding]:
    config = bed.sizes.tiny
    weights = random_weights(config, 0, bed.device.torch_device, bed.dtype)
    made = rooms(bed, weights, config, 6, [2])
    places = [[5, 0], [3, 1]]
    made.logits(make_batch([Work(place, 0, list(range(17))) for place in places]))
    for position in (17, 18):
        made.logits(decodes(places, position, [1, 2]), graph=position == 18)
    bed.device.synchronize()
    yield Finding("smallest", "steps", 3.0)
