"""The scheduler: the door, the steps, and what a fault takes back. Integers only, no clock.

The policy orders, behind the guard; this class and what it is made of (`roster`, `planner`,
`memory`) own the queues, the blocks and the budget, and keep the invariants whatever the policy
returns.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from engine.allocation import PAGED, Allocation
from engine.batch import BLOCK, StepShape
from engine.blocks import BlockPool, blocks_for
from engine.controls import Sampled
from engine.decisions import DecisionSink, no_log
from engine.explanation import Explainer
from engine.guard import Guard, GuardSettings
from engine.inbox import Submission
from engine.inspection import inspect
from engine.landing import Landing
from engine.limits import ClassLimits, Limits
from engine.memory import KVMemory
from engine.outputs import (
    Counters,
    Explanations,
    Failure,
    FailureKind,
    Finish,
    FinishReason,
    Handover,
    Inspection,
    Output,
    Stats,
)
from engine.outside import OUTSIDE, Outside
from engine.plan import Flight, Plan, launch
from engine.planner import Planner
from engine.queue_time import QueueTime
from engine.relief import OFFLOAD_NOTHING, ReliefSettings
from engine.request import Request
from engine.request import Sequence as EngineSequence
from engine.roster import Roster
from engine.service import ServiceBook
from engine.speculation import Drafter
from engine.step import StepProxy
from policies.base import (
    Arrived,
    Cancelled,
    Demote,
    Policy,
    Reject,
    Shed,
    StepCost,
    StepDone,
)


class Scheduler:
    """Plans steps and applies their results.

    One step: `schedule` makes a plan, `launch` turns it into a flight that a backend computes,
    `land` takes its tokens in (or `crash` ends the requests that could not be computed and takes
    the others back). A second step may be planned and launched while the first is in flight.
    Outputs collect until `take_outputs`. drafter: guesses what follows, if anybody does
    (`engine.speculation`). cpu_clock: what the guard measures the policy with. outside: judges what
    it measured and names blocks; others record that, or replay it (`engine.outside`).
    """

    def __init__(
        self,
        policy: Policy,
        pool: BlockPool,
        limits: Limits,
        *,
        guard: GuardSettings | None = None,
        log: DecisionSink = no_log,
        prefix_cache: bool = True,
        allocation: Allocation = PAGED,
        relief: ReliefSettings = OFFLOAD_NOTHING,
        drafter: Drafter | None = None,
        cpu_clock: Callable[[], float] = time.thread_time,
        outside: Outside = OUTSIDE,
    ) -> None:
        self.limits = limits
        self.log = log
        self.guard = Guard(policy, guard or GuardSettings(), log, cpu_clock, outside)
        self.outside = outside
        self.relief = relief
        self.drafter = drafter
        self.memory = self._make_memory(pool, prefix_cache, allocation)
        self.counters = Counters()
        self.service = ServiceBook()
        self.queue_time = QueueTime()
        self._outputs: list[Output] = []
        self._flights: deque[Flight] = deque()
        self._next_ticket = 0
        self._next_step = 0
        self._begin_empty()

    def _begin_empty(self) -> None:
        """Make what knows of requests; there are none."""
        self.roster = Roster(
            self.guard, self.memory, self.limits, self.log, self.counters, self.service
        )
        self.planner = Planner(self.roster, self._shed, self.relief, self.drafter)
        self.landing = Landing(self.roster, self._outputs, self.outside)

    def _make_memory(self, pool: BlockPool, cache: bool, allocation: Allocation) -> KVMemory:
        host = self.relief.make_host_pool()
        return KVMemory(pool, cache=cache, allocation=allocation, host=host, outside=self.outside)

    # ---------------------------------------------------------------- the door

    def submit(self, submission: Submission, now: float) -> None:
        """Take a request in; a refusal becomes its first and only output."""
        request = Request(submission, self._next_ticket, self.memory, self.guard.wrote)
        self._next_ticket += 1
        self.counters.arrived += 1
        failure = self._never_fits(request) or self._judge(request, now)
        if failure is not None:
            self.counters.rejected += 1
            self.log("reject", request.id, failure.kind.value)
            self._refuse(request, FinishReason.REJECTED, failure, now)
            return
        self.roster.requests[request.id] = request
        self.roster.enqueue(request)
        self.queue_time.arrived(now - submission.arrival)
        request.queued_at = self.roster.admissions.count
        self.log("arrive", request.id, request.ticket)
        self.roster.events.append(Arrived(request.view))

    def abort(self, request_id: int) -> None:
        """Forget a request, wherever it is. Unknown ids are ignored: aborts race with ends."""
        request = self.roster.requests.get(request_id)
        if request is not None:
            self.roster.events.append(Cancelled(request.view))
            self.counters.cancelled += 1
            self.log("cancel", request_id)
            self.roster.drop(request)

    def finish(self, request_id: int, index: int, tokens: int, now: float) -> None:
        """End a sequence after its `tokens`-th generated token: a stop string was found there.

        Of a beam search nobody has seen a token to say this of; it goes on.
        """
        request = self.roster.requests.get(request_id)
        if request is None or request.search is not None or request.sequences[index].done:
            return
        sequence = request.sequences[index]
        # A new list: rows in flight still look back on the old one.
        sequence.tokens = sequence.tokens[: request.prompt_length + tokens]
        finish = Finish(FinishReason.STOP)
        self._outputs.append(Output(request.id, index, now, finish=finish))
        self.landing.end(sequence, finish)

    def replace_policy(self, policy: Policy, now: float) -> None:
        """Put another policy in charge between two steps; nobody in flight notices.

        What the old one exports is handed over; everybody who waits is queued anew.
        """
        roster = self.roster
        roster.notify()
        self.guard.hand_over(
            policy,
            [request.view for request in roster.requests.values()],
            StepProxy(roster, self._next_step, now),
            self.service.totals(),
        )
        roster.requeue_all()
        self.log("policy", type(policy).__name__)

    def replace_class_limits(self, classes: Mapping[str, ClassLimits]) -> None:
        """Let other limits of classes hold from the next step on.

        Who runs beyond a new limit runs on, and who waits waits on.
        """
        self.limits = replace(self.limits, classes=dict(classes))
        self.planner.limits = self.limits
        self.roster.adopt(self.limits)
        self.log("classes", sorted(classes))

    def handover(self) -> Handover:
        """Who is in charge of the next step."""
        guard = self.guard
        return Handover(self._next_step, guard.last_fault if guard.fallen_back else "")

    def _judge(self, request: Request, now: float) -> Failure | None:
        """What the class's limits and the policy say at the door."""
        verdict = self.guard.admit(request.view, StepProxy(self.roster, self._next_step, now))
        if isinstance(verdict, Reject):
            self.roster.events.append(Shed(request.view, verdict.reason))
            return Failure(FailureKind.SHED, verdict.reason, verdict.retry_after)
        if isinstance(verdict, Demote):
            if self.planner.class_can_hold(request, verdict.slo_class):
                request.slo_class = verdict.slo_class
            else:
                self.guard.save("class", "admit", verdict)  # it would wait there for ever
        most = self.limits.of(request.slo_class).max_waiting
        if most is not None and self.roster.waiting.of_class(request.slo_class) >= most:
            message = f"{most} requests of class {request.slo_class} wait already"
            self.roster.events.append(Shed(request.view, message))
            return Failure(FailureKind.SHED, message, 1.0)
        return None

    def _never_fits(self, request: Request) -> Failure | None:
        submission, limits = request.submission, self.limits
        length = len(submission.prompt) + submission.max_tokens
        fraction = self.limits.of(request.slo_class).max_blocks_fraction or 1.0
        blocks = int(fraction * self.memory.pool.total)
        if length > limits.model_len:
            reason = f"{length} tokens exceed the model's length of {limits.model_len}"
        elif request.blocks_at_most > blocks:
            reason = (
                f"the request needs {request.blocks_at_most} KV blocks of {BLOCK} tokens, "
                f"the server has {blocks} for it"
            )
        elif submission.beams is not None and not self.memory.allocation.shares:
            reason = "a beam search needs blocks that sequences share, which reserved ones are not"
        elif submission.sequences > limits.rows:
            reason = f"{submission.sequences} sequences exceed the {limits.rows} rows of a step"
        else:
            return None
        return Failure(FailureKind.NEVER_FITS, reason)

    # ---------------------------------------------------------------- the step

    def schedule(self, now: float) -> Plan:
        """Decide what the next step computes. An empty plan means there is nothing to do."""
        if self.guard.begin_step(self._next_step):
            self.roster.requeue_all()
        roster = self.roster
        if len(roster.requests) > len(roster.running):
            self._expire(now)
        if roster.events:
            roster.notify()
        self.log("step", self._next_step, now)
        self.queue_time.passed(now)
        plan = self.planner.plan(self._next_step, now, busy=bool(self._flights))
        self._note_who_waits(plan)
        if plan.rows:
            self._next_step += 1
        return plan

    def _note_who_waits(self, plan: Plan) -> None:
        reason = self.planner.kept_out or ("tokens" if plan.left < 1 else "policy")
        self.queue_time.planned(self.roster.waiting.requests, reason)

    def launch(self, plan: Plan, *, packed: bool = True) -> Flight:
        """Turn the plan's grants into a batch in flight; packed: whether it has arrays."""
        flight = launch(plan, self.memory.moves.launch(), packed=packed)
        self.memory.limbo = flight.limbo
        self._flights.append(flight)
        roster = self.roster
        if roster.prefilling:
            for sequence in plan:
                if sequence in roster.prefilling and sequence.decoding:
                    roster.became_decode(sequence)
        if roster.searches:
            for sequence in plan:
                if sequence.beam is not None and sequence.pending:
                    roster.await_group(sequence)
        return flight

    def land(self, flight: Flight, sampled: Sampled, now: float) -> None:
        """Take in the result of the oldest flight: an entry for each row that samples."""
        assert self._flights.popleft() is flight, "flights land in the order of their launch"
        self.landing.land(flight, sampled, now, self._next_step - 1)
        for request, reason in self.landing.take_faults().items():
            self.fail([request], Failure(FailureKind.GRAMMAR, reason), now)

    def crash(self, flight: Flight, faulty: Iterable[int], failure: Failure, now: float) -> None:
        """The oldest flight came to nothing: end the requests of the `faulty` rows.

        All other rows go back to where they were, and so does everything launched since: it was
        planned on results that will never come.
        """
        assert self._flights[0] is flight, "flights crash in the order of their launch"
        requests = {flight.sequences[row].request.id for row in faulty}
        self.fail(requests, failure, now)
        moved = dict.fromkeys(request for each in self._flights for request in each.moved)
        while self._flights:
            self._take_back(self._flights.popleft())
        for request in (*moved, *self.memory.moves.requests):
            self._start_again(request)

    def step_done(self, predicted: float, actual: float) -> None:
        """Close the books of a step, whatever came of it."""
        self.counters.steps += 1
        if self.guard.observes:
            self.roster.events.append(StepDone(predicted, actual))
            self.roster.notify()
        else:
            self.roster.events.clear()

    @property
    def in_flight(self) -> int:
        """Steps that were launched and have not landed."""
        return len(self._flights)

    def wake_in(self, now: float) -> float:
        """Seconds after which an engine without mail must plan again; inf for never."""
        at = min(self.planner.hold_until, self.roster.waiting.next_deadline())
        return max(0.0, at - now)

    def _shed(self, request: Request, failure: Failure, now: float) -> None:
        self.counters.rejected += 1
        self._refuse(request, FinishReason.REJECTED, failure, now)

    def _expire(self, now: float) -> None:
        """Fail who waited past its queue deadline."""
        for request in self.roster.waiting.overdue(now):
            failure = Failure(FailureKind.DEADLINE, "the request waited too long to be started")
            self.counters.expired += 1
            self.log("expire", request.id)
            self.roster.events.append(Shed(request.view, "deadline"))
            self._refuse(request, FinishReason.REJECTED, failure, now)
            self.roster.forecasts.forget(request.id)
            del self.roster.requests[request.id]

    def _take_back(self, flight: Flight) -> None:
        """Undo a launch: blocks beyond what is computed are free."""
        rows = zip(flight.batch.rows.samples, flight.sequences, flight.epochs, strict=True)
        for samples, sequence, epoch in rows:
            sequence.pending -= samples
            if epoch != sequence.epoch:
                continue
            sequence.reached = sequence.computed
            sequence.epoch += 1
            self.memory.trim(sequence)
            self._back_to_prompt(sequence)
        self.memory.give(flight.limbo)

    def _start_again(self, request: Request) -> None:
        """Forget what a request computed: blocks were moved for it in a step that came to nothing.

        All its sequences, because they share blocks. Who waits has nothing but host memory.
        """
        for sequence in request.open_sequences:
            self.roster.host.forget(sequence)
        if request.id not in self.roster.running:
            return
        for sequence in request.open_sequences:
            self.memory.restart(sequence)
            sequence.prefill_end = len(sequence.tokens)
            self._back_to_prompt(sequence)

    def _back_to_prompt(self, sequence: EngineSequence) -> None:
        if sequence.beam is not None and sequence.request.id in self.roster.running:
            self.roster.resume(sequence, self._next_step - 1)
        else:
            self.roster.back_to_prompt(sequence)

    def fail(self, requests: Iterable[int], failure: Failure, now: float) -> None:
        """End live requests with an error, one output for each open sequence."""
        for request_id in list(requests):
            request = self.roster.requests.get(request_id)
            if request is None:
                continue
            self.roster.events.append(Cancelled(request.view))
            self.counters.failed += 1
            self.log("fail", request_id)
            self._refuse(request, FinishReason.ERROR, failure, now)
            self.roster.drop(request)

    def fail_everything(self, failure: Failure, now: float) -> None:
        """End all requests."""
        self.fail(sorted(self.roster.requests), failure, now)

    def abandon(self, failure: Failure, now: float) -> None:
        """End all requests without touching what may be inconsistent, and start empty."""
        for request in self.roster.requests.values():
            self.counters.failed += 1
            self._refuse(request, FinishReason.ERROR, failure, now)
        old = self.memory
        self.memory = self._make_memory(BlockPool(old.pool.total), old.cache, old.allocation)
        if self.drafter is not None:
            self.drafter.forget_all()
        self._begin_empty()
        self._flights.clear()

    def said_since(self, count: int) -> list[Output]:
        """Outputs behind the first `count` that nobody has taken yet."""
        return self._outputs[count:]

    @property
    def said(self) -> int:
        """Outputs that nobody has taken yet."""
        return len(self._outputs)

    def take_outputs(self) -> list[Output]:
        """Everything to say since the last call."""
        outputs = self._outputs.copy()
        self._outputs.clear()
        return outputs

    def _refuse(self, request: Request, reason: FinishReason, failure: Failure, now: float) -> None:
        finish = Finish(reason, failure=failure)
        for index in request.unanswered:
            self._outputs.append(Output(request.id, index, now, finish=finish))

    # ---------------------------------------------------------------- looking in

    @property
    def pool(self) -> BlockPool:
        return self.memory.pool

    @property
    def live(self) -> int:
        """Requests that wait or run."""
        return len(self.roster.requests)

    def request(self, request_id: int) -> Request | None:
        """The live request of this id, if there is one."""
        return self.roster.requests.get(request_id)

    def stats(
        self,
        now: float,
        plan: Plan | None = None,
        seconds: float = 0.0,
        predicted: float = 0.0,
        shape: StepShape | None = None,
    ) -> Stats:
        """A snapshot for metrics and pages; `plan` is the step that just ended."""
        return Stats(
            now=now,
            running=len(self.roster.running),
            waiting=self.roster.waiting.requests,
            running_by_class=dict(self.roster.running_by_class),
            waiting_by_class=self.roster.waiting.by_class(),
            gated=self.roster.waiting.gated,
            blocks_free=self.memory.pool.free,
            blocks_cached=self.memory.pool.cached,
            blocks_total=self.memory.pool.total,
            host_blocks_free=self.roster.host.free,
            host_blocks_total=self.roster.host.total,
            step_tokens=plan.tokens if plan else 0,
            step_rows=plan.rows if plan else 0,
            step_seconds=seconds,
            step_predicted=predicted,
            step_shape=shape,
            forced_admissions=self.guard.forced_admissions,
            policy_faults=self.guard.saves.total(),
            fallback_steps=self.guard.fallback_steps,
            queue_seconds=self.queue_time.seconds.copy(),
            counters=self.counters.copy(),
        )

    def inspect(self, now: float, limit: int) -> Inspection:
        """A look inside, at the first `limit` requests (`engine.inspection`)."""
        return inspect(self.roster, self.stats(now), limit)

    def explain(
        self, request_id: int | None, limit: int, cost: StepCost, now: float
    ) -> Explanations:
        """Why one request waits, in full, or the first `limit`, in brief (`engine.explanation`)."""
        explainer = Explainer(self.planner, cost, StepProxy(self.roster, self._next_step, now))
        if request_id is None:
            requests = explainer.in_brief(limit)
        else:
            request = self.request(request_id)
            requests = () if request is None else (explainer.in_full(request),)
        guard = self.guard
        return Explanations(self.stats(now), guard.fallen_back, guard.last_fault, requests)

    def check(self) -> None:
        """Assert E1, E2, E3 and E6, between steps. Cheap enough for every test step and for idle
        moments."""
        roster = self.roster
        sequences = [s for r in roster.requests.values() for s in r.sequences]
        tables: list[Sequence[int]] = [sequence.table for sequence in sequences]
        tables.extend(flight.limbo for flight in self._flights)
        tables.append(self.memory.moves.held())
        self.memory.pool.check(tables)
        roster.host.check([sequence.host for sequence in sequences])
        if self.planner.speculation is not None:
            self.planner.speculation.check()
        assert roster.rows == sum(request.rows for request in roster.running.values())
        assert len(roster.decoding) + len(roster.prefilling) <= roster.rows, "E2: rows"
        assert roster.rows <= self.limits.rows, "E2: rows"
        holding = {s for r in roster.running.values() for s in r.open_sequences}
        for sequence in sequences:
            tokens = sequence.reached
            held = self.memory.allocation.blocks(sequence, tokens) if sequence in holding else 0
            assert len(sequence.table) == held, f"E3: table of {sequence.request.view}"
            stored = blocks_for(sequence.stored)
            assert len(sequence.host) == stored, f"E3: host blocks of {sequence.request.view}"
            assert not (stored and held), f"E3: {sequence.request.view} is in two memories"
            if not self._flights:
                assert sequence.in_flight == sequence.pending == 0, "a result went missing"
        counters = self.counters
        ended = counters.finished + counters.rejected + counters.cancelled
        ended += counters.failed + counters.expired
        assert len(roster.running) + roster.waiting.requests == self.live, "E6: maps"
        assert counters.arrived == ended + self.live, "E6: requests were lost"
