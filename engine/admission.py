"""The heads of one step, one after the other, and who is let in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.outputs import Failure, FailureKind
from engine.plan import Plan
from engine.request import Request
from engine.step import StepProxy
from policies.base import Admitted, Demote, Hold, Reject, Shed

if TYPE_CHECKING:
    from engine.planner import Planner


class Admission:
    """Asks the policy for heads and admits those that fit, for the length of one step.

    aside: heads that did not fit and that others may pass; they wait outside the queue until
    `close` puts them back. passes: how many more may pass all of them, so that nobody is passed by
    more than `backfill` says in all its time in the queue.
    """

    def __init__(self, planner: Planner, plan: Plan, step: StepProxy) -> None:
        self._planner = planner
        self._roster = planner.roster
        self._guard = planner.guard
        self._plan = plan
        self._step = step
        self._aside: list[Request] = []
        self._backfill: int | None = None
        self._passes = 0
        self._closed: set[str] = set()
        self._judged: set[Request] = set()
        self._head: Request | None = None
        self._forced = False
        self._refused = False
        self._over = False
        self._seen_preemptions = self._roster.counters.preemptions

    def head(self) -> Request | None:
        """Whose turn it is; None if nobody (more) is to be admitted in this step."""
        preemptions = self._roster.counters.preemptions
        if preemptions != self._seen_preemptions:
            self._seen_preemptions, self._head = preemptions, None  # the queue has changed
        if self._head is None and not self._over:
            self._head = self._pick()
            self._over = self._head is None
        return self._head

    def close(self) -> None:
        """Put back who was set aside, and open the classes again."""
        for request in self._aside:
            self._roster.enqueue(request)
        self._aside.clear()
        self._roster.reopen(self._closed)

    def _pick(self) -> Request | None:
        waiting, guard = self._roster.waiting, self._guard
        self._forced = self._refused = False
        if not waiting.anybody:
            if waiting.requests:
                self._keep_out("class")
            return None
        if guard.owes_the_oldest:
            self._forced = True
            return None if self._aside else waiting.oldest()
        choice = guard.pick(waiting.heads, self._step)
        if isinstance(choice, Hold):
            self._planner.hold_until = choice.until
            self._roster.log("hold", choice.until)
            self._keep_out("hold")
            return None
        if choice is None:
            if self._roster.running:
                self._keep_out("policy")
                return None
            self._refused = guard.picked_nobody  # with nothing running somebody has to start
            return waiting.oldest()
        return waiting.head(choice)

    def admit(self, head: Request) -> bool:
        """Let the head run if it fits; False if it does not, or is head no more."""
        self._head = None
        planner = self._planner
        if not planner.fits_its_class(head):
            self._closed.add(head.slo_class)
            self._roster.waiting.closed.add(head.slo_class)
            return False
        if not self._judge(head):
            return False
        oldest = self._is_oldest(head)  # before it displaces anybody, who may be older
        gave_way = head in self._plan.gave_way  # or two could take turns without end
        fits = self._plan.left > 0 and planner.fits(head)
        if gave_way or not (fits or planner.displace_for(head, self._plan)):
            self._set_aside(head)
            return False
        self._start(head, oldest=oldest)
        return True

    def _is_oldest(self, head: Request) -> bool:
        """Whether it holds the lowest ticket of those who could be admitted."""
        return self._roster.waiting.oldest() is head and all(
            head.ticket < request.ticket for request in self._aside
        )

    def _keep_out(self, reason: str) -> None:
        """Say why nobody is let in, unless a head has been kept out before."""
        self._planner.kept_out = self._planner.kept_out or reason

    def _set_aside(self, head: Request) -> None:
        """A head that does not fit: others may pass if the policy says so and nothing is owed."""
        self._keep_out(self._lacks(head))
        if self._backfill is None:
            self._backfill = 0 if self._forced else self._guard.backfill(self._step)
            self._passes = self._backfill
        self._passes = min(self._passes, self._backfill - head.passed)
        if self._passes < 1 or len(self._aside) >= self._passes:
            self._over = True
            return
        self._roster.waiting.remove(head)
        self._aside.append(head)

    def _lacks(self, head: Request) -> str:
        """What a head that does not fit would need."""
        if self._plan.left < 1:
            return "tokens"
        return "rows" if self._roster.rows + head.rows > self._planner.limits.rows else "blocks"

    def _judge(self, head: Request) -> bool:
        """Ask the policy once more, whether or not the head fits. False if it is head no more.

        Who was preempted is not asked about again: its client is reading already.
        """
        if head.preemptions:
            return True
        verdict = self._guard.admit(head.view, self._step)
        if isinstance(verdict, Reject):
            failure = Failure(FailureKind.SHED, verdict.reason, verdict.retry_after)
            self._planner.refuse(head, failure, self._step.now)
            self._roster.events.append(Shed(head.view, verdict.reason))
            self._roster.log("reject", head.id, "shed")
            self._roster.drop(head)
            return False
        if isinstance(verdict, Demote) and head not in self._judged:
            if not self._planner.class_can_hold(head, verdict.slo_class):
                self._guard.save("class", "admit", verdict)  # it would wait there for ever
                return True
            self._judged.add(head)
            self._roster.waiting.remove(head)
            head.slo_class = verdict.slo_class
            self._roster.enqueue(head)
            return False
        return True

    def _start(self, head: Request, *, oldest: bool) -> None:
        roster = self._roster
        self._guard.admitted(oldest=oldest, forced=self._forced)
        if self._refused:
            self._guard.save("refusal", "pick", None)
        line, closed = roster.waiting.line_of(head), roster.waiting.shut()
        looks_up = roster.memory.cache and not head.unscored
        roster.start(head)
        restored = roster.host.restore(head)
        first = recomputed = 0
        for sequence in head.open_sequences:
            begin = self._planner.memory.begins_at(sequence)
            recomputed += max(0, sequence.peak - begin)
            if head.preemptions == 0:
                first += len(sequence.tokens) - begin
        now = self._step.now
        aside = tuple(request.id for request in self._aside)
        roster.admissions.add(head, now, line, aside, closed)
        roster.forecasts.started(head.id, now)
        if head.preemptions == 0:
            head.admitted_at = now
            head.cached = head.computed
            roster.counters.admitted += 1
            roster.counters.cached_tokens += head.cached
            roster.counters.admitted_tokens += head.prompt_length
            if looks_up:
                roster.counters.looked_up_tokens += head.prompt_length
        roster.counters.recomputed_tokens += recomputed
        roster.counters.restored_blocks += restored
        roster.log("admit", head.id, self._forced, recomputed)
        if restored:
            roster.log("restore", head.id, restored)
        roster.service.admitted(head, first)
        roster.events.append(Admitted(head.view, first, recomputed))
        roster.notify()
        if self._aside:
            for request in self._aside:
                request.passed += 1
            self._passes -= 1
            self._over = self._passes < 1
