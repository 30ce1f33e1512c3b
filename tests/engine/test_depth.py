"""Depth 1: the next step is planned and submitted while one is in flight."""

import random

import pytest
from support.engines import GREEDY, Harness

from engine.backends.scripted import ScriptedBackend, by_prompt, raising
from engine.backends.simulated import SimulatedBackend
from engine.clock import VirtualClock
from engine.controls import RowControls
from engine.cost import LinearCost
from engine.errors import RowFault
from engine.outputs import FinishReason


class Recording(ScriptedBackend):
    """Remembers the order of submissions and collections."""

    def __init__(self, *arguments, **options) -> None:
        super().__init__(*arguments, **options)
        self.order: list[str] = []

    def submit(self, batch):
        ticket = super().submit(batch)
        self.order.append(f"submit {ticket}")
        return ticket

    def collect(self, ticket):
        self.order.append(f"collect {ticket}")
        return super().collect(ticket)


@pytest.mark.parametrize(
    ("depth", "order"),
    [
        (0, ["submit 0", "collect 0", "submit 1", "collect 1", "submit 2", "collect 2"]),
        (1, ["submit 0", "submit 1", "collect 0", "submit 2", "collect 1", "collect 2"]),
    ],
)
def test_depth_says_what_overlaps(depth: int, order: list[str]) -> None:
    harness = Harness(backend=Recording(64), depth=depth)
    harness.submit(4, max_tokens=3)
    harness.run()
    assert harness.backend.order == order


def test_a_token_in_flight_is_written_as_the_row_that_samples_it() -> None:
    harness = Harness(depth=1)
    first, second = harness.submit(4, max_tokens=3), harness.submit(4, max_tokens=3)
    harness.run()
    ids = [batch.token_ids.tolist() for batch in harness.backend.batches]
    assert ids[1:] == [[-1, -2], [-1, -2]]
    assert len(harness.tokens(first)) == len(harness.tokens(second)) == 3


def test_no_row_is_computed_beyond_max_tokens() -> None:
    harness = Harness(depth=1)
    harness.submit(4, max_tokens=5)
    harness.run()
    assert harness.scheduler.counters.computed_rows == 5


def test_a_stop_token_costs_at_most_one_row_whose_result_is_dropped() -> None:
    harness = Harness(depth=1, script=by_prompt({(7,): [5, 6, 2, 9]}))
    controls = RowControls(temperature=0.0, eos_ids=frozenset({2}))
    request = harness.submit([7], max_tokens=50, controls=controls)
    harness.run()
    assert harness.tokens(request) == [5, 6, 2]
    assert harness.end(request).reason is FinishReason.STOP
    assert harness.scheduler.counters.computed_rows == 4


def test_blocks_in_flight_come_back_when_the_step_has_landed() -> None:
    harness = Harness(depth=1, blocks=4)
    request = harness.submit(20, max_tokens=30)
    harness.step()
    harness.step()
    harness.abort(request)
    free = harness.pool.free
    mail, harness.mail = harness.mail, []
    scheduler = harness.scheduler
    scheduler.abort(mail[0].id)
    assert harness.pool.free == free, "the step in flight may still write them"
    scheduler.check()
    harness.step()
    assert harness.pool.free == harness.pool.total


def workload(harness: Harness) -> list[int]:
    rng = random.Random(3)
    requests = []
    for _ in range(20):
        requests.append(harness.submit(rng.randrange(1, 60), max_tokens=rng.randrange(1, 30)))
        for _ in range(rng.randrange(4)):
            harness.step()
    harness.run()
    return requests


@pytest.mark.parametrize("blocks", [10, 200])
def test_depth_changes_no_token(blocks: int) -> None:
    eager, overlapped = (Harness(depth=depth, blocks=blocks, budget=24) for depth in (0, 1))
    for a, b in zip(workload(eager), workload(overlapped), strict=True):
        assert eager.tokens(a) == overlapped.tokens(b)
        assert eager.end(a) == overlapped.end(b)


@pytest.mark.parametrize("step", range(8))
@pytest.mark.parametrize("when", ["submit", "collect"])
def test_a_fault_takes_back_the_step_planned_on_it(step: int, when: str) -> None:
    hooks = {step: raising(RowFault([0], "planted"))} if when == "submit" else {}
    nan_rows = {step: [0]} if when == "collect" else {}
    harness = Harness(depth=1, budget=24, hooks=hooks, nan_rows=nan_rows)
    requests = [harness.submit(20, max_tokens=6) for _ in range(3)]
    harness.run()
    ends = [harness.end(request).reason for request in requests]
    assert ends.count(FinishReason.ERROR) == 1
    for request, reason in zip(requests, ends, strict=True):
        tokens = harness.tokens(request)
        assert tokens == [request * 1000 + i % 20 for i in range(len(tokens))]
        assert reason is FinishReason.ERROR or len(tokens) == 6
    assert harness.pool.free == harness.pool.total


def test_the_device_is_never_idle_between_overlapping_steps() -> None:
    """Planning takes 3 ms of virtual time, computing 10: at depth 1 only computing shows."""
    times = {}
    for depth in (0, 1):
        clock = VirtualClock()
        backend = SimulatedBackend.virtual(LinearCost(base=0.010), 64, clock)
        harness = Harness(backend=backend, depth=depth)
        harness.clock = harness.engine.clock = clock
        request = harness.submit(4, max_tokens=20, controls=GREEDY)
        while harness.end(request) is None:
            clock.advance(0.003)
            harness.engine.step(harness.mail)
            harness.mail = []
        times[depth] = harness.outputs[request, 0][-1].at - harness.outputs[request, 0][0].at
    assert times[0] == pytest.approx(19 * 0.013)
    assert times[1] == pytest.approx(19 * 0.010)


def test_overlapped_steps_are_charged_the_time_they_did_not_share() -> None:
    clock = VirtualClock()
    backend = SimulatedBackend.virtual(LinearCost(base=0.010), 64, clock)
    harness = Harness(backend=backend, depth=1)
    harness.clock = harness.engine.clock = clock
    harness.submit(4, max_tokens=6)
    seconds = []
    while harness.engine.step(harness.mail):
        harness.mail = []
        seconds.append(harness.stats.step_seconds)
    assert [s for s in seconds if s] == pytest.approx([0.010] * 6)
