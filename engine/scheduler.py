"""Who is computed next: queues, admission, grants, preemption. Pure integers, no tensors, no clock.

The policy orders; this class owns the queues, the blocks and the budget, and keeps the invariants
whatever the policy returns.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from engine.batch import BLOCK
from engine.blocks import BlockPool, blocks_for
from engine.controls import Sampled, TokenLogprobs
from engine.inbox import Submission
from engine.outputs import (
    Counters,
    Failure,
    FailureKind,
    Finish,
    FinishReason,
    Output,
    Stats,
    Timing,
)
from engine.plan import Plan
from engine.queues import WaitingQueue
from engine.request import Request
from engine.request import Sequence as EngineSequence
from engine.step import StepProxy
from policies.base import (
    Admitted,
    Arrived,
    Cancelled,
    Demote,
    Event,
    Finished,
    Hold,
    Phase,
    Policy,
    Preempted,
    Reject,
    Share,
    Shed,
    StepDone,
    Tokens,
)


@dataclass(frozen=True, slots=True)
class Limits:
    """What one step and one request may be at most."""

    step_tokens: int
    rows: int
    model_len: int


class Scheduler:
    """Plans steps and applies their results.

    One step: `schedule` makes a plan, a backend computes it, `apply` takes the tokens in (or
    `fail` ends requests whose rows could not be computed, and `release` takes the grants of the
    others back). Outputs collect until `take_outputs`.
    """

    def __init__(self, policy: Policy, pool: BlockPool, limits: Limits) -> None:
        self.policy = policy
        self.pool = pool
        self.limits = limits
        self.waiting = WaitingQueue()
        self.counters = Counters()
        self._requests: dict[int, Request] = {}
        self._running: dict[int, Request] = {}
        # Insertion order of decodes is least recently served first.
        self._decoding: dict[EngineSequence, None] = {}
        self._prefilling: dict[EngineSequence, None] = {}
        self._outputs: list[Output] = []
        self._events: list[Event] = []
        self._next_ticket = 0
        self._hold_until: float | None = None

    # ---------------------------------------------------------------- the door

    def submit(self, submission: Submission, now: float) -> None:
        """Take a request in; a refusal becomes its first and only output."""
        request = Request(submission, self._next_ticket)
        self._next_ticket += 1
        self.counters.arrived += 1
        failure = self._never_fits(request)
        if failure is None:
            self._requests[request.id] = request
            verdict = self.policy.admit(request.view, StepProxy(self, now))
            if isinstance(verdict, Reject):
                failure = Failure(FailureKind.SHED, verdict.reason, verdict.retry_after)
                self._events.append(Shed(request.view, verdict.reason))
            elif isinstance(verdict, Demote):
                request.slo_class = verdict.slo_class
        if failure is not None:
            self._requests.pop(request.id, None)
            self.counters.rejected += 1
            self._refuse(request, FinishReason.REJECTED, failure, now)
            return
        self._enqueue(request)
        self._events.append(Arrived(request.view))

    def abort(self, request_id: int) -> None:
        """Forget a request, wherever it is. Unknown ids are ignored: aborts race with ends."""
        request = self._requests.get(request_id)
        if request is not None:
            self._events.append(Cancelled(request.view))
            self.counters.cancelled += 1
            self._drop(request)

    def finish(self, request_id: int, index: int, tokens: int, now: float) -> None:
        """End a sequence after its `tokens`-th generated token: a stop string was found there."""
        request = self._requests.get(request_id)
        if request is None or request.sequences[index].done:
            return
        sequence = request.sequences[index]
        del sequence.tokens[len(request.submission.prompt) + tokens :]
        finish = Finish(FinishReason.STOP)
        self._outputs.append(Output(request.id, index, now, finish=finish))
        self._end(sequence)

    def _never_fits(self, request: Request) -> Failure | None:
        submission, limits = request.submission, self.limits
        length = len(submission.prompt) + submission.max_tokens
        if length > limits.model_len:
            reason = f"{length} tokens exceed the model's length of {limits.model_len}"
        elif request.blocks_at_most > self.pool.total:
            reason = (
                f"the request needs {request.blocks_at_most} KV blocks of {BLOCK} tokens, "
                f"the server has {self.pool.total}"
            )
        elif submission.n > limits.rows:
            reason = f"{submission.n} sequences exceed the {limits.rows} rows of a step"
        else:
            return None
        return Failure(FailureKind.NEVER_FITS, reason)

    # ---------------------------------------------------------------- planning

    def schedule(self, now: float) -> Plan:
        """Decide what the next step computes. An empty plan means there is nothing to do."""
        self._notify()
        step = StepProxy(self, now)
        plan = Plan(self.counters.steps, now, self.limits.step_tokens)
        share = self.policy.share(step) if self._requests else Share(0, 0, 0)
        self._grant_decodes(plan, share)
        self._grant_prompts(plan, share, step)
        return plan

    @property
    def wake_at(self) -> float | None:
        """When an idle engine must plan again although no message came (a `Hold` ends)."""
        return self._hold_until

    def _grant_decodes(self, plan: Plan, share: Share) -> None:
        """One token for each running decode, least recently served first."""
        limit = min(share.decode, self.limits.step_tokens)
        served = []
        for sequence in list(self._decoding):
            if plan.tokens >= limit:
                break
            if sequence not in self._decoding:  # gave way to an earlier one
                continue
            if self._grow(sequence, 1, plan):
                plan.grant(sequence, 1)
                served.append(sequence)
        if len(served) < len(self._decoding):
            for sequence in served:
                if sequence in plan:
                    del self._decoding[sequence]
                    self._decoding[sequence] = None

    def _grant_prompts(self, plan: Plan, share: Share, step: StepProxy) -> None:
        """Prompt work, one at a time, smallest rank first: running prompts and the picked head."""
        running = deque(sorted(self._prefilling, key=self._rank))
        head = self._pick(step)
        demoted: set[Request] = set()
        granted = 0
        while True:
            left = min(share.prompt - granted, plan.left)
            if left < 1 or not (running or head):
                return
            if head is not None and (not running or self._head_first(head, running[0])):
                if not self._fits(head):
                    head = None
                    continue
                if self._judge(head, step, demoted):
                    self._admit(head, step)
                    running.extendleft(reversed(head.sequences))
                head = self._pick(step)
                continue
            sequence = running.popleft()
            if sequence not in self._prefilling:  # gave way to an earlier one
                continue
            count = self._grow(sequence, min(sequence.remaining, share.chunk, left), plan)
            if count:
                plan.grant(sequence, count)
                granted += count

    def _rank(self, sequence: EngineSequence) -> tuple[object, int, int]:
        request = sequence.request
        return (self.policy.rank(request.view), request.ticket, sequence.index)

    def _head_first(self, head: Request, running: EngineSequence) -> bool:
        rank = (self.policy.rank(head.view), head.ticket, 0)
        return rank < self._rank(running)

    def _pick(self, step: StepProxy) -> Request | None:
        """The head that the policy wants to run next, if any."""
        self._hold_until = None
        if not len(self.waiting):
            return None
        choice = self.policy.pick(self.waiting, step)
        if isinstance(choice, Hold) and choice.until > step.now:
            self._hold_until = choice.until
            return None
        if choice is None or isinstance(choice, Hold) or choice not in self.waiting:
            return self.waiting.oldest() if not self._running else None
        return self.waiting.head(choice)

    def _fits(self, request: Request) -> bool:
        """Whether rows and blocks suffice for all its known tokens.

        Blocks that running prompts still need count as taken: admitting on their account would
        only mean preempting somebody a few steps later.
        """
        rows = len(self._decoding) + len(self._prefilling)
        committed = sum(s.blocks_missing(s.prefill_end) for s in self._prefilling)
        return (
            rows + request.rows <= self.limits.rows
            and request.blocks_wanted <= self.pool.free - committed
        )

    def _judge(self, request: Request, step: StepProxy, demoted: set[Request]) -> bool:
        """Ask the policy once more about the head about to run. False if it is head no more."""
        verdict = self.policy.admit(request.view, step)
        if isinstance(verdict, Reject):
            self._shed(request, verdict, step.now)
            return False
        if isinstance(verdict, Demote) and request not in demoted:
            demoted.add(request)
            self.waiting.remove(request)
            request.slo_class = verdict.slo_class
            self._enqueue(request)
            return False
        return True

    def _admit(self, request: Request, step: StepProxy) -> None:
        """Let a waiting request run."""
        self.waiting.remove(request)
        known = sum(len(s.tokens) for s in request.sequences if not s.done)
        recomputed = min(request.computed_peak, known)
        if request.preemptions == 0:
            request.admitted_at = step.now
            self.counters.admitted += 1
        self.counters.recomputed_tokens += recomputed
        request.phase = Phase.PREFILL
        self._running[request.id] = request
        for sequence in request.sequences:
            if not sequence.done:
                sequence.prefill_end = len(sequence.tokens)
                self._prefilling[sequence] = None
        self._events.append(Admitted(request.view, known - recomputed, recomputed))
        self._notify()

    def _shed(self, request: Request, verdict: Reject, now: float) -> None:
        self._events.append(Shed(request.view, verdict.reason))
        self.counters.rejected += 1
        failure = Failure(FailureKind.SHED, verdict.reason, verdict.retry_after)
        self._refuse(request, FinishReason.REJECTED, failure, now)
        self._drop(request)

    # ---------------------------------------------------------------- blocks

    def _grow(self, sequence: EngineSequence, count: int, plan: Plan) -> int:
        """Take blocks for `count` more tokens, or for as many as can be had.

        In a dry pool others give way, in the policy's order. Returns how many tokens now fit; 0 if
        the row has to pause or had to give way itself.
        """
        pool, table = self.pool, sequence.table
        while sequence.blocks_missing(sequence.computed + count) > pool.free:
            room = (len(table) + pool.free) * BLOCK - sequence.computed
            if room > 0:
                count = min(count, room)
                continue
            victim = self._victim(plan)
            if victim is None:
                return 0
            self._preempt(victim, plan)
            if victim is sequence.request:
                return 0
        for _ in range(sequence.blocks_missing(sequence.computed + count)):
            table.append(pool.take())
        return count

    def _victim(self, plan: Plan) -> Request | None:
        """Who gives way next: the policy's choice, never the running request of lowest ticket."""
        oldest = min(request.ticket for request in self._running.values())
        candidates = [r for r in self._running.values() if r.ticket != oldest]
        step = StepProxy(self, plan.now)
        ranked = [
            (order, -request.ticket, request)
            for request in candidates
            if (order := self.policy.victim(request.view, step)) is not None
        ]
        if ranked:
            return min(ranked, key=lambda entry: entry[:2])[2]
        return max(candidates, key=lambda request: request.ticket, default=None)

    def _preempt(self, request: Request, plan: Plan) -> None:
        """Take everything from a running request but its place in the queue."""
        for sequence in request.sequences:
            plan.withdraw(sequence)
        lost = request.computed
        request.computed_peak = max(request.computed_peak, lost)
        request.preemptions += 1
        self.counters.preemptions += 1
        self._stop_running(request)
        request.phase = Phase.PREEMPTED
        self._enqueue(request)
        self._events.append(Preempted(request.view, lost))
        self._notify()

    def _stop_running(self, request: Request) -> None:
        del self._running[request.id]
        for sequence in request.sequences:
            self._decoding.pop(sequence, None)
            self._prefilling.pop(sequence, None)
            self._give_blocks(sequence)

    def _give_blocks(self, sequence: EngineSequence) -> None:
        """Back into the pool, last block first, so that the next owner takes them in order."""
        while sequence.table:
            self.pool.give(sequence.table.pop())
        sequence.computed = 0
        sequence.scheduled = 0

    # ---------------------------------------------------------------- results

    def apply(self, sequences: Sequence[EngineSequence], sampled: Sampled, now: float) -> None:
        """Take in the result of a step: `sampled` has an entry for each row that samples."""
        self.counters.computed_rows += len(sequences)
        results = zip(sampled.tokens, sampled.logprobs, strict=True)
        for sequence in sequences:
            self._advance(sequence)
            if sequence.remaining == 0:
                token, logprobs = next(results)
                self._append(sequence, token, logprobs, now)

    def step_done(self, predicted: float, actual: float) -> None:
        """Close the books of a step, whatever came of it."""
        self.counters.steps += 1
        self._events.append(StepDone(predicted, actual))

    def release(self, sequences: Iterable[EngineSequence]) -> None:
        """Take back grants that were not computed, and the blocks taken for them."""
        for sequence in sequences:
            sequence.scheduled = 0
            while len(sequence.table) > blocks_for(sequence.computed):
                self.pool.give(sequence.table.pop())

    def fail(self, requests: Iterable[int], failure: Failure, now: float) -> None:
        """End live requests with an error, one output for each open sequence."""
        for request_id in list(requests):
            request = self._requests.get(request_id)
            if request is None:
                continue
            self._events.append(Cancelled(request.view))
            self.counters.failed += 1
            self._refuse(request, FinishReason.ERROR, failure, now)
            self._drop(request)

    def fail_everything(self, failure: Failure, now: float) -> None:
        """End all requests: the loop cannot go on."""
        self.fail(list(self._requests), failure, now)

    def abandon(self, failure: Failure, now: float) -> None:
        """End all requests without touching what may be inconsistent, and start empty."""
        for request in self._requests.values():
            self.counters.failed += 1
            self._refuse(request, FinishReason.ERROR, failure, now)
        self.pool = BlockPool(self.pool.total)
        self.waiting = WaitingQueue()
        for container in (self._requests, self._running, self._decoding, self._prefilling):
            container.clear()
        self._events.clear()

    def take_outputs(self) -> list[Output]:
        """Everything to say since the last call."""
        outputs, self._outputs = self._outputs, []
        return outputs

    def _advance(self, sequence: EngineSequence) -> None:
        count = sequence.scheduled
        sequence.scheduled = 0
        sequence.computed += count
        prompt_end = min(sequence.computed, len(sequence.request.submission.prompt))
        self.counters.prompt_tokens += max(0, prompt_end - (sequence.computed - count))
        if sequence in self._prefilling and sequence.decoding:
            del self._prefilling[sequence]
            self._decoding[sequence] = None
            if all(s.done or s.decoding for s in sequence.request.sequences):
                sequence.request.phase = Phase.DECODE

    def _append(
        self, sequence: EngineSequence, token: int, logprobs: TokenLogprobs | None, now: float
    ) -> None:
        request = sequence.request
        submission = request.submission
        first = sequence.generated == 0
        sequence.tokens.append(token)
        request.last_token_at = now
        self.counters.generated_tokens += 1
        self._events.append(Tokens(request.view, 1))
        finish = None
        if submission.controls.ends(token):
            finish = Finish(FinishReason.STOP, stop_token=token)
        elif sequence.generated >= submission.max_tokens:
            finish = Finish(FinishReason.LENGTH)
        self._outputs.append(
            Output(
                request=request.id,
                index=sequence.index,
                at=now,
                tokens=(token,),
                logprobs=() if logprobs is None else (logprobs,),
                finish=finish,
                timing=Timing(submission.arrival, request.admitted_at) if first else None,
            )
        )
        if finish is not None:
            self._end(sequence)

    def _end(self, sequence: EngineSequence) -> None:
        """A sequence is complete: its blocks serve others from the next schedule on."""
        request = sequence.request
        sequence.done = True
        self._decoding.pop(sequence, None)
        self._prefilling.pop(sequence, None)
        self._give_blocks(sequence)
        if all(s.done for s in request.sequences):
            self.counters.finished += 1
            self._events.append(Finished(request.view))
            self._drop(request)

    def _drop(self, request: Request) -> None:
        """Take a request out of every map it is in."""
        del self._requests[request.id]
        if request.id in self._running:
            self._stop_running(request)
        else:
            self.waiting.remove(request)
        request.phase = Phase.FINISHED

    def _refuse(self, request: Request, reason: FinishReason, failure: Failure, now: float) -> None:
        finish = Finish(reason, failure=failure)
        for sequence in request.sequences:
            if not sequence.done:
                self._outputs.append(Output(request.id, sequence.index, now, finish=finish))

    # ---------------------------------------------------------------- the policy

    def _enqueue(self, request: Request) -> None:
        view = request.view
        self.waiting.push(request, self.policy.flow(view), self.policy.key(view))

    def _notify(self) -> None:
        """Tell the policy what happened; re-key the waiting requests it names."""
        if not self._events:
            return
        events, self._events = self._events, []
        for request_id in self.policy.observe(events):
            request = self._requests.get(request_id)
            if request is not None and request.id not in self._running:
                self.waiting.remove(request)
                self._enqueue(request)

    # ---------------------------------------------------------------- looking in

    @property
    def live(self) -> int:
        """Requests that wait or run."""
        return len(self._requests)

    @property
    def running(self) -> Iterable[Request]:
        return self._running.values()

    @property
    def decoding(self) -> Iterable[EngineSequence]:
        return self._decoding

    @property
    def prefilling(self) -> Iterable[EngineSequence]:
        return self._prefilling

    def request(self, request_id: int) -> Request | None:
        """The live request of this id, if there is one."""
        return self._requests.get(request_id)

    def stats(self, now: float, plan: Plan | None = None, seconds: float = 0.0) -> Stats:
        """A snapshot for metrics and pages; `plan` is the step that just ended."""
        return Stats(
            now=now,
            running=len(self._running),
            waiting=self.waiting.requests,
            blocks_free=self.pool.free,
            blocks_cached=self.pool.cached,
            blocks_total=self.pool.total,
            step_tokens=plan.tokens if plan else 0,
            step_rows=plan.rows if plan else 0,
            step_seconds=seconds,
            counters=dataclasses.replace(self.counters),
        )

    def check(self) -> None:
        """Assert E1, E2, E3 and E6. Cheap enough for every test step and for idle moments."""
        sequences = [s for r in self._requests.values() for s in r.sequences]
        self.pool.check(sequence.table for sequence in sequences)
        assert len(self._decoding) + len(self._prefilling) <= self.limits.rows, "E2: rows"
        for sequence in sequences:
            held = blocks_for(sequence.computed + sequence.scheduled)
            assert len(sequence.table) == held, f"E3: table of {sequence.request.view}"
        counters = self.counters
        ended = counters.finished + counters.rejected + counters.cancelled + counters.failed
        assert len(self._running) + self.waiting.requests == len(self._requests), "E6: maps"
        assert counters.arrived == ended + len(self._requests), "E6: requests were lost"
