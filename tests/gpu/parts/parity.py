"""Attention against float64, and a tiny model against the CPU in float32."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch

from engine.backends.cuda.attention import Attention, FlashInferAttention
from engine.backends.cuda.model import moved, random_weights
from engine.backends.cuda.ops import TorchOps
from engine.backends.cuda.split import split
from engine.backends.cuda.wrappers import Scales
from engine.backends.reference import paged_attention
from engine.backends.runners import TorchRunner
from engine.batch import BLOCK, Batch
from tests.engine.backends.batches import Work, make_batch
from tests.gpu.bed import Bed
from tests.gpu.findings import Finding
from tests.gpu.rooms import Rooms, blocks_of, decodes, rooms, tables

ATTENTION_ERROR = 1e-2
"""Of attention in bfloat16, relative to the largest number of what is right."""

LOGIT_ERROR = 5e-2
"""Of logits of a model in bfloat16, the same way."""

KV_LENS = (1, 15, 16, 17, 33, 300)
HEADS, KV_HEADS = 6, 2


def run(bed: Bed) -> Iterator[Finding]:
    for head_dim in bed.sizes.head_dims:
        for kv_dtype in (bed.dtype,) if bed.rehearsed else (bed.dtype, torch.float8_e4m3fn):
            yield from _attention(bed, head_dim, kv_dtype)
    yield from _model(bed)
    if not bed.rehearsed:
        yield from _model(bed, plain=True)


# ── attention ─────────────────────────────────────────────────────────────────────────────────


def _attention(bed: Bed, head_dim: int, kv_dtype: torch.dtype) -> Iterator[Finding]:
    """Decodes and chunks of all lengths in one step."""
    batch = _lengths()
    blocks = int(batch.kv_indices.max()) + 2
    random = torch.Generator().manual_seed(head_dim)
    shape = 2, blocks, BLOCK, KV_HEADS, head_dim
    pools = torch.randn(shape, generator=random).to(kv_dtype)
    queries = torch.randn((batch.tokens, HEADS, head_dim), generator=random).to(bed.dtype)
    exact = pools.to(torch.float64).numpy()
    expected = paged_attention(batch, queries.to(torch.float64).numpy(), *exact)
    where = bed.device.torch_device
    name = f"head size {head_dim}, KV in {str(kv_dtype).removeprefix('torch.')}"
    kinds = {name: pools, f"{name}, NaN behind each row": _poisoned(pools, batch)}
    for kind, filled in kinds.items():
        keys, values = filled.to(where).unbind()
        for who, attention in _who_attends(bed, (keys, values)):
            attention.plan(split(batch))
            found = attention.run(0, queries.to(where), None).to("cpu", torch.float64).numpy()
            error = float(np.abs(found - expected).max() / np.abs(expected).max())
            yield Finding("parity", f"{who}, {kind}", error, at_most=ATTENTION_ERROR)


def _who_attends(
    bed: Bed, pool: tuple[torch.Tensor, torch.Tensor]
) -> Iterator[tuple[str, Attention]]:
    scales = Scales() if pool[0].dtype == torch.float8_e4m3fn else None
    fixed = {"dtype": bed.dtype, "scales": scales}
    yield "FlashInfer", FlashInferAttention(bed.flashinfer, bed.device, [pool], HEADS, **fixed)
    if not bed.rehearsed:
        from engine.backends.cuda.triton_attention import TritonAttention

        yield "Triton", TritonAttention(bed.device, [pool], HEADS, scales=scales)


def _lengths() -> Batch:
    """Decodes of all lengths, then chunks: whole prompts, and the last part of longer ones."""
    order = iter(np.random.default_rng(0).permutation(200).tolist())
    rows = [(length, 1) for length in KV_LENS]
    rows += [(length, length) for length in KV_LENS[1:-1]] + [(300, 40), (33, 2)]
    work = []
    for kv_len, count in rows:
        table = [next(order) for _ in range(-(-kv_len // BLOCK))]
        work.append(Work(table, kv_len - count, [0] * count))
    return make_batch(work)


def _poisoned(pools: torch.Tensor, batch: Batch) -> torch.Tensor:
    """NaN in the slots behind each row's last token."""
    poisoned = pools.to(torch.float32)
    for row, last in enumerate(batch.last_page_len):
        table = batch.kv_indices[batch.kv_indptr[row] : batch.kv_indptr[row + 1]]
        poisoned[:, int(table[-1]), int(last) :] = torch.nan
    return poisoned.to(pools.dtype)


# ── a model ───────────────────────────────────────────────────────────────────────────────────


def _model(bed: Bed, *, plain: bool = False) -> Iterator[Finding]:
    """Prompts in chunks, then decodes eagerly and by graphs; the same tokens on both sides.

    plain: with torch's operations, which tells who is to blame.
    """
    config, count = bed.sizes.tiny, 3
    exact = random_weights(config, 0, torch.device("cpu"), torch.float32)
    weights = moved(exact, bed.device.torch_device, bed.dtype)
    prompt = min(90, config.context_length // 2)
    total = prompt + bed.sizes.growth
    blocks = blocks_of(count, total)
    kernels = bed.kernels(config)
    if plain:
        kernels = replace(kernels, ops=TorchOps())
    on_device = rooms(bed, weights, config, blocks, [4], kernels)
    on_cpu = TorchRunner(exact, config, blocks)
    rng = np.random.default_rng(1)
    texts = rng.integers(0, config.vocab, (count, total)).tolist()
    places = tables(count, total)
    worst = {"chunks of prompts": 0.0, "decodes": 0.0, "decodes by a graph": 0.0}
    for first in range(0, prompt, 32):
        after = min(first + 32, prompt)
        work = [
            Work(place, first, text[first:after]) for place, text in zip(places, texts, strict=True)
        ]
        error = _error(on_device, on_cpu, make_batch(work), graph=False)
        worst["chunks of prompts"] = max(worst["chunks of prompts"], error)
    for position in range(prompt, total):
        name = "decodes" if position % 2 else "decodes by a graph"
        batch = decodes(places, position, [text[position] for text in texts])
        error = _error(on_device, on_cpu, batch, graph=name.endswith("graph"))
        worst[name] = max(worst[name], error)
    for name, error in worst.items():
        what = f"tiny model, {type(kernels.ops).__name__}, {name}"
        yield Finding("parity", what, error, at_most=LOGIT_ERROR)


def _error(on_device: Rooms, on_cpu: TorchRunner, batch: Batch, *, graph: bool) -> float:
    """How far the logits are apart, relative to the largest."""
    found = on_device.logits(batch, graph=graph).to("cpu", torch.float32)
    expected = on_cpu.run(batch, batch.token_ids).values
    return float((found - expected).abs().max() / expected.abs().max())
