"""Decode steps of a large model against the time in which its bytes can be read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from engine.backends.cuda.graphs import DecodeGraphs
from engine.backends.cuda.model import random_weights, weight_bytes
from engine.batch import Batch
from engine.models.weights import Weights
from tests.gpu.bed import Bed, copy_bandwidth
from tests.gpu.findings import Finding
from tests.gpu.rooms import Rooms, blocks_of, decodes, kv_bytes, rooms, tables
from tests.gpu.sizes import Sizes

OVER_FLOOR = 1.3
"""What a step may take, of its floor, for up to 64 sequences."""

PROMISED_ROWS = 64


def run(bed: Bed) -> Iterator[Finding]:
    config, sizes = bed.sizes.large, bed.sizes
    rate = copy_bandwidth(bed)
    yield Finding("decode", "copy", rate / 1e9, "GB/s")
    weights = random_weights(config, 0, bed.device.torch_device, bed.dtype)
    most = max(sizes.decode_rows)
    made = rooms(bed, weights, config, blocks_of(most, sizes.context), sizes.decode_rows)
    # Of an embedding that is not the head too, a step reads a row for each token.
    read_once = weight_bytes(weights)
    if not config.tied_head:
        read_once -= weights.embedding.nbytes
    for rows in sizes.decode_rows:
        floor = (read_once + rows * sizes.context * kv_bytes(config, made.pool)) / rate
        yield from _steps(made, rows, floor)
    if not bed.rehearsed:
        yield from _in_triton(made)
        yield from _in_fp8(made, weights)


def _in_triton(made: Rooms) -> Iterator[Finding]:
    """The most important step with Triton's attention in FlashInfer's place, over the same pool."""
    from engine.backends.cuda.triton_attention import TritonAttention

    bed, rows = made.bed, made.bed.sizes.decode_rows[0]
    attention = TritonAttention(bed.device, made.pool.layers, bed.sizes.large.heads)
    graphs = DecodeGraphs(bed.device, made.decoder, made.pool, attention, [rows])
    other = replace(made, attention=attention, graphs=graphs)
    batch = _full_batch(bed.sizes, rows)
    took = bed.seconds(lambda: other.logits(batch, graph=True).argmax(-1), bed.sizes.repeats)
    what = f"{rows} sequences of {bed.sizes.context}: a step, Triton attends"
    yield Finding("decode", what, 1e3 * took, "ms")


def _in_fp8(made: Rooms, weights: Weights) -> Iterator[Finding]:
    """The most important step over a cache in fp8."""
    bed, rows = replace(made.bed, kv_dtype="fp8"), made.bed.sizes.decode_rows[0]
    sizes = bed.sizes
    other = rooms(bed, weights, sizes.large, blocks_of(rows, sizes.context), [rows])
    batch = _full_batch(sizes, rows)
    took = bed.seconds(lambda: other.logits(batch, graph=True).argmax(-1), sizes.repeats)
    yield Finding(
        "decode", f"{rows} sequences of {sizes.context}: a step, KV in fp8", 1e3 * took, "ms"
    )


def _full_batch(sizes: Sizes, rows: int) -> Batch:
    """The last step of so many sequences of the whole context."""
    tokens = [(7 * i) % sizes.large.vocab for i in range(rows)]
    return decodes(tables(rows, sizes.context), sizes.context - 1, tokens)


def _steps(made: Rooms, rows: int, floor: float) -> Iterator[Finding]:
    """Steps of so many sequences: by a graph, and without."""
    sizes, bed = made.bed.sizes, made.bed
    batch = _full_batch(sizes, rows)
    by_graph = bed.seconds(lambda: made.logits(batch, graph=True).argmax(-1), sizes.repeats)
    eager = bed.seconds(lambda: made.logits(batch).argmax(-1), max(1, sizes.repeats // 3))
    promised = OVER_FLOOR if rows <= PROMISED_ROWS and not bed.rehearsed else None
    what = f"{rows} sequences of {sizes.context}"
    yield Finding("decode", f"{what}: floor", 1e3 * floor, "ms")
    yield Finding("decode", f"{what}: a step", 1e3 * by_graph, "ms")
    yield Finding("decode", f"{what}: step over floor", by_graph / floor, at_most=promised)
    yield Finding("decode", f"{what}: without a graph", 1e3 * eager, "ms")
    yield Finding("decode", f"{what}: rate", rows / by_graph, "tok/s")
