"""The engine: mail, schedule, compute, apply, emit. One call of `step` is one step."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

from engine.backends.base import Backend
from engine.batch import Batch
from engine.clock import Clock
from engine.controls import Sampled, SampleRow
from engine.cost import StepShape
from engine.errors import RowFault
from engine.inbox import Abort, FinishAt, Message, Stop, Submission
from engine.outputs import Failure, FailureKind, Finish, FinishReason, Output, Stats
from engine.plan import Plan, build_batch
from engine.request import Sequence as EngineSequence
from engine.scheduler import Scheduler
from policies.base import StepCost

Emit = Callable[[Sequence[Output], Stats], None]
"""Called once a step on the engine thread; must neither block nor raise."""

log = logging.getLogger("octavo.engine")

LULL = 0.05
"""Seconds between two looks at requests that wait although nothing could be computed."""

FAULT = Failure(FailureKind.ENGINE_FAULT, "the engine failed while computing this request")


class Engine:
    """The continuous-batching loop at depth 0: a step is collected before the next is planned.

    Everything it needs is an argument: the clock, the backend, the scheduler, and `emit`, which
    takes the outputs of each step.
    """

    def __init__(
        self, *, scheduler: Scheduler, backend: Backend, clock: Clock, cost: StepCost, emit: Emit
    ) -> None:
        self.scheduler = scheduler
        self.backend = backend
        self.clock = clock
        self.cost = cost
        self.emit = emit
        self.stopped = False
        self._computed = False
        self._last: tuple[Plan, float] | None = None

    @property
    def patience(self) -> float | None:
        """Seconds to wait for mail before the next step: None for ever, 0 not at all."""
        if self.scheduler.live == 0:
            return None
        if self._computed:
            return 0
        wake_at = self.scheduler.wake_at
        return LULL if wake_at is None else max(0.001, wake_at - self.clock.now())

    def step(self, messages: Iterable[Message]) -> bool:
        """Take the mail in and do one step. False if there was nothing to compute."""
        news = self._receive(messages)
        plan = self.scheduler.schedule(self.clock.now())
        if plan.rows:
            self._compute(plan)
        self._computed = plan.rows > 0
        self._emit(news)
        return self._computed

    def close(self, failure: Failure, late: Iterable[Submission]) -> None:
        """Fail whatever is open, and submissions that nobody will receive any more.

        Also right after an exception in the scheduler: it is emptied, not asked.
        """
        now = self.clock.now()
        self.scheduler.abandon(failure, now)
        finish = Finish(FinishReason.ERROR, failure=failure)
        refused = [Output(s.id, i, now, finish=finish) for s in late for i in range(s.n)]
        self.emit([*self.scheduler.take_outputs(), *refused], self.scheduler.stats(now))

    def _receive(self, messages: Iterable[Message]) -> bool:
        """Take the mail in. False if there was none."""
        messages = tuple(messages)
        now = self.clock.now()
        for message in messages:
            match message:
                case Submission():
                    self.scheduler.submit(message, now)
                case Abort():
                    self.scheduler.abort(message.id)
                case FinishAt():
                    self.scheduler.finish(message.id, message.index, message.tokens, now)
                case Stop():
                    self.stopped = True
                    failure = Failure(FailureKind.SHUTTING_DOWN, message.reason)
                    self.scheduler.fail_everything(failure, now)
        return bool(messages)

    def _compute(self, plan: Plan) -> None:
        """Run a plan on the backend; a fault ends the requests it must, and no others."""
        sequences = plan.ordered()
        batch, sampling = build_batch(plan.step, sequences)
        started = self.clock.now()
        try:
            sampled = self._run(batch, sampling)
        except RowFault as fault:
            log.error("rows %s of step %d failed: %s", fault.rows, plan.step, fault.reason)
            named = [s for row, s in enumerate(sequences) if row in fault.rows]
            self._fail(named or sequences, sequences)  # a fault that names no row is everybody's
        except Exception:
            log.exception("step %d failed", plan.step)
            self._fail(sequences, sequences)
        else:
            self.scheduler.apply(sequences, sampled, self.clock.now())
        shape = StepShape.of(batch)
        predicted = self.cost.seconds(
            shape.prefill, shape.decodes, shape.kv_read, shape.chunk_context
        )
        seconds = self.clock.now() - started
        self.scheduler.step_done(predicted, seconds)
        self._last = (plan, seconds)

    def _run(self, batch: Batch, sampling: Sequence[SampleRow]) -> Sampled:
        ticket = self.backend.submit(batch)
        self.backend.sample(ticket, sampling)
        return self.backend.collect(ticket)

    def _fail(self, faulty: Sequence[EngineSequence], sequences: Sequence[EngineSequence]) -> None:
        """End the requests of the faulty rows; the other rows are computed again."""
        self.scheduler.fail({s.request.id for s in faulty}, FAULT, self.clock.now())
        self.scheduler.release(sequences)

    def _emit(self, news: bool) -> None:
        """Say what changed; mail alone changes the counts (an abort has no output)."""
        outputs = self.scheduler.take_outputs()
        last, self._last = self._last, None
        if outputs or last is not None or news:
            plan, seconds = last or (None, 0.0)
            self.emit(outputs, self.scheduler.stats(self.clock.now(), plan, seconds))
