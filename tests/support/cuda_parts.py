"""The CUDA backend on the CPU: its rooms between a stand-in for a GPU and a stub of FlashInfer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engine.backends.cuda.assembly import Kernels, Settings, assemble
from engine.backends.cuda.attention import FlashInferAttention
from engine.backends.cuda.backend import CUDABackend
from engine.backends.cuda.ops import TorchOps
from engine.backends.cuda.pool import KVPool
from engine.backends.sampler import sample, score
from engine.batch import BLOCK
from engine.capacity import KV_DTYPES
from engine.controls import Sampled, SampleRow, ScoredRow
from engine.errors import RowFault
from engine.models.config import ModelConfig
from engine.models.weights import Weights
from support.cpu_device import CPUDevice
from support.flashinfer_stub import flashinfer_stub


@dataclass
class HostSample:
    """What `HostSampler` found; a fault waits until it is collected."""

    tokens: Tensor
    sampled: Sampled | RowFault

    def collect(self) -> Sampled:
        if isinstance(self.sampled, RowFault):
            raise self.sampled
        return self.sampled


class HostSampler:
    """The CPU backend's sampler in the place of the device's."""

    def sample(
        self,
        logits: Tensor,
        rows: Sequence[SampleRow],
        scored: Sequence[ScoredRow] = (),
        sample_rows: Sequence[int] | None = None,
    ) -> HostSample:
        count = len(rows)
        names = range(count) if sample_rows is None else sample_rows
        try:
            sampled = sample(logits[:count].float(), rows)
        except RowFault as fault:
            named = RowFault([names[i] for i in fault.rows], fault.reason)
            return HostSample(torch.zeros(count, dtype=torch.int64), named)
        if scored:
            sampled.prompt_logprobs = score(logits[count:].float(), scored)
        return HostSample(torch.tensor(sampled.tokens, dtype=torch.int64), sampled)


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

    return Kernels(TorchOps(), attention, HostSampler())


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
    return assemble(device, weights, config, kernels(device, config), Settings(**wanted | settings))
