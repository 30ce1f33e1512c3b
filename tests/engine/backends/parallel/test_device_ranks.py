"""Ranks with a GPU each, on stand-ins: answers of one process, at depth 0 and 1, through graphs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.cpu_device import CPUDevice
from support.cuda_parts import kernels
from support.float_parity import differences
from support.ranks import ranks, wanted

from engine.backends import CudaSettings
from engine.backends.cpu import on_torch
from engine.backends.parallel.device_ranks import DeviceComputer, on_own_gpu
from engine.backends.parallel.place import Place
from engine.controls import RowControls
from engine.errors import ConfigurationError, GroupLost, RowFault, UnfitBackend
from engine.models.files import load_weights, read_config
from tests.engine.backends.batches import Work, greedy_rows, make_batch
from tests.engine.backends.parallel.asked import ASKS, answers
from tests.engine.models.tiny_llama import CONFIG

Make = Callable[[int], DeviceComputer]


def computers(path: Path, blocks: int, host_blocks: int = 0, **more: Any) -> tuple[Make, dict]:
    """What each rank computes with, and the stand-ins that were made, by rank."""
    devices: dict[int, CPUDevice] = {}
    sizes = wanted(path, 2, blocks, host_blocks)
    settings = CudaSettings(
        max_step_tokens=64,
        max_rows=16,
        kv_dtype="float32",
        kv_memory_bytes=sizes.kv_memory_bytes,
        offload_memory_bytes=sizes.offload_memory_bytes,
        **{"graphs": [1, 2, 4, 8], **more},
    )

    def make(rank: int) -> DeviceComputer:
        device = devices[rank] = CPUDevice()
        return DeviceComputer(device, partial(kernels, device), settings, torch.float32)

    return make, devices


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize(
    ("blocks", "host_blocks", "n"), [(64, 0, 1), (9, 0, 1), (9, 8, 1), (64, 0, 3)]
)
def test_answers_are_those_of_one_process_whatever_moves(path, depth, blocks, host_blocks, n):
    """In few blocks requests are preempted, and offloaded where there is room; siblings copy."""
    config = read_config(path)
    expected = answers(on_torch(load_weights(path, config), config, 64), 64, n=n)
    make, devices = computers(path, blocks, host_blocks)
    with ranks(path, 2, blocks, computer=make) as both:
        assert (both.backend.total_blocks, both.backend.host_blocks) == (blocks, host_blocks)
        found = answers(both.backend, blocks, depth, n)
    assert differences(ASKS, expected, found)["drawn"] <= 1
    for device in devices.values():
        assert "replay" in device.trace
        device.check()


def test_tokens_in_flight_reach_the_others_without_anybody_waiting(path):
    make, devices = computers(path, 8)
    with ranks(path, 2, 8, computer=make) as both:
        backend = both.backend
        first = backend.submit(make_batch([Work([0], 0, [5, 6, 7]), Work([1], 0, [8])]))
        backend.sample(first, greedy_rows(2))
        devices[0].trace.clear()
        second = backend.submit(make_batch([Work([1], 1, [-2]), Work([0], 3, [-1])]))
        backend.sample(second, greedy_rows(2))
        assert not {"wait", "synchronize"} & set(devices[0].trace)
        tokens = backend.collect(first).tokens, backend.collect(second).tokens
        known = [Work([2], 0, [5, 6, 7, tokens[0][0]]), Work([3], 0, [8, tokens[0][1]])]
        third = backend.submit(make_batch(known))
        backend.sample(third, greedy_rows(2))
        assert backend.collect(third).tokens == tokens[1][::-1]


def test_a_row_at_fault_is_nobody_elses_business(path):
    make, _ = computers(path, 8)
    with ranks(path, 2, 8, computer=make) as both:
        backend = both.backend
        forbidden = replace(
            greedy_rows(1)[0],
            controls=RowControls(allowed_ids=frozenset({3}), logit_bias={3: -np.inf}),
        )
        ticket = backend.submit(make_batch([Work([0], 0, [1])]))
        backend.sample(ticket, [forbidden])
        with pytest.raises(RowFault):
            backend.collect(ticket)
        ticket = backend.submit(make_batch([Work([0], 0, [1])]))
        backend.sample(ticket, greedy_rows(1))
        assert len(backend.collect(ticket).tokens) == 1
    assert both.followers.lost is None


def test_what_must_not_be_computed_is_refused_and_the_ranks_go_on(path):
    make, _ = computers(path, 8)
    with ranks(path, 2, 8, computer=make) as both:
        beyond = make_batch([Work([0], 0, [1])])
        beyond.positions = beyond.positions + CONFIG.context_length  # behind the rotations
        for batch in (beyond, make_batch([Work([0], 0, [CONFIG.vocab])])):
            with pytest.raises(IndexError, match="is not within the"):
                both.backend.submit(batch)
        ticket = both.backend.submit(make_batch([Work([0], 0, [1])]))
        both.backend.sample(ticket, greedy_rows(1))
        assert len(both.backend.collect(ticket).tokens) == 1
    assert both.followers.lost is None


def test_a_step_that_cannot_be_enqueued_ends_all(path):
    make, _ = computers(path, 8)
    with ranks(path, 2, 8, computer=make, timeout_s=1.0) as both:
        broken = make_batch([Work([0], 0, [1])])
        broken.slots = broken.slots + 16 * 1000  # behind the pool
        with pytest.raises(GroupLost, match=r"rank [01] cannot go on"):
            both.backend.submit(broken)
        with pytest.raises(GroupLost):
            both.backend.submit(make_batch([Work([0], 0, [1])]))


def test_all_have_as_many_blocks_as_the_smallest_has_room_for(path):
    roomy, _ = computers(path, 12, 6)
    tight, _ = computers(path, 8, 9)
    make = lambda rank: (roomy, tight)[rank](rank)  # noqa: E731
    with ranks(path, 2, 8, computer=make) as both:
        assert (both.backend.total_blocks, both.backend.host_blocks) == (8, 6)


def test_a_rank_without_a_gpu_of_its_own_is_refused_with_the_numbers(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(UnfitBackend, match="2 processes on this machine need a GPU each, and torc"):
        on_own_gpu(Place(1, 2, 1, 2), CudaSettings())


def test_ranks_that_would_capture_other_graphs_are_refused(path):
    one, _ = computers(path, 8)
    other, _ = computers(path, 8, graphs=[1])
    make = lambda rank: (one, other)[rank](rank)  # noqa: E731
    with (
        pytest.raises(ConfigurationError, match="differs from rank 0 in settings of the GPU"),
        ranks(path, 2, 8, computer=make),
    ):
        pass
