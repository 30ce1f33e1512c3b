"""Steps of the CUDA backend on a device whose tensors are not the host's.

All that is CUDA's own is here but Triton's kernels: torch computes in their place, and FlashInfer's
stub attends. The host looks at nothing before it collects, and finds what a CPU computes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from support.cpu_device import CPUDevice
from support.drafts import Guesser
from support.engines import Harness
from support.flashinfer_stub import flashinfer_stub
from support.strict_device import StrictDevice, on_host
from torch.utils._python_dispatch import _disable_current_modes

from engine.backends import CudaSettings
from engine.backends.cuda.assembly import Kernels, assemble
from engine.backends.cuda.attention import FlashInferAttention
from engine.backends.cuda.backend import CUDABackend
from engine.backends.cuda.model import moved
from engine.backends.cuda.ops import TorchOps
from engine.backends.cuda.sampler import DeviceSampler
from engine.batch import BLOCK
from engine.capacity import KV_DTYPES
from engine.controls import RowControls
from tests.engine.backends.batches import Work, greedy_rows, make_batch

BLOCKS, HOST_BLOCKS = 12, 4
PROMPT = [int(token) for token in np.random.default_rng(0).integers(0, 60, 40)]


class Wrapper:
    """A wrapper of the stub, for tensors of the device."""

    def __init__(self, make: Any, kwargs: dict[str, Any]) -> None:
        self._wrapper = self._inside(make, kwargs)

    def plan(self, **kwargs: Any) -> None:
        self._inside(self._wrapper.plan, kwargs)

    def run(self, **kwargs: Any) -> None:
        self._inside(self._wrapper.run, kwargs)

    @staticmethod
    def _inside(call: Any, kwargs: dict[str, Any]) -> Any:
        with _disable_current_modes():
            return call(**on_host(kwargs))


class FlashInfer:
    """FlashInfer's stub, for tensors of the device."""

    def __init__(self, device: StrictDevice) -> None:
        self._stub = flashinfer_stub(device)

    def __getattr__(self, name: str) -> Any:
        return lambda **kwargs: Wrapper(getattr(self._stub, name), kwargs)


def backend_on(device: CPUDevice, tiny: tuple, **settings: Any) -> CUDABackend:
    weights, config = tiny
    block_bytes = BLOCK * config.kv_bytes_per_token(KV_DTYPES["float32"])
    wanted = CudaSettings(
        max_step_tokens=64,
        max_rows=4,
        kv_dtype="float32",
        kv_memory_bytes=BLOCKS * block_bytes,
        offload_memory_bytes=HOST_BLOCKS * block_bytes,
        **settings,
    )
    strict = isinstance(device, StrictDevice)
    module = FlashInfer(device) if strict else flashinfer_stub(device)

    def attention(pool: Any) -> FlashInferAttention:
        return FlashInferAttention(module, device, pool.layers, config.heads, dtype=torch.float32)

    kernels = Kernels(TorchOps(), attention, DeviceSampler(device))
    if not strict:
        return assemble(device, weights, config, kernels, wanted)
    with device.starting():
        there = moved(weights, device.torch_device, torch.float32)
        return assemble(device, there, config, kernels, wanted)


# ── steps made by hand ────────────────────────────────────────────────────────────────────────

STEPS = [
    make_batch([Work([0, 1, 2], 0, PROMPT), Work([3], 0, PROMPT[:5], samples=False)]),
    make_batch([Work([0, 1, 2], 40, [-1])]),
    make_batch([Work([3], 5, PROMPT[5:7]), Work([0, 1, 2], 41, [-1])], copies=[(0, 7)]),
    make_batch([Work([3], 7, [-1]), Work([7, 1, 2], 42, [-2])], offloads=[(3, 1), (2, 0)]),
    make_batch(
        [Work([0, 1, 2], 43, [-2]), Work([4], 8, [-1]), Work([5, 6], 0, PROMPT[:17])],
        restores=[(1, 4)],
    ),
    make_batch([Work([0, 1, 2], 44, PROMPT[:3], samples=False)]),
]

GREEDY = RowControls(temperature=0)
DRAWN = RowControls(temperature=0.8, top_p=0.9, seed=4)


@pytest.mark.parametrize("controls", [GREEDY, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("graphs", [False, [1, 4]], ids=["eager", "graphs"])
def test_steps_in_flight_wait_for_nothing(tiny, graphs, controls):
    there, here = (
        outcomes(device, tiny, graphs, controls) for device in (StrictDevice(), CPUDevice())
    )
    assert there == here


def outcomes(
    device: CPUDevice, tiny: tuple, graphs: bool | list[int], controls: RowControls
) -> list[list[int]]:
    """The tokens of all steps, none of which is collected before the last is begun."""
    backend = backend_on(device, tiny, graphs=graphs)
    device.trace.clear()
    tickets = []
    for batch in STEPS:
        tickets.append(backend.submit(batch))
        backend.sample(tickets[-1], greedy_rows(len(batch.sample_rows), controls))
    assert not {"wait", "synchronize"} & set(device.trace)
    assert device.trace.count("replay") == (2 if graphs else 0)
    return [list(backend.collect(ticket).tokens) for ticket in tickets]


# ── the engine ────────────────────────────────────────────────────────────────────────────────

MIXED = [
    RowControls(temperature=0, logprobs=2, prompt_logprobs=1),
    RowControls(temperature=0.9, seed=1, top_k=20),
    RowControls(temperature=0.0, repetition_penalty=1.2, bad_words=((5, 6),)),
    RowControls(temperature=0.7, seed=2, top_p=0.8, min_p=0.05, logit_bias={3: 1.0}),
    RowControls(temperature=0, allowed_ids=frozenset(range(40))),
]


@pytest.mark.slow
@pytest.mark.parametrize("depth", [0, 1])
def test_an_engine_serves_what_it_serves_from_a_cpu(tiny, depth):
    there, here = (served(device, tiny, depth) for device in (StrictDevice(), CPUDevice()))
    assert there == here
    assert all(there)


def served(device: CPUDevice, tiny: tuple, depth: int) -> list[list[int]]:
    """What requests are answered that share beginnings, are put away, guessed and scored."""
    backend = backend_on(device, tiny, graphs=[1, 2, 4])
    harness = Harness(
        backend=backend,
        blocks=BLOCKS,
        budget=24,
        rows=4,
        depth=depth,
        model_len=128,
        drafter=Guesser(lambda _, place: place % 60),
    )
    asked = [
        harness.submit([*PROMPT[: 20 + i], i], 12 + i, controls)
        for i, controls in enumerate(MIXED * 2)
    ]
    harness.run()
    assert "replay" in device.trace
    return [harness.tokens(request) for request in asked]
