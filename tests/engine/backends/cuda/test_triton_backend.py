"""A backend whose operations and attention are Triton's says what the CPU backend says in float32.

In Triton's interpreter, hence a few short texts; `test_cuda_parity` has the many cases.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("triton")

from support.cpu_device import CPUDevice
from support.engines import Harness
from support.float_parity import Ask, Said, differences, said
from support.interpreter import interpreted

from engine.backends import CudaSettings
from engine.backends.base import Backend
from engine.backends.cpu import on_torch
from engine.backends.cuda.assembly import Kernels, assemble
from engine.backends.cuda.kernels import decode_attention
from engine.backends.cuda.sampler import DeviceSampler
from engine.backends.cuda.triton_attention import TritonAttention
from engine.backends.cuda.triton_ops import TritonOps
from engine.capacity import KV_DTYPES
from engine.controls import RowControls
from tests.engine.models.tiny_llama import CONFIG

BLOCKS = 6
GREEDY = RowControls(temperature=0.0, logprobs=2)
ASKS = [
    Ask([5, 80, 3, 7, 7, 9, 41, 2, 66, 12, 90, 1, 4, 8], 6, GREEDY),
    Ask([9, 100, 3], 5, GREEDY),
]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Few programs, since the interpreter is slow."""
    monkeypatch.setattr(decode_attention, "BUSY", 1)
    monkeypatch.setattr(decode_attention, "FEWEST", 2)
    with interpreted():
        yield


def on_triton(tiny: tuple, device: CPUDevice) -> Backend:
    """Steps of at most ten tokens; decodes of two rows go through a graph, others do not."""
    weights, config = tiny
    kernels = Kernels(
        TritonOps(),
        lambda pool: TritonAttention(device, pool.layers, config.heads),
        DeviceSampler(device),
    )
    settings = CudaSettings(
        kv_dtype="float32",
        kv_memory_bytes=BLOCKS * 16 * config.kv_bytes_per_token(KV_DTYPES["float32"]),
        graphs=[2],
        max_step_tokens=10,
        max_rows=2,
    )
    return assemble(device, weights, config, kernels, settings)


def answers(backend: Backend) -> list[Said]:
    harness = Harness(
        backend=backend, blocks=BLOCKS, budget=10, rows=2, model_len=CONFIG.context_length, depth=1
    )
    requests = [harness.submit(ask.prompt, ask.max_tokens, ask.controls) for ask in ASKS]
    harness.run()
    return [said(harness, request) for request in requests]


@pytest.mark.slow
def test_texts_are_those_of_the_cpu_backend(tiny: tuple) -> None:
    device = CPUDevice()
    found = answers(on_triton(tiny, device))
    parted = differences(ASKS, answers(on_torch(*tiny, BLOCKS)), found)
    assert sum(parted.values()) == 0, parted
    assert device.trace.count("replay") >= 3
