"""The watch that the scripted backend keeps over block moves."""

from __future__ import annotations

import pytest

from engine.backends.scripted import ScriptedBackend
from engine.batch import BLOCK, Batch
from engine.controls import RowControls, SampleRow
from tests.engine.backends.batches import Work, make_batch

FIRST = list(range(100, 100 + BLOCK))
SECOND = list(range(200, 200 + BLOCK))


def step(backend: ScriptedBackend, batch: Batch, *known: list[int]) -> None:
    """Compute a batch whose rows sample after these tokens."""
    ticket = backend.submit(batch)
    backend.sample(ticket, [SampleRow(RowControls(), 0, len(k), k, 1) for k in known])
    backend.collect(ticket)


@pytest.fixture
def backend() -> ScriptedBackend:
    backend = ScriptedBackend(4, host_blocks=2)
    step(backend, make_batch([Work([0], 0, FIRST), Work([1], 0, SECOND)]), FIRST, SECOND)
    return backend


def test_content_goes_to_host_memory_and_comes_back_to_another_block(backend) -> None:
    step(backend, make_batch([Work([0], 0, SECOND)], offloads=[(0, 1)]), SECOND)
    step(backend, make_batch([Work([3, 2], BLOCK, [7])], restores=[(1, 3)]), [*FIRST, 7])


def test_offloads_come_before_restores_and_these_before_copies_and_writes(backend) -> None:
    """Two blocks change places by way of host memory, and one is copied and written."""
    moves = {"offloads": [(0, 0), (1, 1)], "restores": [(0, 1), (1, 0)], "copies": [(1, 2)]}
    work = [Work([0, 3], BLOCK, [7]), Work([2], BLOCK - 1, [8])]
    step(backend, make_batch(work, **moves), [*SECOND, 7], [*FIRST[:-1], 8])


def test_a_row_that_reads_what_was_never_restored_is_noticed(backend) -> None:
    step(backend, make_batch([Work([2], 0, [1])], offloads=[(0, 1)]), [1])
    with pytest.raises(AssertionError, match="reads foreign KV"):
        step(backend, make_batch([Work([3, 2], BLOCK, [7])]), [*FIRST, 7])


def test_a_host_block_that_another_has_taken_is_noticed(backend) -> None:
    step(backend, make_batch([Work([2], 0, [1])], offloads=[(0, 1)]), [1])
    step(backend, make_batch([Work([2], 0, [1])], offloads=[(1, 1)]), [1])
    with pytest.raises(AssertionError, match="reads foreign KV"):
        step(backend, make_batch([Work([3, 2], BLOCK, [7])], restores=[(1, 3)]), [*FIRST, 7])


@pytest.mark.parametrize("host", [0, 1])
def test_restoring_what_was_not_offloaded_or_was_restored_is_noticed(backend, host) -> None:
    step(backend, make_batch([Work([2], 0, [1])], offloads=[(0, 0)]), [1])
    step(backend, make_batch([Work([2], 0, [1])], restores=[(0, 3), (0, 1)]), [1])
    with pytest.raises(AssertionError, match="restores from empty host block"):
        step(backend, make_batch([Work([3], 0, [7])], restores=[(host, 3)]), [7])


def test_offloading_beyond_the_host_memory_is_noticed(backend) -> None:
    with pytest.raises(AssertionError, match="there is no host block 2"):
        step(backend, make_batch([Work([2], 0, [1])], offloads=[(0, 2)]), [1])
