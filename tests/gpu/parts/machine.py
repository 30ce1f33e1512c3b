"""What computes: versions, the card, what is prebuilt, and how fast its memory and products are."""

from __future__ import annotations

import importlib
import os
import platform
from collections.abc import Iterator

import torch

from tests.gpu.bed import Bed, copy_bandwidth, product_rate
from tests.gpu.findings import Finding
from tests.gpu.kernels import KERNELS


def run(bed: Bed) -> Iterator[Finding]:
    yield _fact("python", platform.python_version())
    for name in ("torch", "triton", "flashinfer", "tvm_ffi", "numpy"):
        yield _fact(name, _version(name))
    yield _fact("operations", type(bed.kernels(bed.sizes.tiny).ops).__name__)
    if not bed.rehearsed:
        properties = torch.cuda.get_device_properties(bed.device.torch_device)
        yield _fact("card", properties.name)
        yield _fact("CUDA of torch", str(torch.version.cuda))
        exchange = hasattr(torch.Tensor, "__dlpack_c_exchange_api__")
        yield _fact("torch exchanges DLPack in C", str(exchange))
        there = sum(kernel.spec().is_aot for kernel in KERNELS)
        yield _fact("prebuilt kernels", f"{there} of {len(KERNELS)}")
        yield _fact("FLASHINFER_DISABLE_JIT", os.environ.get("FLASHINFER_DISABLE_JIT", ""))
    free, total = bed.device.free_memory()
    yield Finding("machine", "memory", total / 2**30, "GiB")
    yield Finding("machine", "free", free / 2**30, "GiB")
    yield Finding("machine", "copy", copy_bandwidth(bed) / 1e9, "GB/s")
    yield Finding("machine", "products", product_rate(bed) / 1e12, "TFLOP/s")


def _fact(name: str, value: str) -> Finding:
    return Finding("machine", name, value)


def _version(name: str) -> str:
    try:
        return str(getattr(importlib.import_module(name), "__version__", "of no version"))
    except Exception as error:  # what is wrong with it is the finding
        return f"none: {type(error).__name__}: {error}"
