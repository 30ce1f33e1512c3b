"""Between the two threads: requests go in, outputs come out, leaving the `with` is the abort.

         asyncio thread                      |      engine thread
    open ── post(Submission) ───────────── inbox ──▶ loop
    Stream ◀─ deliver ◀─ one wake-up ── outbox ◀─── emit, once a step

The engine never waits for anybody here: `emit` appends and posts a wake-up only if none is
pending. A reader takes all that waited for it; one that lags too far is cut. Who can use outputs
without waiting for anything is handed them by the wake-up itself: a task that wakes up for a token
costs more than the token.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TypeVar

from app.bounds import Bounds
from app.room import ANY_TERMS, ANYBODY, Room
from app.step_watch import StepWatch
from app.tenancy import Tenant, Terms
from engine.clock import Clock
from engine.inbox import (
    Abort,
    Explain,
    FinishAt,
    Inspect,
    Message,
    PolicyName,
    Reconfigure,
    Stop,
    Submission,
)
from engine.limits import ClassLimits
from engine.outputs import (
    Explanations,
    Failure,
    FailureKind,
    Finish,
    FinishReason,
    Handover,
    Inspection,
    Look,
    Output,
    Stats,
)
from engine.thread import EngineThread
from policies.base import Policy

Answer = TypeVar("Answer")

STUCK_S = 15.0
"""Seconds that the engine thread may take to end; it looks up after each step."""

INSPECTION_S = 5.0
"""Seconds that the engine may take to answer a look inside; it reads its mail before each step."""

Push = Callable[[Sequence[Output]], bool]
"""Takes outputs at once, or returns False."""

Observer = Callable[[Sequence[Output], Stats], None]

log = logging.getLogger("octavo.bridge")

LAGGED = Failure(FailureKind.CLIENT_LAGGED, "the client reads too slowly; the stream was cut")
NOT_STARTED = Failure(FailureKind.NOT_READY, "the engine has not started yet", 1.0)
BUSY = Failure(FailureKind.NOT_READY, "the engine is too busy to be looked into", 1.0)
DRAINING = Failure(FailureKind.SHUTTING_DOWN, "the server is shutting down", 5.0)


class NotReady(Exception):
    """No requests are taken: the server starts or drains, or the engine has ended."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def _nothing() -> None:
    """For whoever does not mind a cut."""


class Stream:
    """The outputs of some requests that are answered together, in order. Made by `Bridge.open`."""

    def __init__(
        self,
        bridge: Bridge,
        submissions: Sequence[Submission],
        max_lag: float,
        on_cut: Callable[[], None],
    ) -> None:
        self._bridge = bridge
        self._open = {(each.id, index) for each in submissions for index in range(each.n)}
        self._max_lag = max_lag
        self._on_cut = on_cut
        self._waiting: list[Output] = []
        self._lag = 0
        self._wake = asyncio.Event()
        self._generated: Counter[tuple[int, int]] = Counter()
        self.failed = False
        """Whether the server ended a sequence, for whatever reason."""
        self._push: Push | None = None
        self._fault: Exception | None = None

    def used(self, submissions: Sequence[Submission]) -> int:
        """Tokens that came, and those of the prompts of whom they came for."""
        begun = {request for request, _ in self._generated}
        prompts = sum(len(each.prompt) for each in submissions if each.id in begun)
        return prompts + self._generated.total()

    @property
    def unfinished(self) -> list[int]:
        """Requests with a sequence that has not ended, as far as this end of the stream knows."""
        return sorted({request for request, _ in self._open})

    @property
    def finished(self) -> bool:
        """Whether every sequence has ended, as far as this end of the stream knows."""
        return not self._open

    async def next(self, push: Push | None = None) -> list[Output]:
        """Everything that came since the last call, at least one output; [] after the end.

        push: is handed what comes while this waits, as long as it takes it and no sequence ends.
        Called on the event loop; what it raises is raised here.
        """
        while not self._waiting:
            if not self._open:
                return []
            self._wake.clear()
            self._push = push
            try:
                await self._wake.wait()
            finally:
                self._push = None
            if self._fault is not None:
                raise self._fault
        outputs, self._waiting, self._lag = self._waiting, [], 0
        return outputs

    def finish_at(self, request: int, index: int, tokens: int) -> None:
        """A stop string ends a sequence with its `tokens`-th token; later ones are void."""
        if (request, index) in self._generated:
            self._generated[request, index] = tokens
        if (request, index) in self._open:
            self._open.discard((request, index))
            self._waiting = [
                output
                for output in self._waiting
                if output.request != request or output.index != index
            ]
            self._bridge.post(FinishAt(request, index, tokens))

    def put(self, output: Output) -> bool:
        """Take an output in; False if the reader lags too far and must be cut."""
        key = (output.request, output.index)
        if key not in self._open:
            return True
        count = len(output.tokens)
        if count:
            self._generated[key] += count
        if output.finish is None:
            self._lag += count
        else:  # however much it says, nothing comes after it to lag behind
            self._open.discard(key)
            self.failed = self.failed or output.finish.failure is not None
            self._push = None
        self._waiting.append(output)
        return self._lag <= self._max_lag

    def flush(self) -> None:
        """Let the reader have what was put: at once if it takes it so, else it wakes up."""
        if self._push is None or not self._pushed(self._push):
            self._wake.set()

    def _pushed(self, push: Push) -> bool:
        """Whether the reader took what waits, and waits for more.

        What it raises is its own, and must not keep others from what is theirs.
        """
        outputs, self._waiting = self._waiting, []  # it may end a sequence, which drops its outputs
        try:
            if push(outputs):
                self._lag = 0
                return bool(self._open)
        except Exception as error:
            self._fault, self._push = error, None
            return False
        self._waiting = outputs
        return False

    def cut(self, failure: Failure, at: float) -> None:
        """Replace what waits by an error for each open sequence."""
        finish = Finish(FinishReason.ERROR, failure=failure)
        keys = sorted(self._open | {(output.request, output.index) for output in self._waiting})
        self._waiting = [Output(request, index, at, finish=finish) for request, index in keys]
        self._open.clear()
        self._push = None
        self._wake.set()
        self._on_cut()


class Bridge:
    """The asyncio side's only way to the engine. All methods but `emit` run on the event loop."""

    def __init__(
        self,
        *,
        bounds: Bounds,
        max_lag: int,
        stuck_after_s: float | None = None,
        clock: Clock | None = None,
    ) -> None:
        """bounds, clock: as of Room. stuck_after_s: as of StepWatch.

        max_lag: tokens that a reader may lag behind.
        """
        self._room = Room(bounds, clock)
        self._max_lag = max_lag
        self._streams: dict[int, Stream] = {}
        self._ids = itertools.count(1)
        self._outbox: deque[tuple[Sequence[Output], Stats]] = deque()
        self._wake_up_posted = False
        self._observers: list[Observer] = []
        self._watch = StepWatch(stuck_after_s)
        self._thread: EngineThread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._draining: Failure | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self.stats = Stats()

    # ---------------------------------------------------------------- life

    def start(self, thread: EngineThread) -> None:
        """Start the engine thread; its engine must emit into this bridge."""
        self._loop = asyncio.get_running_loop()
        self._thread = thread
        thread.start()

    def drain(self, grace: float | None = None) -> None:
        """Refuse new requests from now on; fail those still open after `grace` seconds."""
        self._draining = DRAINING
        if grace is not None and self._loop is not None:
            self._loop.call_later(grace, self._end)

    async def stop(self, grace: float) -> None:
        """Drain, let open requests end within `grace` seconds, end the thread."""
        self.drain()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), grace)
        self._end()
        await self.ended()

    async def ended(self) -> None:
        """Wait until the engine thread has ended, and everybody has been told so."""
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, STUCK_S)
            if self._thread.alive:
                log.error("the engine does not end; it is left behind")
            self._deliver()

    def _end(self) -> None:
        """Tell the engine to stop; it fails what is still open."""
        if self._thread is not None:
            self._thread.post(Stop())

    @property
    def failure(self) -> Failure | None:
        """Why no requests are taken, or None while they are."""
        if self._thread is None:
            return NOT_STARTED
        return self._thread.ended or self._draining or self._watch.stuck(self._thread)

    @property
    def broken(self) -> Failure | None:
        """Why a new process is needed: the engine has ended unasked, or is stuck; None if not."""
        if self._thread is None:
            return None
        ended = self._thread.ended
        if ended is None:
            return self._watch.stuck(self._thread)
        return ended if ended.kind is FailureKind.ENGINE_FAULT else None

    @property
    def open_requests(self) -> int:
        """Requests inside a `with open(...)`."""
        return len(self._streams)

    # ---------------------------------------------------------------- requests

    def next_id(self) -> int:
        """An id for a submission: unique, and none of the client's business."""
        return next(self._ids)

    def require_room(
        self,
        tenant: Tenant = ANYBODY,
        terms: Terms | None = None,
        sequences: int = 1,
        tokens: int = 1,
    ) -> None:
        """Raise Overloaded, QuotaExceeded or NotReady if such a request would be refused now.

        terms: of its class; None if that is not known. tokens: of its prompts.
        To be asked before work is put into reading a request; `open` asks again.
        """
        if (failure := self.failure) is not None:
            raise NotReady(failure)
        self._room.require(tenant, terms, sequences, tokens)

    def expected_waits(self) -> dict[str, float]:
        """By class: seconds until a small request that came now would have its first token."""
        return self._room.expected_waits()

    @contextmanager
    def open(
        self,
        *submissions: Submission,
        on_cut: Callable[[], None] = _nothing,
        tenant: Tenant = ANYBODY,
        terms: Terms = ANY_TERMS,
        streamed: bool = True,
        charged: int = 0,
    ) -> Iterator[Stream]:
        """Send requests in that are answered together; leaving the `with` ends them, whatever way.

        All of them enter or none. The abort is a queue put: it works in a cancelled scope, where
        nothing can be awaited.
        on_cut: called on the event loop if the reader lags so far that its stream is cut.
        tenant, terms: whose bounds they count against. streamed: whether the client sets the pace
        at which they are read; else nobody is to blame if many tokens wait, and nobody is cut.
        charged: tokens of the tenant's budget, of which it gets back what is not used.
        Raises Overloaded, QuotaExceeded, NotReady or ApiError before anything crosses.
        """
        if (failure := self.failure) is not None:
            raise NotReady(failure)
        charge = self._room.enter(tenant, terms, submissions, self.stats.counters, charged)
        max_lag = self._max_lag if streamed else math.inf
        stream = Stream(self, submissions, max_lag, on_cut)
        self._streams.update((submission.id, stream) for submission in submissions)
        self._idle.clear()
        for submission in submissions:
            self.post(submission)
        try:
            if (failure := self.failure) is not None:
                stream.failed = True
                raise NotReady(failure)  # the engine ended while we were posting
            yield stream
        finally:
            for submission in submissions:
                del self._streams[submission.id]
            self._room.leave(tenant, terms, submissions)
            if charge is not None:
                used = stream.used(submissions)
                charge.settle(used, refused=stream.failed and not used)
            if not self._streams:
                self._idle.set()
            for request in stream.unfinished:
                self.post(Abort(request))

    async def inspect(self, limit: int) -> Inspection:
        """A look inside the engine, at its first `limit` requests, taken between two steps.

        Also while the house drains. Raises NotReady if the engine has not started, has ended, or
        does not answer within INSPECTION_S.
        """
        return await self._ask(lambda reply: Inspect(reply, limit))

    async def explain(self, id: int | None, limit: int) -> Explanations:
        """Why the request of this id waits, in full; for None the first `limit`, in brief.

        Raises NotReady as `inspect` does.
        """
        return await self._ask(lambda reply: Explain(reply, id, limit))

    async def reconfigure(
        self,
        policy: Policy | None,
        classes: Mapping[str, ClassLimits] | None,
        done: Callable[[Handover], None],
        named: PolicyName | None = None,
    ) -> Handover:
        """Put a policy in charge, or class limits in force, between two steps; None leaves them.

        named: what a configuration calls the policy.
        done: called on the event loop when it has happened, which may be after NotReady was raised
        for an engine that is too busy to say so in time. Raises NotReady as `inspect` does.
        """
        return await self._ask(lambda reply: Reconfigure(policy, classes, reply, named), done)

    async def _ask(
        self,
        message: Callable[[Callable[[Answer], None]], Inspect | Explain | Reconfigure],
        done: Callable[[Answer], None] | None = None,
    ) -> Answer:
        """Post the message that is made around a reply, and wait for what the engine replies."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Answer] = loop.create_future()

        def settle(said: Answer) -> None:
            if done is not None:
                done(said)
            if not answer.done():
                answer.set_result(said)

        def reply(said: Answer) -> None:
            with suppress(RuntimeError):  # the event loop is closed: nobody waits any more
                loop.call_soon_threadsafe(settle, said)

        self.post(message(reply))
        ended = NOT_STARTED if self._thread is None else self._thread.ended
        if ended is not None:
            raise NotReady(ended)
        try:
            async with asyncio.timeout(INSPECTION_S):
                return await answer
        except TimeoutError:
            assert self._thread is not None
            raise NotReady(self._thread.ended or BUSY) from None

    def post(self, message: Message) -> None:
        """Put a message into the engine's inbox."""
        if self._thread is not None:
            self._thread.post(message)

    def add_observer(self, observer: Observer) -> None:
        """Call `observer` with the outputs of each step, on the event loop."""
        self._observers.append(observer)

    # ---------------------------------------------------------------- outputs

    def emit(self, outputs: Sequence[Output], look: Look) -> None:
        """Hand a step's outputs over. Called on the engine thread; never blocks, never raises."""
        self._outbox.append((outputs, look()))
        if not self._wake_up_posted and self._loop is not None:
            self._wake_up_posted = True
            try:
                self._loop.call_soon_threadsafe(self._deliver)
            except RuntimeError:
                self._outbox.clear()  # the event loop is closed: nobody reads any more

    def _deliver(self) -> None:
        """Give every stream what came for it.

        The flag falls before the outbox is emptied: what is appended later finds it down and posts
        anew, what was appended earlier is taken now.
        """
        self._wake_up_posted = False
        told: dict[Stream, None] = {}
        while self._outbox:
            outputs, stats = self._outbox.popleft()
            self.stats = stats
            for output in outputs:
                self._room.answered(output.request, started=bool(output.tokens))
                stream = self._streams.get(output.request)
                if stream is None:
                    continue
                told[stream] = None
                if not stream.put(output):
                    for request in stream.unfinished:
                        self.post(Abort(request))
                    stream.cut(LAGGED, output.at)
            self._tell(outputs, stats)
        for stream in told:
            stream.flush()

    def _tell(self, outputs: Sequence[Output], stats: Stats) -> None:
        """An observer's bug must not keep anybody's tokens from being delivered."""
        for observer in self._observers:
            try:
                observer(outputs, stats)
            except Exception:
                log.exception("an observer of the engine's outputs failed")
