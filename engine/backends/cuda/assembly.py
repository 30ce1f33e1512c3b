"""From weights on a device to a backend: how large the pool is, what is captured, in this order.

weights ─▶ the largest step ─▶ pool ─▶ attention over it ─▶ graphs, the largest first
                                                              └─▶ the largest step, once more
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from engine.backends import CudaSettings, Progress
from engine.backends.cuda.attention import Attention
from engine.backends.cuda.backend import Computing, CUDABackend, Sampler
from engine.backends.cuda.device import Device
from engine.backends.cuda.graphs import DecodeGraphs, decode_buckets
from engine.backends.cuda.inputs import inputs_of
from engine.backends.cuda.model import Decoder, weight_bytes
from engine.backends.cuda.ops import Ops
from engine.backends.cuda.pool import KVPool
from engine.backends.cuda.sizing import (
    Room,
    costliest_rows,
    fitting,
    largest_step,
    measured_room,
    pool_blocks,
)
from engine.backends.cuda.split import split
from engine.backends.memory import usable_memory
from engine.batch import BLOCK
from engine.capacity import KV_DTYPES
from engine.errors import TooLittleMemory, TooMuchMemory
from engine.models.config import ModelConfig
from engine.models.weights import Weights


@dataclass(frozen=True, slots=True)
class Kernels:
    """Who computes between the products.

    attention: made for the pool of a model. sampler: takes the logits.
    """

    ops: Ops
    attention: Callable[[KVPool], Attention]
    sampler: Sampler


Agree = Callable[[int, int], tuple[int, int]]
"""Of (blocks, host blocks) makes as many or fewer."""


def by_itself(blocks: int, host_blocks: int) -> tuple[int, int]:
    """A device that need not agree with any other takes all it can."""
    return blocks, host_blocks


def assemble(
    device: Device,
    weights: Weights,
    config: ModelConfig,
    kernels: Kernels,
    settings: CudaSettings,
    progress: Progress | None = None,
    agree: Agree = by_itself,
) -> CUDABackend:
    """A backend for weights that are on the device.

    progress: hears of each graph that was captured. agree: makes of the blocks that there is room
    for, here and on the host, those that there will be. Raises UnfitMemory, with the numbers, if
    the device or the host is too small for something.
    """
    block_bytes = BLOCK * config.kv_bytes_per_token(KV_DTYPES[settings.kv_dtype])
    host_blocks = _host_blocks(settings, block_bytes)
    wanted = settings.kv_memory_bytes
    if wanted is not None and wanted < block_bytes:
        raise TooLittleMemory("kv_memory", wanted, block_bytes, settings.kv_dtype)
    decoder = Decoder(weights, config, kernels.ops, device.torch_device)
    with device.active():
        room = _room(device, decoder, kernels, settings, weight_bytes(weights))
        blocks = pool_blocks(room, block_bytes, wanted, settings.memory_fraction)
        blocks, host_blocks = agree(blocks, host_blocks)
        with fitting("kv_memory", f"a KV cache of {blocks} blocks", room):
            pool = KVPool(device, kernels.ops, config, blocks, settings.kv_dtype, host_blocks)
        with fitting("cuda.memory_fraction", "what attention and graphs need beside it", room):
            attention = kernels.attention(pool)
            graphs = DecodeGraphs(device, decoder, pool, attention, buckets_of(settings), progress)
            if buckets_of(settings):  # whose captures make torch give back what the step took
                _largest_step(device, decoder, kernels, settings)
    return CUDABackend(Computing(device, decoder, pool, attention, kernels.sampler, graphs))


def buckets_of(settings: CudaSettings) -> Sequence[int]:
    """Rows of each graph that is to be captured."""
    if isinstance(settings.graphs, bool):
        return decode_buckets(settings.max_rows) if settings.graphs else ()
    return settings.graphs


def _room(
    device: Device, decoder: Decoder, kernels: Kernels, settings: CudaSettings, weights: int
) -> Room:
    """What the largest step leaves."""
    compute = partial(_largest_step, device, decoder, kernels, settings)
    return measured_room(device, weights, compute, settings.max_step_tokens)


@torch.inference_mode()
def _largest_step(
    device: Device, decoder: Decoder, kernels: Kernels, settings: CudaSettings
) -> None:
    """Compute it, over the dummy block of a pool that has no other."""
    batch = largest_step(decoder.config, settings.max_step_tokens, settings.max_rows)
    pool = KVPool(device, kernels.ops, decoder.config, 0, settings.kv_dtype)
    attention = kernels.attention(pool)
    attention.plan(split(batch))
    hidden = decoder.hidden(inputs_of(batch, device, None), pool, attention)
    logits, rows = decoder.logits(hidden), costliest_rows(batch)
    kernels.sampler.sample(logits, rows, batch.scored).collect()


def _host_blocks(settings: CudaSettings, block_bytes: int) -> int:
    """Blocks of host memory. Raises UnfitMemory if it is not there, or holds not one block."""
    size = settings.offload_memory_bytes
    if 0 < size < block_bytes:
        raise TooLittleMemory("offload_memory", size, block_bytes, settings.kv_dtype)
    if size > (usable := usable_memory()):
        raise TooMuchMemory("offload_memory", size, usable)
    return size // block_bytes
