"""Faults in a step end the requests they must and no others."""

import pytest
from support.engines import Harness

from engine.backends.scripted import raising
from engine.errors import RowFault
from engine.outputs import FailureKind, FinishReason


def expected(request: int, prompt: int, count: int) -> list[int]:
    return [request * 1000 + i % prompt for i in range(count)]


@pytest.mark.parametrize("step", range(6))
@pytest.mark.parametrize("row", [0, 1, 2])
def test_a_row_fault_fails_its_request_only_and_the_neighbours_keep_every_token(
    step: int, row: int
) -> None:
    harness = Harness(budget=24, hooks={step: raising(RowFault([row], "planted"))})
    requests = [harness.submit(20, max_tokens=8) for _ in range(3)]
    harness.run()
    rows = harness.backend.batches[step].rows
    # A fault that names no row of the batch is a fault of all of them.
    faulty = {r.request for r in ([rows[row]] if row < len(rows) else rows)}
    for request in requests:
        finish = harness.end(request)
        if request in faulty:
            assert finish.reason is FinishReason.ERROR
            assert finish.failure.kind is FailureKind.ENGINE_FAULT
            assert "planted" not in finish.failure.message, "internals are not for clients"
        else:
            assert finish.reason is FinishReason.LENGTH
            assert harness.tokens(request) == expected(request, 20, 8)
    assert harness.pool.free == harness.pool.total
    assert harness.scheduler.counters.failed == len(faulty)


def test_nan_logits_are_a_row_fault() -> None:
    harness = Harness(nan_rows={3: [1]})
    first, second = harness.submit(4, max_tokens=8), harness.submit(4, max_tokens=8)
    harness.run()
    assert harness.tokens(first) == expected(first, 4, 8)
    assert harness.end(second).reason is FinishReason.ERROR
    assert harness.tokens(second) == expected(second, 4, 3)


def test_any_other_exception_fails_the_requests_of_the_step_and_spares_the_rest() -> None:
    harness = Harness(rows=2, hooks={2: raising(RuntimeError("planted"))})
    requests = [harness.submit(4, max_tokens=8) for _ in range(4)]
    harness.run()
    for request in requests[:2]:
        assert harness.end(request).reason is FinishReason.ERROR
    for request in requests[2:]:
        assert harness.tokens(request) == expected(request, 4, 8)
    assert harness.pool.free == harness.pool.total


def test_a_fault_in_a_chunk_gives_back_the_blocks_taken_for_it() -> None:
    harness = Harness(budget=32, hooks={1: raising(RowFault([0], "planted"))})
    doomed = harness.submit(8, max_tokens=8)
    harness.step()
    long = harness.submit(100, max_tokens=2)
    harness.run()
    assert harness.end(doomed).reason is FinishReason.ERROR
    assert harness.tokens(long) == expected(long, 100, 2)


def test_stats_count_what_happened() -> None:
    harness = Harness()
    harness.submit(20, max_tokens=3)
    harness.step()
    assert (harness.stats.running, harness.stats.waiting) == (1, 0)
    assert (harness.stats.step_tokens, harness.stats.step_rows) == (20, 1)
    assert harness.stats.blocks_free == harness.pool.total - 2
    harness.run()
    assert harness.stats.running == 0
    assert harness.stats.blocks_free == harness.stats.blocks_total == harness.pool.total
    counters = harness.stats.counters
    assert (counters.steps, counters.generated_tokens, counters.finished) == (3, 3, 1)


def test_an_abort_shows_in_the_stats_although_nothing_is_computed() -> None:
    harness = Harness()
    request = harness.submit(20, max_tokens=9)
    harness.step()
    harness.abort(request)
    assert harness.step() is False
    assert harness.stats.running == 0
    assert harness.stats.blocks_free == harness.pool.total


def test_a_snapshot_does_not_change_afterwards() -> None:
    harness = Harness()
    harness.submit(4, max_tokens=5)
    harness.step()
    snapshot = harness.stats
    harness.run()
    assert snapshot.counters.generated_tokens == 1


def test_times_are_ordered() -> None:
    harness = Harness(rows=1)
    requests = [harness.submit(4, max_tokens=3) for _ in range(3)]
    harness.clock.advance(1.0)
    harness.run()
    for request in requests:
        outputs = harness.outputs[request, 0]
        times = [output.at for output in outputs]
        timing = outputs[0].timing
        assert timing.arrival <= timing.admitted <= times[0]
        assert times == sorted(times)
