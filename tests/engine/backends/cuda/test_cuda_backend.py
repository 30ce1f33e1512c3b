"""The CUDA backend as a Backend: tickets, results in flight, what waits, faults."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from support.cpu_device import CPUDevice, CPUDownload
from support.cuda_parts import on_stand_in

from engine.backends.cpu import on_torch
from engine.backends.cuda.backend import CUDABackend
from engine.batch import Batch
from engine.controls import RowControls, Sampled, SampleRow, ScoredRow
from engine.errors import BackendLost, RowFault
from tests.engine.backends.batches import Work, greedy_rows, make_batch
from tests.engine.models.tiny_llama import CONFIG

PROMPT = [int(t) for t in np.random.default_rng(0).integers(0, CONFIG.vocab, 40)]
PENALISED = RowControls(temperature=0, repetition_penalty=1.8)

Make = Callable[..., CUDABackend]


@pytest.fixture
def device() -> CPUDevice:
    return CPUDevice()


@pytest.fixture
def backend(tiny: tuple, device: CPUDevice) -> CUDABackend:
    return on_stand_in(*tiny, 12, device=device, graphs=[2])


def step(backend, batch: Batch, controls: RowControls | None = None) -> Sampled:
    ticket = backend.submit(batch)
    backend.sample(ticket, greedy_rows(len(batch.sample_rows), controls))
    return backend.collect(ticket)


def begin(backend: CUDABackend, batch: Batch, rows: list[SampleRow] | None = None) -> int:
    """Submit and sample; the ticket."""
    ticket = backend.submit(batch)
    backend.sample(ticket, rows or greedy_rows(len(batch.sample_rows)))
    return ticket


def row(controls: RowControls, tokens: list[int], position: int) -> SampleRow:
    return SampleRow(controls, 0, position, tokens, len(PROMPT))


def test_results_come_in_the_order_of_the_sampled_rows(backend, tiny) -> None:
    work = [
        Work([0, 1, 2], 0, PROMPT),
        Work([3, 4, 5], 0, PROMPT[:7], samples=False),
        Work([6, 7, 8], 0, PROMPT[:20]),
    ]
    expected = step(on_torch(*tiny, 12), make_batch(work)).tokens
    assert len(set(expected)) == 2
    assert step(backend, make_batch(work)).tokens == expected


def test_a_row_that_samples_nothing_returns_nothing_and_fills_the_pool(backend, tiny) -> None:
    first = step(backend, make_batch([Work([0, 1, 2], 0, PROMPT[:30], samples=False)]))
    second = step(backend, make_batch([Work([0, 1, 2], 30, PROMPT[30:])]))
    assert (list(first.tokens), list(first.logprobs)) == ([], [])
    assert (
        second.tokens == step(on_torch(*tiny, 12), make_batch([Work([0, 1, 2], 0, PROMPT)])).tokens
    )


def test_nothing_waits_for_a_step_before_it_is_collected(backend, device) -> None:
    first = begin(backend, make_batch([Work([0, 1, 2], 0, PROMPT)]))
    device.trace.clear()
    second = begin(backend, make_batch([Work([0, 1, 2], 40, [-1])], copies=[(5, 6)]))
    third = begin(backend, make_batch([Work([0, 1, 2], 41, [-1])]))
    assert "wait" not in device.trace
    assert "synchronize" not in device.trace
    assert [len(backend.collect(t).tokens) for t in (first, second, third)] == [1, 1, 1]


def test_a_row_that_looks_back_waits_for_the_step_before_and_not_for_its_own(
    backend, device, tiny
) -> None:
    rows = [row(PENALISED, list(PROMPT), 40)]
    first = begin(backend, make_batch([Work([0, 1, 2], 0, PROMPT)]), rows)
    device.trace.clear()
    second = backend.submit(make_batch([Work([0, 1, 2], 40, [-1])]))
    assert "download" not in device.trace, "the tokens set out before the step was enqueued"
    assert "wait" not in device.trace
    backend.sample(second, [row(PENALISED, list(PROMPT), 41)])
    assert "wait" in device.trace
    tokens = [backend.collect(ticket).tokens[0] for ticket in (first, second)]

    reference, known = on_torch(*tiny, 12), list(PROMPT)
    for token in tokens:
        ticket = reference.submit(make_batch([Work([0, 1, 2], 0, known)]))
        reference.sample(ticket, [row(PENALISED, known, len(known))])
        assert reference.collect(ticket).tokens == [token]
        known.append(token)


def test_a_fault_names_rows_of_the_batch_and_leaves_the_other_tickets(backend, device) -> None:
    """The step before and the step behind it are collected as if nothing had been."""
    step(backend, make_batch([Work([3], 0, [5])]))
    healthy = make_batch([Work([4], 0, [1])])
    before, after = step(backend, healthy).tokens, step(backend, healthy).tokens
    backend._parts.pool.values[0, 3, 0] = torch.nan
    first = begin(backend, healthy)
    work = [
        Work([0, 1, 2], 0, PROMPT[:9], samples=False),
        Work([4], 0, [1]),
        Work([3], 1, [6]),
    ]
    faulty = begin(backend, make_batch(work))
    last = begin(backend, healthy)
    assert backend.collect(first).tokens == before
    with pytest.raises(RowFault, match="NaN") as caught:
        backend.collect(faulty)
    assert caught.value.rows == (2,)
    assert backend.collect(last).tokens == after
    device.check()


def test_a_step_that_cannot_be_enqueued_leaves_the_others(backend) -> None:
    work = [Work([0, 1, 2], 0, PROMPT)]
    expected = step(backend, make_batch(work)).tokens
    first = begin(backend, make_batch(work))
    broken = make_batch(work)
    broken.positions = broken.positions + CONFIG.context_length  # behind the table of rotations
    with pytest.raises(IndexError):
        backend.submit(broken)
    last = begin(backend, make_batch(work))
    assert backend.collect(first).tokens == backend.collect(last).tokens == expected


BROKEN_WORK = {
    "token": Work([0, 1, 2], 0, [*PROMPT[:9], CONFIG.vocab]),
    "sample row": Work([0, 1, 2], 9, [-2]),
    "position": Work(list(range(12)), CONFIG.context_length, [1]),
}


@pytest.mark.parametrize("what", BROKEN_WORK)
def test_what_a_gpu_would_not_survive_is_refused_before_anything_is_enqueued(
    backend, device, what: str
) -> None:
    step(backend, make_batch([Work([3], 0, [5])]))
    device.trace.clear()
    broken = BROKEN_WORK[what]
    batch = make_batch([Work([3], 1, [6])])
    batch.token_ids = np.array(broken.tokens, np.int32)
    batch.positions = np.arange(len(broken.tokens), dtype=np.int32) + broken.start
    with pytest.raises(IndexError, match=what):
        backend.submit(batch)
    assert device.trace == []


def test_a_device_that_computes_no_more_is_lost(backend, device, monkeypatch) -> None:
    def illegal(*_: object) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    batch = make_batch([Work([0, 1, 2], 0, PROMPT)])
    ticket = begin(backend, batch)
    monkeypatch.setattr(CPUDownload, "wait", illegal)
    with pytest.raises(RuntimeError, match="illegal"):
        backend.collect(ticket)  # it was something else: the device still answers
    ticket = begin(backend, batch)
    monkeypatch.setattr(device, "synchronize", illegal)
    with pytest.raises(BackendLost, match="illegal memory access"):
        backend.collect(ticket)
    monkeypatch.setattr(device, "upload", illegal)
    with pytest.raises(BackendLost, match="illegal memory access"):
        backend.submit(batch)
    backend.close()


def test_controls_for_other_rows_than_the_batch_has_are_refused(backend) -> None:
    ticket = backend.submit(make_batch([Work([0, 1, 2], 0, PROMPT)]))
    with pytest.raises(ValueError, match="2 rows of controls for 1 rows"):
        backend.sample(ticket, greedy_rows(2))


def test_tokens_in_flight_with_nothing_before_them_are_refused(backend) -> None:
    with pytest.raises(ValueError, match="in flight"):
        backend.submit(make_batch([Work([0], 0, [-1])]))


def test_prompts_are_scored_by_the_logits_behind_the_samples(backend, tiny) -> None:
    def scored() -> Batch:
        batch = make_batch([Work([3], 0, [5, 6]), Work([0, 1, 2], 0, PROMPT)])
        batch.scored = (ScoredRow(1, 3, PROMPT[4:9], 2),)
        targets = np.arange(2 + 3, 2 + 8, dtype=np.int32)
        batch.logit_rows = np.concatenate([batch.logit_rows, targets])
        return batch

    found, expected = (step(b, scored()) for b in (backend, on_torch(*tiny, 12)))
    assert found.tokens == expected.tokens
    (ours,), (theirs,) = found.prompt_logprobs, expected.prompt_logprobs
    assert len(ours) == 5
    for one, other in zip(ours, theirs, strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=1e-3)
        assert one.rank == other.rank


def test_a_closed_backend_holds_nothing_and_computes_nothing(backend) -> None:
    begin(backend, make_batch([Work([0, 1, 2], 0, PROMPT)]))
    backend.close()
    assert (backend.total_blocks, backend.host_blocks, backend.move_seconds) == (0, 0, 0)
    with pytest.raises(ValueError, match="closed"):
        backend.submit(make_batch([Work([0, 1, 2], 0, PROMPT)]))
    backend.close()
