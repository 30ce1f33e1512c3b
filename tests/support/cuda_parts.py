"""The CUDA backend on the CPU: its rooms between a stand-in for a GPU and a stub of FlashInfer."""

from __future__ import annotations

from typing import Any

import torch

from engine.backends import CudaSettings
from engine.backends.cuda.assembly import Kernels, assemble
from engine.backends.cuda.attention import FlashInferAttention
from engine.backends.cuda.backend import CUDABackend
from engine.backends.cuda.ops import TorchOps
from engine.backends.cuda.pool import KVPool
from engine.backends.cuda.sampler import DeviceSampler
from engine.batch import BLOCK
from engine.capacity import KV_DTYPES
from engine.models.config import ModelConfig
from engine.models.weights import Weights
from support.cpu_device import CPUDevice
from support.flashinfer_stub import flashinfer_stub


def kernels(device: CPUDevice, config: ModelConfig, dtype: torch.dtype = torch.float32) -> Kernels:
    """Plain torch, and FlashInfer's stub."""

    def attention(pool: KVPool) -> FlashInferAttention:
        return FlashInferAttention(
            flashinfer_stub(device),
            device,
            pool.layers,
            config.heads,
            dtype=dtype,
            windows=set(config.layer_windows),
        )

    return Kernels(TorchOps(), attention, DeviceSampler(device))


def on_stand_in(
    weights: Weights,
    config: ModelConfig,
    blocks: int,
    *,
    device: CPUDevice | None = None,
    host_blocks: int = 0,
    **settings: Any,
) -> CUDABackend:
    """A float32 backend of so many blocks, for steps of at most 64 tokens in 16 rows."""
    block_bytes = BLOCK * config.kv_bytes_per_token(KV_DTYPES["float32"])
    wanted: dict[str, Any] = {
        "max_step_tokens": 64,
        "max_rows": 16,
        "kv_dtype": "float32",
        "kv_memory_bytes": blocks * block_bytes,
        "offload_memory_bytes": host_blocks * block_bytes,
    }
    device = device or CPUDevice()
    return assemble(
        device, weights, config, kernels(device, config), CudaSettings(**wanted | settings)
    )
