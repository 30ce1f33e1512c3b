import itertools

import pytest
from support.engines import GREEDY, Harness

from engine.backends.simulated import SimulatedBackend
from engine.beam_search import BeamSearch
from engine.clock import VirtualClock
from engine.controls import RowControls
from engine.cost import LinearCost
from tests.engine.backends.batches import Work, make_batch


def test_a_virtual_step_lets_exactly_the_predicted_time_pass() -> None:
    cost = LinearCost(base=1.0, prompt_token=0.1, decode=0.01, kv_read=0.001, chunk_context=0.0001)
    clock = VirtualClock()
    harness = Harness(backend=SimulatedBackend.virtual(cost, 64, clock), budget=32)
    harness.clock = harness.engine.clock = clock
    harness.submit(40, max_tokens=2)
    times = [clock.now()]
    for _ in range(3):
        harness.engine.step(harness.mail)
        harness.mail = []
        times.append(clock.now())
    chunk, rest, decode = (b - a for a, b in itertools.pairwise(times))
    assert chunk == pytest.approx(1.0 + 0.1 * 32 + 0.001 * 32 + 0.0001 * 32 * 32)
    assert rest == pytest.approx(1.0 + 0.1 * 8 + 0.001 * 40 + 0.0001 * 8 * 40)
    assert decode == pytest.approx(1.0 + 0.01 + 0.001 * 41)


def test_steps_that_overlap_queue_up_behind_each_other() -> None:
    clock = VirtualClock()
    backend = SimulatedBackend.virtual(LinearCost(base=0.25), 64, clock)
    harness = Harness(backend=backend, depth=1)
    harness.clock = harness.engine.clock = clock
    request = harness.submit(4, max_tokens=4)
    while harness.engine.step(harness.mail):
        harness.mail = []
    times = [output.at for output in harness.outputs[request, 0]]
    assert times == pytest.approx([0.25, 0.5, 0.75, 1.0])


def test_the_default_text_is_the_alphabet_and_logprobs_are_there_when_asked_for() -> None:
    harness = Harness(backend=SimulatedBackend(LinearCost(), 64))
    request = harness.submit(4, max_tokens=28, controls=RowControls(logprobs=0))
    plain = harness.submit(4, max_tokens=1, controls=GREEDY)
    harness.run()
    assert bytes(harness.tokens(request)) == b"abcdefghijklmnopqrstuvwxyzab"
    assert all(len(output.logprobs) == 1 for output in harness.outputs[request, 0])
    assert harness.outputs[plain, 0][0].logprobs == ()


def test_each_move_to_host_memory_and_back_takes_its_time() -> None:
    clock = VirtualClock()
    backend = SimulatedBackend.virtual(
        LinearCost(base=0.25), 64, clock, host_blocks=8, move_seconds=0.5
    )
    assert (backend.host_blocks, backend.move_seconds) == (8, 0.5)
    batch = make_batch([Work([0], 0, [1], samples=False)], [(5, 6)], [(1, 2), (3, 4)], [(5, 7)])
    ticket = backend.submit(batch)
    backend.sample(ticket, [])
    backend.collect(ticket)
    assert clock.now() == 0.25 + 3 * 0.5


def test_beams_go_on_with_the_token_or_with_the_next_ids() -> None:
    harness = Harness(backend=SimulatedBackend(LinearCost(), 64, wait=lambda seconds: None))
    request = harness.submit(4, max_tokens=3, n=2, beams=BeamSearch(2))
    harness.run()
    assert [bytes(harness.tokens(request, index)) for index in range(2)] == [b"abc", b"abd"]
