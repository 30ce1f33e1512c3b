"""A backend on the current GPU: from a model's path or a seed, with the kernels that it has there.

FlashInfer and Triton are imported when they are asked for: who computes elsewhere needs neither.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
from collections.abc import Callable
from os import PathLike
from typing import Final

import torch

from engine.backends import CudaSettings, Progress
from engine.backends.cuda.assembly import Kernels, assemble, buckets_of
from engine.backends.cuda.attention import Attention, FlashInferAttention
from engine.backends.cuda.backend import CUDABackend
from engine.backends.cuda.device import CUDADevice, Device
from engine.backends.cuda.draw import Draw
from engine.backends.cuda.model import keeping, moved, random_weights
from engine.backends.cuda.ops import Ops, TorchOps
from engine.backends.cuda.pool import KVPool
from engine.backends.cuda.sampler import DeviceSampler
from engine.backends.cuda.sizing import check_weights
from engine.backends.cuda.torch_draw import draw_in_torch
from engine.backends.cuda.wrappers import Scales
from engine.models.config import ModelConfig

log = logging.getLogger("octavo.engine")

DTYPE: Final = torch.bfloat16
"""Of weights and activations."""


def create(
    path: str | PathLike[str], settings: CudaSettings, progress: Progress | None = None
) -> CUDABackend:
    """Load the model at `path`, a GGUF file or a Hugging Face folder, onto the current GPU.

    A matrix is converted and moved as soon as it is read, so the host never holds the whole model.
    progress: hears of each graph that was captured. Raises ModelError for a model that cannot be
    served or does not fit, UnfitMemory where there is too little for what `settings` ask for, and
    ImportError where what is to attend is not installed.
    """
    from engine.models.files import load_weights, read_config

    device, config = CUDADevice(), read_config(path)
    check_weights(config, DTYPE, device)
    where = device.torch_device
    with device.active():
        weights = moved(load_weights(path, config, keeping(where, DTYPE)), where, DTYPE)
        device.release_cached()  # what the conversions took
    return assemble(
        device, weights, config, gpu_kernels(device, config, settings), settings, progress
    )


def create_random(
    config: ModelConfig, seed: int, settings: CudaSettings, progress: Progress | None = None
) -> CUDABackend:
    """A model of this shape with random weights: for measurements without its file.

    Raises as `create` does.
    """
    device = CUDADevice()
    check_weights(config, DTYPE, device)
    with device.active():
        weights = random_weights(config, seed, device.torch_device, DTYPE)
    return assemble(
        device, weights, config, gpu_kernels(device, config, settings), settings, progress
    )


def gpu_kernels(device: Device, config: ModelConfig, settings: CudaSettings) -> Kernels:
    """What computes a model: Triton's operations, and what the settings want for attention."""
    make = {"flashinfer": _flashinfer, "triton": _triton}[settings.attention]
    most_rows = max(buckets_of(settings), default=1)
    ops, draw = _ops_and_draw()
    return Kernels(ops, make(device, config, most_rows), DeviceSampler(device, draw))


def _ops_and_draw() -> tuple[Ops, Draw]:
    """Triton's; torch's where Triton is not, which torch brings along on Linux."""
    if importlib.util.find_spec("triton") is None:
        log.warning("no Triton is installed: torch computes between products, which is slower")
        return TorchOps(), draw_in_torch
    ops: Ops = importlib.import_module("engine.backends.cuda.triton_ops").TritonOps()
    draws = importlib.import_module("engine.backends.cuda.kernels.draws")
    draw: Draw = draws.draw_in_triton
    return ops, draw


def _flashinfer(
    device: Device, config: ModelConfig, most_rows: int
) -> Callable[[KVPool], Attention]:
    module = importlib.import_module("flashinfer")

    def make(pool: KVPool) -> Attention:
        return FlashInferAttention(
            module,
            device,
            pool.layers,
            config.heads,
            dtype=DTYPE,
            windows=set(config.layer_windows),
            most_rows=most_rows,
            scales=_scales(pool),
        )

    return make


def _triton(device: Device, config: ModelConfig, most_rows: int) -> Callable[[KVPool], Attention]:
    module = importlib.import_module("engine.backends.cuda.triton_attention")

    def make(pool: KVPool) -> Attention:
        attention = module.TritonAttention(device, pool.layers, config.heads, scales=_scales(pool))
        attention.warm_up(DTYPE)
        made: Attention = attention
        return made

    return make


def _scales(pool: KVPool) -> Scales | None:
    """Of a cache in fp8: ones, since keys and values of the supported models are far below 448."""
    return Scales() if pool.keys.dtype == torch.float8_e4m3fn else None
