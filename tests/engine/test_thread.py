"""The engine thread: answers, sleeps when idle, and never leaves anybody waiting."""

import queue
import random
import threading
import time

import pytest
from support.engines import GREEDY, services

from engine.backends.scripted import ScriptedBackend, raising
from engine.blocks import BlockPool
from engine.clock import MonotonicClock
from engine.cost import LinearCost
from engine.errors import BackendLost
from engine.inbox import Abort, Stop, Submission
from engine.limits import Limits
from engine.loop import Engine
from engine.outputs import FailureKind, FinishReason, Output
from engine.scheduler import Scheduler
from engine.thread import EngineThread
from policies.base import Hold, Policy
from policies.fcfs import FCFS


class Runner:
    """A real thread around a scripted engine; outputs arrive in a queue."""

    def __init__(self, policy=FCFS, scheduler=Scheduler, depth=0, **scripted) -> None:
        self.outputs: queue.Queue[Output] = queue.Queue()
        self.exited = threading.Event()
        self.clock = MonotonicClock()
        self.backend = ScriptedBackend(64, **scripted)
        self.scheduler = scheduler(policy(services=services()), BlockPool(64), Limits(64, 8, 512))
        self.emits = 0
        engine = Engine(
            scheduler=self.scheduler,
            backend=self.backend,
            clock=self.clock,
            cost=LinearCost(),
            emit=self._emit,
            depth=depth,
        )
        self.thread = EngineThread(engine, on_exit=self.exited.set)

    def _emit(self, outputs, look) -> None:
        self.emits += 1
        for output in outputs:
            self.outputs.put(output)

    def submit(self, number: int, max_tokens: int = 3) -> None:
        self.thread.post(
            Submission(number, [number, 7], max_tokens, GREEDY, arrival=self.clock.now())
        )

    def end_of(self, number: int) -> Output:
        """Wait for the request's last output."""
        while True:
            output = self.outputs.get(timeout=60)
            if output.request == number and output.finish is not None:
                return output


@pytest.fixture
def runner():
    started: list[Runner] = []

    def start(**options) -> Runner:
        started.append(Runner(**options))
        started[-1].thread.start()
        return started[-1]

    yield start
    for one in started:
        one.thread.post(Stop())
        one.thread.join(60)
        assert not one.thread.alive


def test_requests_are_answered_and_an_idle_thread_takes_no_steps(runner) -> None:
    one = runner()
    one.submit(1)
    assert one.end_of(1).finish.reason is FinishReason.LENGTH
    before = one.emits
    one.submit(2, max_tokens=1)
    one.end_of(2)
    assert one.emits == before + 1, "an idle engine emits nothing between requests"


def test_stop_fails_what_is_open_and_ends_the_thread(runner) -> None:
    gate = threading.Event()
    one = runner(hooks={0: lambda batch: gate.wait(60)})
    one.submit(1, max_tokens=400)
    one.submit(2, max_tokens=400)
    one.thread.post(Stop())
    one.submit(3)
    gate.set()
    for number in (1, 2, 3):
        failure = one.end_of(number).finish.failure
        assert failure.kind is FailureKind.SHUTTING_DOWN
    assert one.exited.wait(60)
    assert one.thread.ended.kind is FailureKind.SHUTTING_DOWN


class BrokenScheduler(Scheduler):
    """Breaks the loop itself, not a step."""

    def schedule(self, now):
        if self.counters.steps == 2:
            raise RuntimeError("planted")
        return super().schedule(now)


def test_a_broken_loop_fails_everybody_and_says_so(runner) -> None:
    gate = threading.Event()
    one = runner(scheduler=BrokenScheduler, hooks={0: lambda batch: gate.wait(60)})
    for number in range(1, 12):  # more than there are rows: some wait
        one.submit(number, max_tokens=400)
    gate.set()
    for number in range(1, 12):
        finish = one.end_of(number).finish
        assert finish.reason is FinishReason.ERROR
        assert finish.failure.kind is FailureKind.ENGINE_FAULT
        assert "planted" not in finish.failure.message
    assert one.exited.wait(60)
    assert one.thread.ended.kind is FailureKind.ENGINE_FAULT


def test_whoever_posts_around_the_end_is_failed_there_or_sees_it_ended(runner) -> None:
    one = runner(scheduler=BrokenScheduler)
    refused = set()

    def post(first: int) -> None:
        for number in range(first, first + 200):
            one.submit(number, max_tokens=400)
            if one.thread.ended is not None:
                refused.add(number)

    threads = [threading.Thread(target=post, args=(1 + 1000 * i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert one.exited.wait(60)
    answered = set()
    while not one.outputs.empty():
        output = one.outputs.get()
        if output.finish is not None:
            answered.add(output.request)
    posted = {first + i for first in (1, 1001, 2001) for i in range(200)}
    assert posted == answered | refused


def test_a_raising_step_leaves_the_thread_alive(runner) -> None:
    one = runner(hooks={1: raising(RuntimeError("planted"))})
    one.submit(1, max_tokens=5)
    assert one.end_of(1).finish.reason is FinishReason.ERROR
    one.submit(2)
    assert one.end_of(2).finish.reason is FinishReason.LENGTH
    assert one.thread.ended is None


class OpensLater(Policy):
    """Holds everybody for 30 ms after arrival."""

    def pick(self, heads, step):
        best = heads.best()
        opens = heads[best].arrival + 0.03
        return best if step.now >= opens else Hold(opens)


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("call", ["submit", "collect"])
def test_a_backend_that_is_lost_ends_the_thread_and_everybody(call: str, depth: int) -> None:
    runner = Runner(depth=depth)

    def lost(*_: object) -> None:
        raise BackendLost("planted")

    setattr(runner.backend, call, lost)
    runner.submit(1)
    runner.submit(2)
    runner.thread.start()
    for number in (1, 2):
        finish = runner.end_of(number).finish
        assert finish.failure.kind is FailureKind.ENGINE_FAULT
    assert runner.exited.wait(60)
    assert runner.thread.ended is not None


def test_a_held_request_starts_when_the_hold_ends_without_any_message(runner) -> None:
    one = runner(policy=OpensLater)
    begun = time.monotonic()
    one.submit(1, max_tokens=1)
    assert one.end_of(1).at - begun >= 0.03


def test_aborts_at_random_moments_leak_nothing(runner) -> None:
    one = runner()
    rng = random.Random(5)
    for number in range(1, 200):
        one.submit(number, max_tokens=rng.randrange(1, 60))
        if rng.random() < 0.5:
            one.thread.post(Abort(rng.randrange(1, number + 1)))
    one.submit(1000, max_tokens=1)
    one.end_of(1000)
    one.thread.post(Stop())
    assert one.exited.wait(60)
    one.scheduler.check()
    counters = one.scheduler.counters
    assert counters.arrived == 200
    assert one.scheduler.pool.free == 64
