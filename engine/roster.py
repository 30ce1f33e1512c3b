"""Who is where: the maps of live requests, and every move between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from engine.admissions import AdmissionBook
from engine.batch import BLOCK
from engine.decisions import DecisionSink
from engine.forecast import ForecastRecord
from engine.guard import Guard
from engine.host import HostMemory
from engine.limits import Limits
from engine.memory import KVMemory
from engine.outputs import Counters
from engine.prefix_order import PrefixChanges, PrefixOrder
from engine.queues import WaitingQueue
from engine.request import Request, Sequence
from engine.service import ServiceBook
from policies.base import Event, Phase


class Roster:
    """Live requests: waiting or running; of the running sequences, prefilling or decoding.

    moves: grows whenever who runs changes, or what of it prefills or decodes. on_stop: called with
    each sequence that stops running, for whatever reason.
    """

    def __init__(
        self,
        guard: Guard,
        memory: KVMemory,
        limits: Limits,
        log: DecisionSink,
        counters: Counters,
        service: ServiceBook,
    ) -> None:
        self.guard = guard
        self.memory = memory
        self.host = HostMemory(memory)
        self.limits = limits
        self.log = log
        self.waiting = WaitingQueue(guard.wrote)
        self.counters = counters
        self.service = service
        self.admissions = AdmissionBook()
        self.forecasts = ForecastRecord()
        self.moves = 0
        self.requests: dict[int, Request] = {}
        self.running: dict[int, Request] = {}
        # Insertion order of decodes is least recently served first.
        self.decoding: dict[Sequence, None] = {}
        self.prefilling: dict[Sequence, None] = {}
        self.running_by_class: Counter[str] = Counter()
        self.rows = 0  # that running requests hold
        self.searches = 0  # beam searches that run
        self.events: list[Event] = []
        self.on_stop: Callable[[Sequence], None] = _unheard
        self._changes = PrefixChanges(memory.pool.find)
        self._prepare()

    # ---------------------------------------------------------------- moves

    def enqueue(self, request: Request) -> None:
        """Let a request wait where the policy wants it."""
        flow, key = self.guard.place(request.view)
        self.waiting.push(request, flow, key)

    def requeue(self, request: Request) -> None:
        """Ask the policy anew where a waiting request belongs."""
        self.waiting.remove(request)
        self.enqueue(request)

    def requeue_all(self) -> None:
        """Queue everybody anew: another policy is in charge."""
        self.admissions.reorder()
        for request in self._prepare():
            self.enqueue(request)

    def prefix_changed(self, request: Request) -> None:
        """The tokens by which a waiting request is found in the prefix cache are others now."""
        if self.guard.follows_prefixes and self.waiting.holds(request):
            self.requeue(request)

    def _prepare(self) -> list[Request]:
        """Empty the queue and make it as the policy wants it; returns who waited."""
        follows = self.guard.follows_prefixes
        self.memory.pool.on_change = self._changes.note if follows else None
        return self.waiting.reset(self._make_flow if follows else None)

    def _make_flow(self) -> PrefixOrder:
        return PrefixOrder(self._changes, self.memory.keys, self._place, BLOCK)

    def _place(self, request: Request, cached: int) -> tuple[object, int]:
        return (self.guard.prefix_key(request.view, cached), request.ticket)

    def start(self, request: Request) -> None:
        """From waiting to running."""
        self.waiting.remove(request)
        self.moves += 1
        request.phase = Phase.PREFILL
        request.resuming = request.preemptions > 0
        self.running[request.id] = request
        self.running_by_class[request.slo_class] += 1
        self.rows += request.rows
        self.searches += request.search is not None
        self._gate(request.slo_class)
        for sequence in request.sequences:
            if not sequence.done:
                sequence.prefill_end = len(sequence.tokens)
                self.prefilling[sequence] = None

    def preempt(self, request: Request) -> None:
        """From running to waiting, with its place and what it stored in host memory."""
        for sequence in request.sequences:
            sequence.peak = max(sequence.peak, sequence.computed)
        request.preemptions += 1
        self.counters.preemptions += 1
        self._stop(request)
        request.phase = Phase.PREEMPTED
        self.enqueue(request)
        request.queued_at = self.admissions.count

    def drop(self, request: Request) -> None:
        """Out of every map it is in."""
        del self.requests[request.id]
        self.forecasts.forget(request.id)
        if request.id in self.running:
            self._stop(request)
        else:
            self.waiting.remove(request)
        request.phase = Phase.FINISHED
        for sequence in request.sequences:
            self.host.forget(sequence)
            sequence.done = True  # whatever of it is still in flight comes to nothing

    def end_sequence(self, sequence: Sequence) -> None:
        """A sequence is complete: its row and its blocks serve others."""
        self.rows -= sequence.request.id in self.running
        sequence.done = True
        self.moves += 1
        self.decoding.pop(sequence, None)
        self.prefilling.pop(sequence, None)
        self.memory.release(sequence)
        self.host.forget(sequence)
        self.on_stop(sequence)

    def became_decode(self, sequence: Sequence) -> None:
        """All known tokens of a sequence are computed, or will be when its row has landed."""
        self.moves += 1
        del self.prefilling[sequence]
        self.decoding[sequence] = None
        request = sequence.request
        if all(s.decoding for s in request.open_sequences):
            request.phase = Phase.DECODE

    def back_to_prompt(self, sequence: Sequence) -> None:
        """What completed a sequence's known tokens, or would have, may have come to nothing."""
        if sequence in self.decoding and not sequence.decoding:
            self.moves += 1
            del self.decoding[sequence]
            self.prefilling[sequence] = None
            sequence.request.phase = Phase.PREFILL

    def await_group(self, sequence: Sequence) -> None:
        """The row of a beam is in flight: it goes on when those of the others have landed."""
        del self.decoding[sequence]

    def resume(self, sequence: Sequence, step: int) -> None:
        """A beam may go on. step: the last one that was launched; nothing was owed to it before."""
        self.decoding.pop(sequence, None)
        self.prefilling.pop(sequence, None)
        sequence.last_served = step
        if sequence.decoding:
            self.decoding[sequence] = None
        else:
            self.prefilling[sequence] = None
            sequence.request.phase = Phase.PREFILL

    def _stop(self, request: Request) -> None:
        self.moves += 1
        del self.running[request.id]
        self.rows -= request.rows
        self.searches -= request.search is not None
        self.running_by_class[request.slo_class] -= 1
        self._gate(request.slo_class)
        for sequence in request.sequences:
            self.decoding.pop(sequence, None)
            self.prefilling.pop(sequence, None)
            self.memory.release(sequence)
            self.on_stop(sequence)

    # ---------------------------------------------------------------- classes

    def _gate(self, slo_class: str) -> None:
        """Close a class at its limit of running requests, open it below."""
        most = self.limits.of(slo_class).max_running
        if most is not None and self.running_by_class[slo_class] >= most:
            self.waiting.closed.add(slo_class)
        else:
            self.waiting.closed.discard(slo_class)

    def adopt(self, limits: Limits) -> None:
        """Let other limits hold; classes that they close or open are closed or opened."""
        known = {*self.limits.classes, *limits.classes}
        self.limits = limits
        self.reopen(known)

    def reopen(self, classes: set[str]) -> None:
        """Close these classes, or open them, by their limits of running requests alone."""
        for slo_class in classes:
            self._gate(slo_class)

    def blocks_of_class(self, slo_class: str) -> int:
        """Blocks that the running requests of a class hold or were promised."""
        return sum(
            max(len(s.table), s.blocks_missing(s.prefill_end) + len(s.table))
            for r in self.running.values()
            if r.slo_class == slo_class
            for s in r.sequences
        )

    # ---------------------------------------------------------------- the policy

    def notify(self) -> None:
        """Tell the policy what happened; queue the waiting requests it names anew."""
        if not self.events:
            return
        events, self.events = self.events, []
        for request_id in self.guard.observe(events, len(self.requests) + 1):
            request = self.requests.get(request_id)
            if request is None:
                self.guard.save("foreign id", "observe", request_id)
            elif self.waiting.holds(request):  # else it runs, or a step has set it aside
                self.requeue(request)


def _unheard(sequence: Sequence) -> None:
    """Nobody wants to know."""
