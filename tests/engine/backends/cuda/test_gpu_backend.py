"""A backend is made from a path or a seed, with the kernels that are there: on a stand-in for the
GPU, in bfloat16."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.cpu_device import CPUDevice
from support.engines import Harness
from support.flashinfer_stub import flashinfer_stub

from engine.backends import CudaSettings
from engine.backends.cuda.gpu import create, create_random, gpu_kernels
from engine.backends.cuda.ops import TorchOps
from engine.backends.cuda.pool import KVPool
from engine.backends.cuda.sampler import DeviceSampler
from engine.backends.cuda.torch_draw import draw_in_torch
from engine.errors import ModelError
from tests.engine.models.tiny_llama import CONFIG, random_tensors, write_gguf

GIB = 1 << 30
SETTINGS = CudaSettings(kv_memory_bytes=1 << 20, max_step_tokens=64, max_rows=8, graphs=[1, 2])


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> CPUDevice:
    """The only GPU. There is a FlashInfer, and no Triton."""
    device = CPUDevice()
    monkeypatch.setattr("engine.backends.cuda.gpu.CUDADevice", lambda: device)
    monkeypatch.setitem(sys.modules, "flashinfer", flashinfer_stub(device))
    monkeypatch.setitem(sys.modules, "triton", None)
    return device


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, random_tensors())
    return path


def text(backend) -> list[int]:
    harness = Harness(backend=backend, blocks=16, budget=32, depth=1, model_len=128)
    request = harness.submit(list(range(30)), 12)
    harness.run()
    return harness.tokens(request)


@pytest.mark.parametrize("kv_dtype", ["bfloat16", "fp8"])
def test_a_model_is_loaded_in_bfloat16_and_answers(device, path, kv_dtype: str) -> None:
    told: list[tuple[int, int]] = []
    settings = CudaSettings(
        kv_dtype=kv_dtype, kv_memory_bytes=1 << 20, max_step_tokens=64, max_rows=8, graphs=[1, 2]
    )
    backend = create(path, settings, lambda *each: told.append(each))
    assert told == [(1, 2), (2, 2)]
    assert len(text(backend)) == 12
    assert device.trace.count("replay") >= 10


@pytest.mark.slow
def test_a_model_of_random_weights_is_that_of_its_seed(device) -> None:
    config = replace(CONFIG, tied_head=False)  # with a tied one every token foretells itself
    texts = [text(create_random(config, seed, SETTINGS)) for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_a_model_that_does_not_fit_is_refused_before_it_is_read(device, path) -> None:
    device.memory = (1 << 10, 80 * GIB)
    with pytest.raises(ModelError, match=r"of the device's 80\.00 GiB are free"):
        create(path, SETTINGS)
    with pytest.raises(ModelError, match=r"of the device's 80\.00 GiB are free"):
        create_random(CONFIG, 0, SETTINGS)


def test_without_triton_torch_computes_and_says_that_it_is_slower(device, caplog) -> None:
    kernels = gpu_kernels(device, CONFIG, SETTINGS)
    assert isinstance(kernels.ops, TorchOps)
    assert isinstance(kernels.sampler, DeviceSampler)
    assert kernels.sampler.draw is draw_in_torch
    assert "no Triton is installed" in caplog.text


def test_attention_that_is_not_installed_is_an_import_error(device, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "flashinfer", None)
    with pytest.raises(ImportError, match="flashinfer"):
        gpu_kernels(device, CONFIG, SETTINGS)


def test_a_pool_in_fp8_is_attended_to_with_scales(device) -> None:
    kernels = gpu_kernels(device, CONFIG, SETTINGS)
    pool = KVPool(device, kernels.ops, CONFIG, 4, "fp8")
    assert pool.keys.dtype == torch.float8_e4m3fn
    kernels.attention(pool)


def test_with_triton_its_kernels_compute_and_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    device = CPUDevice()
    monkeypatch.setitem(sys.modules, "flashinfer", flashinfer_stub(device))
    kernels = gpu_kernels(device, CONFIG, SETTINGS)
    assert type(kernels.ops).__name__ == "TritonOps"
    assert isinstance(kernels.sampler, DeviceSampler)
    assert kernels.sampler.draw.__name__ == "draw_in_triton"
