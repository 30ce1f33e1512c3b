"""Where a part runs: on the GPU, or, to rehearse it, on the stand-in for one."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Protocol

import torch

from engine.backends import CudaSettings
from engine.backends.cuda.assembly import Kernels
from engine.backends.cuda.attention import Attention, FlashInferAttention
from engine.backends.cuda.device import CUDADevice, Device
from engine.backends.cuda.gpu import gpu_kernels
from engine.backends.cuda.ops import TorchOps
from engine.backends.cuda.pool import KVPool
from engine.backends.cuda.sampler import DeviceSampler
from engine.models.config import ModelConfig
from tests.gpu.sizes import REAL, REHEARSAL, Sizes


class Mark(Protocol):
    """A place in the device's work."""

    def until(self, later: Any) -> float:
        """Seconds of the device between this and a later one. Waits for both."""
        ...


@dataclass(frozen=True)
class Bed:
    """What parts share.

    flashinfer: the module. kernels: what computes a model, as it is served. dtype: of weights and
    activations; kv_dtype: of the pool, by its name in `pool.POOL_DTYPES`. mark: puts a mark behind
    what was enqueued. rehearsed: whether no number means anything.
    """

    device: Device
    flashinfer: Any
    kernels: Callable[[ModelConfig], Kernels]
    dtype: torch.dtype
    kv_dtype: str
    sizes: Sizes
    mark: Callable[[], Mark]
    rehearsed: bool

    def seconds(self, work: Callable[[], object], repeats: int, warm: int = 3) -> float:
        """The median time that the device takes for `work`, enqueued again and again without
        waiting, so that the host is a part of it only where it is slower than the device."""
        for _ in range(warm):
            work()
        marks = [self.mark()]
        for _ in range(repeats):
            work()
            marks.append(self.mark())
        return statistics.median(a.until(b) for a, b in pairwise(marks))


def bed(rehearse: bool) -> Bed:
    """The real thing, or the stand-in."""
    return _stand_in() if rehearse else _gpu()


def _gpu() -> Bed:
    import flashinfer

    device = CUDADevice()
    torch.cuda.set_device(device.torch_device)
    settings = CudaSettings(attention="flashinfer", max_rows=max(REAL.decode_rows))
    return Bed(
        device=device,
        flashinfer=flashinfer,
        kernels=lambda config: gpu_kernels(device, config, settings),
        dtype=torch.bfloat16,
        kv_dtype="bfloat16",
        sizes=REAL,
        mark=partial(_CUDAMark, device.torch_device),
        rehearsed=False,
    )


def _stand_in() -> Bed:
    from support.cpu_device import CPUDevice

    from tests.support.flashinfer_stub import flashinfer_stub

    device = CPUDevice()
    flashinfer = flashinfer_stub(device)

    def kernels(config: ModelConfig) -> Kernels:
        def attention(pool: KVPool) -> Attention:
            return FlashInferAttention(
                flashinfer, device, pool.layers, config.heads, dtype=torch.float32
            )

        return Kernels(TorchOps(), attention, DeviceSampler(device))

    return Bed(
        device=device,
        flashinfer=flashinfer,
        kernels=kernels,
        dtype=torch.float32,
        kv_dtype="float32",
        sizes=REHEARSAL,
        mark=_HostMark,
        rehearsed=True,
    )


class _CUDAMark:
    """An event that knows its time."""

    def __init__(self, device: torch.device) -> None:
        self._event = torch.cuda.Event(enable_timing=True)
        self._event.record(torch.cuda.current_stream(device))

    def until(self, later: _CUDAMark) -> float:
        later._event.synchronize()
        return self._event.elapsed_time(later._event) / 1e3


class _HostMark:
    """The time when it was made: the stand-in computes at once."""

    def __init__(self) -> None:
        self._at = time.perf_counter()

    def until(self, later: _HostMark) -> float:
        return later._at - self._at


def copy_bandwidth(bed: Bed) -> float:
    """Bytes a second that a copy within the device's memory reads and writes together."""
    size = bed.sizes.copied_bytes
    source, target = (
        torch.zeros(size // 8, dtype=torch.int64, device=bed.device.torch_device) for _ in range(2)
    )
    return 2 * size / bed.seconds(lambda: target.copy_(source), repeats=10)


def product_rate(bed: Bed) -> float:
    """Operations a second, multiplications and additions, of a large product of matrices."""
    n = bed.sizes.product
    where = {"dtype": bed.dtype, "device": bed.device.torch_device}
    a, b = torch.ones((n, n), **where), torch.ones((n, n), **where)
    return 2 * n**3 / bed.seconds(lambda: a @ b, repeats=10)
