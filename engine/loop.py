"""The engine: mail, schedule, launch, land, emit. One call of `step` is one step."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from engine.backends.base import Backend
from engine.batch import StepShape
from engine.clock import Clock
from engine.controls import Sampled
from engine.cost import LearningCost
from engine.errors import BackendLost, RowFault
from engine.inbox import Abort, Explain, FinishAt, Inspect, Message, Reconfigure, Stop, Submission
from engine.outputs import Failure, FailureKind, Finish, FinishReason, Look, Output
from engine.plan import Flight, Plan
from engine.recorder import Recorder
from engine.scheduler import Scheduler

Emit = Callable[[Sequence[Output], Look], None]
"""Called once a step on the engine thread, with a look at the whole for who wants one; must neither
block nor raise."""

log = logging.getLogger("octavo.engine")

LULL = 0.05
"""Seconds between two looks at requests that wait although nothing could be computed."""

FAULT = Failure(FailureKind.ENGINE_FAULT, "the engine failed while computing this request")


class Engine:
    """The continuous-batching loop.

    Everything it needs is an argument: the clock, the backend, the scheduler, and `emit`, which
    takes the outputs of each step. depth: steps that may be in flight while the next is planned;
    at 0 a step is collected before the next schedule, at 1 step N + 1 is planned and submitted
    while N runs. recorder: notes what each step is given, for who wants that; it is the scheduler's
    `outside` and log as well.
    """

    def __init__(
        self,
        *,
        scheduler: Scheduler,
        backend: Backend,
        clock: Clock,
        cost: LearningCost,
        emit: Emit,
        depth: int = 0,
        recorder: Recorder | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.backend = backend
        self.clock = clock
        self.cost = cost
        self.emit = emit
        self.depth = depth
        self.recorder = recorder
        self.stopped = False
        self._computed = False
        self._flights: deque[Flight] = deque()
        self._unread: deque[Message] = deque()
        self._last: tuple[Plan, float, float, StepShape | None] | None = None
        self._landed_at = 0.0

    @property
    def patience(self) -> float | None:
        """Seconds to wait for mail before the next step: None for ever, 0 not at all."""
        if self._computed or self._flights:
            return 0
        if self.scheduler.live == 0:
            return None
        return max(0.001, min(LULL, self.scheduler.wake_in(self.clock.now())))

    def step(self, messages: Iterable[Message]) -> bool:
        """Take the mail in and do one step. False if there was nothing to compute."""
        if self.recorder is None:
            return self._step(messages)
        worked = self._step(self.recorder.begin(messages, self.scheduler))
        self.recorder.end()
        return worked

    def _step(self, messages: Iterable[Message]) -> bool:
        news = self._receive(messages)
        flights = self._flights
        plan = self.scheduler.schedule(self._now())
        if plan.rows:
            self._launch(plan)
        self._computed = bool(flights)
        most = self.depth if plan.rows else 0
        while flights and (len(flights) > most or flights[-1].fault):
            self._land()
        self._emit(news)
        return self._computed

    def _now(self) -> float:
        """The time, as decisions are to know it."""
        now = self.clock.now()
        return now if self.recorder is None else self.recorder.read(now)

    def close(self, failure: Failure, late: Iterable[Submission]) -> None:
        """Fail whatever is open, and submissions that nobody will receive any more.

        Also right after an exception in the scheduler: it is emptied, not asked. Mail that came
        with the message that broke it is late too.
        """
        now = self.clock.now()
        unread = [
            message
            for message in self._unread
            if isinstance(message, Submission) and self.scheduler.request(message.id) is None
        ]
        self._flights.clear()
        self.scheduler.abandon(failure, now)
        finish = Finish(FinishReason.ERROR, failure=failure)
        refused = [
            Output(s.id, i, now, finish=finish) for s in [*unread, *late] for i in range(s.n)
        ]
        look = partial(self.scheduler.stats, now)
        self.emit([*self.scheduler.take_outputs(), *refused], look)

    def _receive(self, messages: Iterable[Message]) -> bool:
        """Take the mail in. False if there was none."""
        self._unread.extend(messages)
        if not self._unread:
            return False
        now = self._now()
        while self._unread:
            self._read(self._unread[0], now)
            self._unread.popleft()
        return True

    def _read(self, message: Message, now: float) -> None:
        """Do what one message asks for."""
        match message:
            case Submission():
                self.scheduler.submit(message, now)
            case Abort():
                self.scheduler.abort(message.id)
            case FinishAt():
                self.scheduler.finish(message.id, message.index, message.tokens, now)
            case Inspect():
                message.reply(self.scheduler.inspect(now, message.limit))
            case Explain():
                message.reply(self.scheduler.explain(message.id, message.limit, self.cost, now))
            case Reconfigure():
                self._reconfigure(message, now)
            case Stop():
                self.stopped = True
                failure = Failure(FailureKind.SHUTTING_DOWN, message.reason)
                self.scheduler.fail_everything(failure, now)

    def _reconfigure(self, message: Reconfigure, now: float) -> None:
        if message.classes is not None:
            self.scheduler.replace_class_limits(message.classes)
        if message.policy is not None:
            self.scheduler.replace_policy(message.policy, now)
        if message.reply is not None:
            message.reply(self.scheduler.handover())

    # ---------------------------------------------------------------- computing

    def _launch(self, plan: Plan) -> None:
        """Submit a plan to the backend."""
        flight = self.scheduler.launch(plan, packed=self.backend.reads_arrays)
        flight.started = self._now()
        self._flights.append(flight)
        try:
            take_masks = flight.sampling.begin_masks()
            try:
                flight.ticket = self.backend.submit(flight.batch)
            finally:
                take_masks()
            self.backend.sample(flight.ticket, flight.sampling)
        except Exception as error:
            flight.fault = error
            if self.recorder is not None:
                self.recorder.refused(error)

    def _land(self) -> None:
        """Collect the oldest step; a fault ends the requests it must, and no others.

        Raises BackendLost: that ends them all.
        """
        flight = self._flights.popleft()
        try:
            if flight.fault is not None:
                raise flight.fault
            assert flight.ticket is not None
            sampled = self.backend.collect(flight.ticket)
        except RowFault as fault:
            log.error("rows %s of step %d failed: %s", fault.rows, flight.plan.step, fault.reason)
            self._crash(flight, set(fault.rows))
        except BackendLost:
            raise
        except Exception:
            log.exception("step %d failed", flight.plan.step)
            self._crash(flight, set())
        else:
            self._take_in(flight, sampled)
        self._close_books(flight)

    def _take_in(self, flight: Flight, sampled: Sampled) -> None:
        said = self.scheduler.said
        self.scheduler.land(flight, sampled, self._now())
        if self.recorder is not None:
            self.recorder.landed(flight, self.scheduler.said_since(said))

    def _crash(self, flight: Flight, named: set[int]) -> None:
        """End the faulty rows' requests. What was launched since is dropped and computed again.

        A fault that names no row of the batch is a fault of all of them.
        """
        if self.recorder is not None and flight.fault is None:
            self.recorder.lost(named)
        rows = range(len(flight.sequences))
        faulty = named & set(rows) or set(rows)
        while self._flights:
            self._discard(self._flights.popleft())
        self.scheduler.crash(flight, faulty, FAULT, self._now())

    def _discard(self, flight: Flight) -> None:
        """Wait for a step whose result is of no use."""
        if flight.ticket is None or flight.fault is not None:
            return
        try:
            self.backend.collect(flight.ticket)
        except BackendLost:
            raise
        except Exception:
            log.exception("step %d failed; its rows are computed again", flight.plan.step)

    def _close_books(self, flight: Flight) -> None:
        """What the step took: from its start, or from when the one before it made way.

        A step that moved blocks to host memory or back says nothing about what computing costs.
        """
        now = self._now()
        seconds = now - max(flight.started, self._landed_at)
        self._landed_at = now
        batch, shape = flight.batch, flight.batch.shape
        moved = len(batch.offloads) + len(batch.restores)
        predicted = self.cost.of(shape)
        if moved:
            predicted += moved * self.backend.move_seconds
        elif flight.fault is None:
            self.cost.observe(shape, seconds)
        self.scheduler.step_done(predicted, seconds)
        self._last = (flight.plan, seconds, predicted, None if moved else shape)

    def _emit(self, news: bool) -> None:
        """Say what changed; mail alone changes the counts (an abort has no output)."""
        outputs = self.scheduler.take_outputs()
        last, self._last = self._last, None
        if outputs or last is not None or news:
            told = last or (None, 0.0, 0.0, None)
            self.emit(outputs, partial(self.scheduler.stats, self._now(), *told))
