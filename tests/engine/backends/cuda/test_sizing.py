"""The pool is as large as the largest step lets it be, and a device that is too small says so."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.cpu_device import CPUDevice
from support.cuda_parts import on_stand_in

from engine.backends.cuda.model import random_weights
from engine.backends.cuda.sizing import (
    Room,
    check_weights,
    largest_step,
    measured_room,
    pool_blocks,
)
from engine.batch import BLOCK
from engine.capacity import KV_DTYPES
from engine.errors import ModelError, TooLittleDeviceMemory, TooLittleMemory, TooMuchMemory
from tests.engine.models.tiny_llama import CONFIG

GIB = 1 << 30
MIB = 1 << 20
BLOCK_BYTES = BLOCK * CONFIG.kv_bytes_per_token(KV_DTYPES["float32"])


class FullDevice(CPUDevice):
    """A device on which each call of `free_memory` finds so many bytes less."""

    def __init__(self, free: int, total: int, taken: int) -> None:
        super().__init__((free + taken, total))
        self._taken = taken

    def free_memory(self) -> tuple[int, int]:
        free, total = self.memory
        self.memory = free - self._taken, total
        return self.memory


def test_the_pool_is_a_fraction_of_what_is_free() -> None:
    assert pool_blocks(Room(80 * GIB, 50 * GIB), 2 * MIB, None, 0.9) == 23040
    assert pool_blocks(Room(80 * GIB, 50 * GIB), 2 * MIB, None, 0.5) == 12800


def test_all_of_what_is_free_leaves_room_for_the_dummy_block() -> None:
    assert pool_blocks(Room(GIB, 10 * MIB), 2 * MIB, None, 1.0) == 4


def test_a_pool_that_somebody_asked_for_is_given_in_whole_blocks() -> None:
    assert pool_blocks(Room(80 * GIB, 50 * GIB), 2 * MIB, 9 * MIB, 0.9) == 4


@pytest.mark.parametrize(("wanted", "what"), [(11 * MIB, "a KV cache of 0.01 GiB"), (None, "one")])
def test_what_does_not_fit_is_said_with_the_numbers(wanted: int | None, what: str) -> None:
    room = Room(total=80 * GIB, free=3 * MIB, weights=70 * GIB, step=9 * GIB)
    with pytest.raises(TooLittleDeviceMemory, match=f"^{what}") as caught:
        pool_blocks(room, 2 * MIB, wanted, 0.9 if wanted else 0.5)
    assert caught.value.knob == "kv_memory"
    assert "80.00 GiB" in str(caught.value)
    assert "weights take 70.00 GiB, a step 9.00 GiB" in str(caught.value)


def test_what_the_largest_step_takes_is_seen_when_it_is_over() -> None:
    device = FullDevice(5 * GIB, 8 * GIB, taken=GIB)
    room = measured_room(device, 2 * GIB, lambda: None, 64)
    assert room == Room(total=8 * GIB, free=4 * GIB, weights=2 * GIB, step=GIB)
    assert device.trace == ["synchronize"]


def test_a_step_that_does_not_fit_names_its_size() -> None:
    def compute() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(TooLittleDeviceMemory, match="a step of 4096 tokens does") as caught:
        measured_room(CPUDevice((GIB, 8 * GIB)), 7 * GIB, compute, 4096)
    assert caught.value.knob == "max_step_tokens"


def test_weights_that_do_not_fit_are_refused_before_they_are_read() -> None:
    large = replace(CONFIG, hidden=8192, ffn=28672, layers=80, vocab=128256)
    with pytest.raises(ModelError, match=r"GiB in bfloat16, and 2\.00 GiB of the device's 8\.00"):
        check_weights(large, torch.bfloat16, CPUDevice((2 * GIB, 8 * GIB)))
    check_weights(CONFIG, torch.bfloat16, CPUDevice((2 * GIB, 8 * GIB)))


@pytest.mark.parametrize(("tokens", "rows"), [(64, 16), (16, 16), (1, 5), (300, 4), (257, 2)])
def test_the_largest_step_has_all_tokens_and_rows_within_the_context(tokens, rows) -> None:
    batch = largest_step(CONFIG, tokens, rows)
    context = CONFIG.context_length
    assert batch.tokens == min(tokens, rows * context)
    assert len(batch.rows) == min(tokens, rows)
    assert len(batch.token_ids) == len(batch.slots) == batch.tokens
    assert batch.positions.max() < context
    assert not batch.kv_indices.any()
    assert (batch.slots < BLOCK).all()
    assert (batch.kv_lens == np.diff(batch.qo_indptr)).all()
    counts = list(batch.rows.counts)
    assert counts == sorted(counts), "decodes come first"
    assert (batch.logit_rows[: len(counts)] == batch.qo_indptr[1:] - 1).all()
    assert sum(len(row.targets) for row in batch.scored) == sum(c for c in counts if c > 1)
    assert set(batch.logit_rows.tolist()) == set(range(batch.tokens))


def test_a_backend_takes_the_fraction_that_it_is_told() -> None:
    weights = random_weights(CONFIG, 0, torch.device("cpu"), torch.float32)
    device = CPUDevice((100 * BLOCK_BYTES, GIB))
    backend = on_stand_in(
        weights, CONFIG, 0, device=device, kv_memory_bytes=None, memory_fraction=0.5, graphs=False
    )
    assert backend.total_blocks == 50


def test_the_largest_step_has_its_memory_again_behind_the_graphs(tiny) -> None:
    """A capture makes torch give back what it kept of the step before."""

    class Emptied(CPUDevice):
        kept = 0

        def capture(self, work):
            self.kept = 0
            return super().capture(work)

        def download(self, tensor):  # at the end of the largest step, and of none before serving
            self.kept += 1
            return super().download(tensor)

    for graphs in (False, [1, 2]):
        device = Emptied()
        on_stand_in(*tiny, 4, device=device, graphs=graphs)
        assert device.kept


def test_memory_that_cannot_be_is_refused_with_its_knob() -> None:
    weights = random_weights(CONFIG, 0, torch.device("cpu"), torch.float32)
    for knob, size, error in (
        ("kv_memory", BLOCK_BYTES - 1, TooLittleMemory),
        ("kv_memory", 1 << 60, TooLittleDeviceMemory),
        ("offload_memory", BLOCK_BYTES - 1, TooLittleMemory),
        ("offload_memory", 1 << 60, TooMuchMemory),
    ):
        with pytest.raises(error) as caught:
            on_stand_in(weights, CONFIG, 4, **{f"{knob}_bytes": size})
        assert caught.value.knob == knob
