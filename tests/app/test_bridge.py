"""The bridge between the threads: order, coalescing, cuts, and a `with` whose exit is the abort."""

import asyncio
import contextlib
import math
import random
import threading
import time

import pytest
from support.engines import GREEDY, services

from app.bounds import Bounds
from app.bridge import Bridge, NotReady, Stream
from app.room import Overloaded
from engine.backends.scripted import ScriptedBackend
from engine.blocks import BlockPool
from engine.clock import MonotonicClock
from engine.cost import LinearCost
from engine.inbox import Stop, Submission
from engine.limits import Limits
from engine.loop import Engine
from engine.outputs import FailureKind, FinishReason, Output
from engine.scheduler import Scheduler
from engine.thread import EngineThread
from policies.fcfs import FCFS


class House:
    """A bridge with a real engine thread on the scripted backend behind it."""

    def __init__(
        self,
        *,
        max_open=64,
        max_lag=4096,
        max_waiting=math.inf,
        rows=4,
        scheduler=Scheduler,
        **scripted,
    ) -> None:
        self.bridge = Bridge(bounds=Bounds(max_open, tokens=max_waiting), max_lag=max_lag)
        self.backend = ScriptedBackend(64, **scripted)
        limits = Limits(step_tokens=64, rows=rows, model_len=1024)
        self.scheduler = scheduler(FCFS(services=services()), BlockPool(64), limits)
        self.clock = MonotonicClock()
        engine = Engine(
            scheduler=self.scheduler,
            backend=self.backend,
            clock=self.clock,
            cost=LinearCost(),
            emit=self.bridge.emit,
        )
        self.thread = EngineThread(engine)
        self.bridge.start(self.thread)

    def submission(self, max_tokens: int = 5, n: int = 1) -> Submission:
        number = self.bridge.next_id()
        return Submission(number, [number, 7], max_tokens, GREEDY, self.clock.now(), n=n)

    async def settled(self) -> None:
        """Wait until the engine has nothing left, then check that nothing leaked."""
        await self.bridge.stop(grace=10)
        self.scheduler.check()
        assert self.scheduler.live == 0
        assert self.scheduler.pool.free == 64
        assert self.bridge.open_requests == 0


@pytest.fixture
async def house():
    async with contextlib.AsyncExitStack() as stack:

        def build(**options) -> House:
            one = House(**options)
            stack.push_async_callback(one.settled)
            return one

        yield build


async def read(stream: Stream) -> list[Output]:
    outputs: list[Output] = []
    while batch := await stream.next():
        outputs.extend(batch)
    return outputs


async def test_a_stream_gives_every_token_in_order_and_then_ends(house) -> None:
    one = house()
    submission = one.submission(max_tokens=30)
    with one.bridge.open(submission) as stream:
        outputs = await read(stream)
    assert [o.tokens[0] for o in outputs] == [submission.id, 7] * 15
    assert [o.finish is not None for o in outputs] == [False] * 29 + [True]
    assert await stream.next() == []


def busy_until(condition) -> None:
    """Keep the event loop busy, as other clients would, until `condition` holds."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


async def test_what_waited_comes_at_once_after_few_wake_ups(house) -> None:
    one = house()
    posted = 0
    loop = asyncio.get_running_loop()

    class CountingLoop:
        def call_soon_threadsafe(self, callback) -> None:
            nonlocal posted
            posted += 1
            loop.call_soon_threadsafe(callback)

    one.bridge._loop = CountingLoop()
    with one.bridge.open(one.submission(max_tokens=500)) as stream:
        busy_until(lambda: one.scheduler.counters.finished == 1)
        assert len(await read(stream)) == 500
    assert posted <= 2


async def test_leaving_the_with_is_the_abort(house) -> None:
    gate = threading.Event()
    one = house(rows=1, hooks={1: lambda batch: gate.wait(60)})
    with one.bridge.open(one.submission(max_tokens=400)) as running:
        await running.next()
        with one.bridge.open(one.submission(max_tokens=400)):
            pass  # left while queued
    gate.set()
    with one.bridge.open(one.submission()) as stream:
        await read(stream)
    assert one.scheduler.counters.cancelled == 2


async def test_leaving_by_an_exception_or_a_cancelled_task_aborts_too(house) -> None:
    gate = threading.Event()
    one = house(hooks={1: lambda batch: gate.wait(60)})
    entered = asyncio.Event()

    async def client() -> None:
        with one.bridge.open(one.submission(max_tokens=900)) as stream:
            await stream.next()
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(client())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(ValueError, match="planted"), one.bridge.open(one.submission()):
        raise ValueError("planted")
    gate.set()
    await one.settled()
    assert one.scheduler.counters.cancelled == 2


async def test_finish_at_ends_the_sequence_as_finished_not_as_cancelled(house) -> None:
    gate = threading.Event()
    one = house(hooks={1: lambda batch: gate.wait(60)})
    with one.bridge.open(one.submission(max_tokens=900)) as stream:
        await stream.next()
        stream.finish_at(1, 0, 1)
        gate.set()
        assert await stream.next() == []
        assert stream.finished
    await one.settled()
    assert one.scheduler.counters.finished == 1
    assert one.scheduler.counters.cancelled == 0


async def test_sequences_end_one_by_one(house) -> None:
    gate = threading.Event()
    one = house(hooks={2: lambda batch: gate.wait(60)})
    with one.bridge.open(one.submission(max_tokens=300, n=2)) as stream:
        await stream.next()
        stream.finish_at(1, 1, 1)
        gate.set()
        rest = await read(stream)
        assert {output.index for output in rest} == {0}
        assert rest[-1].finish.reason is FinishReason.LENGTH


async def test_the_house_is_full_at_max_open_sequences(house) -> None:
    one = house(max_open=3)
    with one.bridge.open(one.submission(n=2)), one.bridge.open(one.submission()):
        with pytest.raises(Overloaded, match="holds 3 sequences and takes 3 at most") as refusal:
            one.bridge.require_room()
        assert refusal.value.retry_after > 0
        with pytest.raises(Overloaded), one.bridge.open(one.submission()):
            pytest.fail("one too many was let in")
    with one.bridge.open(one.submission()) as stream:
        assert len(await read(stream)) == 5


async def test_prompts_that_wait_have_so_many_tokens_together_and_no_more(house) -> None:
    gate = threading.Event()
    one = house(max_waiting=5, hooks={0: lambda batch: gate.wait(60)})
    with one.bridge.open(one.submission()) as first, one.bridge.open(one.submission()):
        one.bridge.require_room(tokens=1)
        with pytest.raises(
            Overloaded, match=r"of 4 tokens of the server wait .* and 5 may"
        ) as refusal:
            one.bridge.require_room(tokens=2)
        assert refusal.value.retry_after > 0
        with pytest.raises(Overloaded), one.bridge.open(one.submission()):
            pytest.fail("two tokens too many were let in")
        gate.set()
        await first.next()
        one.bridge.require_room(tokens=3)


async def test_who_leaves_waits_no_more(house) -> None:
    gate = threading.Event()
    one = house(max_waiting=4, hooks={0: lambda batch: gate.wait(60)})
    with one.bridge.open(one.submission()):
        with one.bridge.open(one.submission()), pytest.raises(Overloaded):
            one.bridge.require_room()
        one.bridge.require_room(tokens=2)
        gate.set()


async def test_a_prompt_longer_than_may_wait_is_taken_when_nobody_waits(house) -> None:
    one = house(max_waiting=4)
    long = Submission(one.bridge.next_id(), [1] * 50, 3, GREEDY, one.clock.now())
    with one.bridge.open(long) as stream:
        assert (await read(stream))[-1].finish.reason is FinishReason.LENGTH


async def test_a_reader_that_lags_is_cut_and_nobody_else_is(house) -> None:
    # Once both are there, each step waits until the keen reader has read an earlier one.
    turn = threading.Semaphore(0)
    hooks = {step: lambda batch: turn.acquire(timeout=60) for step in range(120)}
    one = house(max_lag=50, hooks=hooks)
    cuts: list[str] = []
    with one.bridge.open(
        one.submission(max_tokens=110), on_cut=lambda: cuts.append("slow")
    ) as slow:
        with one.bridge.open(one.submission(max_tokens=100)) as keen:
            turn.release(2)
            read_by_keen = 0
            while batch := await keen.next():
                read_by_keen += len(batch)
                turn.release()
            assert read_by_keen == 100
        turn.release(200)
        (cut,) = await slow.next()
        assert cut.finish.reason is FinishReason.ERROR
        assert cut.finish.failure.kind is FailureKind.CLIENT_LAGGED
        assert cuts == ["slow"]
        assert await slow.next() == []


async def test_draining_refuses_newcomers_and_lets_open_requests_end(house) -> None:
    gate = threading.Event()
    one = house(hooks={1: lambda batch: gate.wait(60)})
    with one.bridge.open(one.submission(max_tokens=300)) as stream:
        await stream.next()
        one.bridge.drain()
        with pytest.raises(NotReady) as refusal, one.bridge.open(one.submission()):
            pytest.fail("a draining server let somebody in")
        gate.set()
        assert refusal.value.failure.kind is FailureKind.SHUTTING_DOWN
        outputs = await read(stream)
        assert outputs[-1].finish.reason is FinishReason.LENGTH


async def test_after_the_grace_period_what_is_still_open_fails(house) -> None:
    # The engine goes on once it has been told to stop, and not before.
    gate = threading.Event()
    one = house(hooks={3: lambda batch: gate.wait(60)})
    post = one.thread.post

    def post_and_open(message) -> None:
        post(message)
        if isinstance(message, Stop):
            gate.set()

    one.thread.post = post_and_open
    with one.bridge.open(one.submission(max_tokens=900)) as stream:
        await stream.next()
        stopping = asyncio.create_task(one.bridge.stop(grace=0.01))
        outputs = await read(stream)
        await stopping
    assert outputs[-1].finish.failure.kind is FailureKind.SHUTTING_DOWN


class BrokenScheduler(Scheduler):
    def schedule(self, now):
        if self.counters.steps == 2:
            raise RuntimeError("planted")
        return super().schedule(now)


async def test_when_the_engine_breaks_open_streams_fail_and_new_ones_are_refused(house) -> None:
    one = house(scheduler=BrokenScheduler)
    with one.bridge.open(one.submission(max_tokens=900)) as stream:
        outputs = await read(stream)
        assert outputs[-1].finish.failure.kind is FailureKind.ENGINE_FAULT
    await asyncio.to_thread(one.thread.join, 10)
    assert one.bridge.broken
    with pytest.raises(NotReady), one.bridge.open(one.submission()):
        pytest.fail("a broken engine let somebody in")


async def test_a_bridge_that_has_not_started_takes_nobody() -> None:
    bridge = Bridge(bounds=Bounds(4), max_lag=100)
    with pytest.raises(NotReady) as refusal, bridge.open(Submission(1, [1], 1, GREEDY, 0.0)):
        pytest.fail("there is no engine yet")
    assert refusal.value.failure.kind is FailureKind.NOT_READY
    with pytest.raises(NotReady):
        bridge.require_room()


async def test_observers_see_every_output_once(house) -> None:
    one = house()
    seen: list[Output] = []
    one.bridge.add_observer(lambda outputs, stats: seen.extend(outputs))
    with one.bridge.open(one.submission(max_tokens=20)) as stream:
        outputs = await read(stream)
    assert seen == outputs
    assert one.bridge.stats.counters.generated_tokens == 20


async def test_an_observer_that_fails_keeps_nobody_from_their_tokens(house, caplog) -> None:
    one = house()
    seen: list[Output] = []

    def broken(outputs, stats) -> None:
        raise RuntimeError("planted")

    one.bridge.add_observer(broken)
    one.bridge.add_observer(lambda outputs, stats: seen.extend(outputs))
    with (
        one.bridge.open(one.submission(max_tokens=9)) as first,
        one.bridge.open(one.submission(max_tokens=9)) as second,
    ):
        outputs = await read(first) + await read(second)
    assert len(outputs) == len(seen) == 18
    assert "planted" in caplog.text


async def test_64_clients_that_leave_at_random_moments_leave_nothing_behind(house) -> None:
    rng = random.Random(11)
    one = house(max_open=64, rows=8)

    async def client() -> None:
        with one.bridge.open(one.submission(max_tokens=rng.randrange(1, 60))) as stream:
            if rng.random() < 0.33:
                for _ in range(rng.randrange(6)):
                    await stream.next()
            else:
                await read(stream)

    for _ in range(5):
        await asyncio.gather(*(client() for _ in range(64)))
    await one.settled()
    counters = one.scheduler.counters
    assert counters.arrived == 5 * 64 == counters.finished + counters.cancelled


async def test_nobody_is_cut_whose_client_does_not_set_the_pace(house) -> None:
    one = house(max_lag=5)
    with one.bridge.open(one.submission(max_tokens=50), streamed=False) as stream:
        busy_until(lambda: one.scheduler.counters.finished == 1)
        outputs = await read(stream)
    assert len(outputs) == 50
    assert outputs[-1].finish.failure is None


# -------------------------------------------------------------------- outputs that are pushed


async def test_who_takes_outputs_without_waiting_wakes_up_for_the_end_only(house) -> None:
    gate = threading.Event()
    one = house(hooks={1: lambda batch: gate.wait(60)})
    pushed: list[Output] = []

    def push(outputs) -> bool:
        pushed.extend(outputs)
        gate.set()
        return True

    submission = one.submission(max_tokens=30)
    with one.bridge.open(submission) as stream:
        last = await stream.next(push)
        assert await stream.next(push) == []
    outputs = [*pushed, *last]
    assert [o.tokens[0] for o in outputs] == [submission.id, 7] * 15
    assert last[-1].finish is not None
    assert all(output.finish is None for output in pushed)
    assert pushed


async def test_what_is_not_taken_is_read_in_order(house) -> None:
    gate = threading.Event()
    one = house(hooks={1: lambda batch: gate.wait(60)})
    refused: list[Output] = []

    def push(outputs) -> bool:
        refused.extend(outputs)
        return False

    submission = one.submission(max_tokens=30)
    with one.bridge.open(submission) as stream:
        outputs = await stream.next(push)
        gate.set()
        while batch := await stream.next(push):
            outputs += batch
    assert refused
    assert [o.tokens[0] for o in outputs] == [submission.id, 7] * 15


async def test_what_taking_raises_is_raised_to_who_waits_and_to_nobody_else(house) -> None:
    gate = threading.Event()
    one = house(hooks={1: lambda batch: gate.wait(60)})

    def push(outputs) -> bool:
        raise RuntimeError("no such letter")

    with one.bridge.open(one.submission()) as stream, one.bridge.open(one.submission()) as other:
        with pytest.raises(RuntimeError, match="no such letter"):
            await stream.next(push)
        gate.set()
        assert len(await read(other)) == 5


async def test_an_end_that_is_found_while_taking_drops_what_waits(house) -> None:
    gate = threading.Event()
    one = house(hooks={1: lambda batch: gate.wait(60)})
    submission = one.submission(max_tokens=500)
    with one.bridge.open(submission) as stream:

        def push(outputs) -> bool:
            stream.finish_at(submission.id, 0, 1)
            gate.set()
            return True

        assert await stream.next(push) == []
        assert stream.finished
    assert one.scheduler.counters.finished <= 1


async def test_nothing_is_pushed_once_nobody_waits(house) -> None:
    gate = threading.Event()
    one = house(hooks={1: lambda batch: gate.wait(60)})
    pushed: list[Output] = []

    def push(outputs) -> bool:
        pushed.extend(outputs)
        return True

    with one.bridge.open(one.submission(max_tokens=3)) as stream:
        await stream.next()
        waiting = asyncio.ensure_future(stream.next(push))
        await asyncio.sleep(0)
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiting
        gate.set()
        assert len(await read(stream)) == 2
    assert pushed == []
