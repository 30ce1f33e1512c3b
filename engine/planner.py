"""Planning a step: grants, admissions, and who gives way when blocks or rows run out."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

from engine.admission import Admission
from engine.batch import BLOCK
from engine.decisions import no_log
from engine.memory import KVMemory
from engine.outputs import Failure
from engine.plan import Plan
from engine.progress import NOTHING, Owed, ProgressWindow
from engine.relief import OFFLOAD_NOTHING, Relief, ReliefSettings
from engine.request import Request, Sequence
from engine.roster import Roster
from engine.speculation import Drafter, Speculation
from engine.step import StepProxy
from policies.base import Preempted, Share

Refuse = Callable[[Request, Failure, float], None]
"""Says that a waiting request is refused, and why, at an engine time."""


class Planner:
    """Makes plans over a roster. `refuse` is told when the policy refuses a head meanwhile.

    relief: how requests may give way. drafter: guesses what follows decodes, if anybody does.
    kept_out: why the last plan let no head in (`engine.queue_time`); empty if nobody asked.
    """

    def __init__(
        self,
        roster: Roster,
        refuse: Refuse,
        relief: ReliefSettings = OFFLOAD_NOTHING,
        drafter: Drafter | None = None,
    ) -> None:
        self.roster = roster
        self.refuse = refuse
        self.guard = roster.guard
        self.memory: KVMemory = roster.memory
        self.limits = roster.limits
        self.relief = Relief(self.memory, roster.host, relief, self.limits.step_tokens)
        self.window = ProgressWindow(self.guard.settings.window, self.limits.step_tokens)
        self.speculation = None if drafter is None else Speculation(roster, drafter)
        self.hold_until = math.inf
        self.kept_out = ""
        budget = self.limits.step_tokens
        self._everything = Share(budget, budget, budget)
        self._served: list[tuple[int, int]] = []
        self._entry: list[int] = []

    def plan(self, number: int, now: float, *, busy: bool) -> Plan:
        """Decide what step `number` computes. An empty plan: there is nothing to do now.

        busy: another step is in flight, so that an empty one would not be time lost.
        """
        plan = Plan(number, now, self.limits.budget(len(self.roster.decoding)))
        self.hold_until = math.inf
        self.kept_out = ""
        if not self.roster.requests:
            return plan
        step = StepProxy(self.roster, number, now) if self._policy_has_a_say() else None
        if step is None:
            share, owed = self._everything, NOTHING
            self.window.no_prompts()
        else:
            share = self.guard.share(step)
            owed = self._owed(number, share)
            may_skip = self.guard.may_skip_decodes
            plan.forced = owed.exceeds(share) or (owed.decodes > 0 and may_skip)
        self._grant_decodes(plan, share, owed, step)
        if step is not None or plan.gave_way or not (plan.tokens or busy):
            step = step or StepProxy(self.roster, number, now)
            self._grant_prompts(plan, share, owed, step)
            if not plan.tokens and not busy:
                self._plan_anything(plan, share, step)
        if self.speculation is not None and plan.tokens:
            self.speculation.widen(plan, share)
        self.guard.forced_progress += plan.forced
        if plan.prompt_tokens:
            self.window.granted(number, plan.prompt_tokens)
        return plan

    def _policy_has_a_say(self) -> bool:
        """Whether the step is anything but a token for each running decode: most are not."""
        roster, guard = self.roster, self.guard
        return bool(
            roster.prefilling
            or len(roster.requests) > len(roster.running)
            or guard.splits
            or guard.may_skip_decodes
            or len(roster.decoding) > self.limits.step_tokens
        )

    def _plan_anything(self, plan: Plan, share: Share, step: StepProxy) -> None:
        """Whatever the policy wants, as `share`: no empty step while somebody could run."""
        everybody = Owed(len(self.roster.decoding), 0)
        anything = Share(plan.budget, plan.budget, plan.budget)
        self._grant_decodes(plan, anything, everybody, step)
        self._grant_prompts(plan, anything, Owed(0, plan.budget), step)
        if plan.tokens:
            self.guard.save("idle", "share", share)

    def _owed(self, number: int, share: Share) -> Owed:
        """What the step owes; nothing where everybody is served anyway."""
        roster = self.roster
        if not self.guard.settings.enabled:
            return NOTHING
        if not roster.prefilling:
            self.window.no_prompts()
            if len(roster.decoding) <= share.decode and not self.guard.may_skip_decodes:
                return NOTHING
        last_served = (sequence.last_served for sequence in roster.decoding)
        return self.window.owed(number, last_served, self.lacking())

    def lacking(self) -> int:
        """Tokens that running prompts still have to compute.

        A sibling that has not started will copy the prompt, and compute only what follows.
        """
        return sum(
            sequence.remaining
            if sequence.reached or sequence is sequence.request.open_sequences[0]
            else len(sequence.tokens) - self.memory.fork_tokens(sequence)
            for sequence in self.roster.prefilling
        )

    # ---------------------------------------------------------------- grants

    def _grant_decodes(self, plan: Plan, share: Share, owed: Owed, step: StepProxy | None) -> None:
        """One token for each running decode, least recently served first.

        Those the step owes a token come first in that order, and get it whatever the policy says.
        step: None if it has nothing to say.
        """
        decoding, step_number, gave_way = self.roster.decoding, plan.step, plan.gave_way
        wanted = max(min(share.decode, plan.budget - owed.prompt_tokens), owed.decodes)
        limit = min(wanted, plan.budget)
        scarce = limit < len(decoding)
        may_skip = self.guard.may_skip_decodes
        served: list[Sequence] = []
        for place, sequence in enumerate(list(decoding)):
            if scarce and len(served) >= limit:
                break
            if gave_way and sequence not in decoding:
                continue  # gave way to an earlier one
            if sequence.pending and sequence.remaining < 1:
                continue  # all its tokens are in flight
            if sequence.pending and self.speculation and self.speculation.waits(sequence):
                continue
            may_wait = may_skip and place >= owed.decodes
            if may_wait and step and self.guard.may_wait(sequence.request.view, step):
                continue
            inside = sequence.reached % BLOCK and not sequence.shares_tail
            if inside or self._grow(sequence, 1, plan):
                sequence.last_served = step_number
                served.append(sequence)
        if not served:
            return
        self._grant_served(served, plan)
        guided = [sequence for sequence in served if sequence.matcher is not None]
        if guided and len(served) < limit:
            self._grant_known(guided, limit - len(served), share.chunk, plan)

    def _grant_served(self, served: list[Sequence], plan: Plan) -> None:
        """One token for each of the decodes whose turn it was and who did not give way since."""
        decoding = self.roster.decoding
        self._log_decodes(served)
        plan.grant_one_each([s for s in served if s in decoding] if plan.gave_way else served)
        if len(served) < len(decoding):
            for sequence in served:
                if sequence in plan:
                    del decoding[sequence]
                    decoding[sequence] = None

    def _grant_known(self, guided: list[Sequence], most: int, chunk: int, plan: Plan) -> None:
        """Up to `most` more tokens for decodes that know more than one, since some were forced.

        Each has got its first one. Nobody gives way for the others, and blocks that running prompts
        still need are left to them. chunk: most tokens of one sequence.
        """
        spare = self.blocks_to_give()
        for sequence in guided:
            if most < 1:
                return
            if sequence.remaining < 2 or sequence not in plan:
                continue
            held = len(sequence.table) * BLOCK - sequence.reached
            count = min(sequence.remaining, 1 + most, chunk, held + max(0, spare) * BLOCK)
            if count < 2:
                continue
            free = self.memory.pool.free
            self.memory.extend(sequence, count)
            spare -= free - self.memory.pool.free
            plan.add(sequence, count - 1)
            most -= count - 1
            self.roster.log("known", *sequence.name, count)

    def _log_decodes(self, served: list[Sequence]) -> None:
        """Say who decodes. Mostly they are those of the step before, and so are their names."""
        if self.roster.log is no_log:
            return
        names = [sequence.name for sequence in served]
        if names != self._served:
            self._served, self._entry = names, [part for name in names for part in name]
        self.roster.log("decode", self._entry)

    def _grant_prompts(self, plan: Plan, share: Share, owed: Owed, step: StepProxy) -> None:
        """Prompt work, one at a time, smallest rank first: running prompts and the picked head."""
        if not self.roster.prefilling and not self.roster.waiting.requests:
            return
        limit = max(share.prompt, owed.prompt_tokens)
        running = deque(sorted(self.roster.prefilling, key=self._rank))
        door = Admission(self, plan, step)
        try:
            if limit > 0 and plan.left < 1 and self.guard.displaces_anybody:
                self._turn_of_head(door, running)  # decodes took all: a head may push one out
            while (left := min(limit - plan.prompt_tokens, plan.left)) > 0:
                if self._turn_of_head(door, running):
                    continue
                if running:
                    sequence = running.popleft()
                    still_owed = owed.prompt_tokens - plan.prompt_tokens
                    most = min(max(share.chunk, still_owed), left)
                    if not self._grant_prompt(sequence, most, still_owed, plan, step):
                        return
                else:
                    return
        finally:
            door.close()

    def _turn_of_head(self, door: Admission, running: deque[Sequence]) -> bool:
        """Let the head in, if it has one that goes before the first running prompt, and fits.

        False if it is not the head's turn.
        """
        head = door.head()
        if head is None or (running and not self._before(head, running[0])):
            return False
        if door.admit(head):
            running.extendleft(reversed(head.open_sequences))
        return True

    def _grant_prompt(
        self, sequence: Sequence, most: int, owed: int, plan: Plan, step: StepProxy
    ) -> bool:
        """Up to `most` tokens of one running prompt; False if the policy ends prompt work here."""
        if sequence not in self.roster.prefilling:
            return True  # it gave way to an earlier one
        grouped = sequence.reached == 0 and len(sequence.request.sequences) > 1
        if grouped and not self._may_start(sequence):
            return True
        most = min(sequence.remaining, most)
        if most < 1:
            return True
        count = self._chunk(sequence, most, owed, plan, step)
        if count < 1:
            return False
        count = self._grow(sequence, count, plan)
        if count:
            plan.grant(sequence, count)
            plan.prompt_tokens += count
            sequence.last_served = plan.step
            self.roster.log("chunk", sequence.request.id, sequence.index, count)
        return True

    def _chunk(self, sequence: Sequence, most: int, owed: int, plan: Plan, step: StepProxy) -> int:
        """How many of `most` tokens the policy wants computed, or as many as the step owes."""
        if not self.guard.sizes_chunks:
            return most
        count = self.guard.chunk(sequence.request.view, sequence.reached, most, step)
        plan.forced |= count < min(owed, most)
        return max(count, min(owed, most))

    def _rank(self, sequence: Sequence) -> tuple[object, int, int]:
        request = sequence.request
        return (self.guard.rank(request.view), request.ticket, sequence.index)

    def _before(self, head: Request, running: Sequence) -> bool:
        return (self.guard.rank(head.view), head.ticket, 0) < self._rank(running)

    # ---------------------------------------------------------------- groups

    def _may_start(self, sequence: Sequence) -> bool:
        """Whether a sequence of a group that has computed nothing may start now.

        One computes the prompt; when it has, the others share it. They start apart from that only
        if a step that came to nothing took it from them.
        """
        request = sequence.request
        source = request.prompt_source()
        if source is None:
            return sequence is request.open_sequences[0]
        self.memory.fork(sequence, source)
        self.roster.log("fork", request.id, sequence.index, source.index)
        return True

    # ---------------------------------------------------------------- blocks

    def _grow(self, sequence: Sequence, count: int, plan: Plan) -> int:
        """Take blocks for `count` more tokens, or for as many as can be had.

        Returns how many tokens now fit; 0 if the row has to pause or had to give way itself.
        """
        memory = self.memory
        if memory.needs(sequence, count) > memory.pool.free:
            dry = memory.room(sequence) < 1
            if dry and not self._make_room(sequence, memory.needs(sequence, 1), plan):
                return 0
            count = min(count, memory.room(sequence))
        memory.extend(sequence, count)
        return count

    def _make_room(self, sequence: Sequence, blocks: int, plan: Plan) -> bool:
        """Have `blocks` blocks free for a running sequence; others give way, in policy order."""
        pool, memory = self.memory.pool, self.memory
        while pool.free < blocks:
            if pool.free + len(memory.limbo) >= blocks:
                return False  # enough is coming back when the step in flight has landed
            victim = next(iter(self._victims(plan)), None)
            if victim is None or not self.relief.possible([victim]):
                return False
            self._preempt(victim, plan)
            if victim is sequence.request:
                return False
        return True

    def _victims(self, plan: Plan) -> list[Request]:
        """Running requests in the order in which they give way, the lowest ticket left out.

        The policy's order first; those it protects come after, youngest first. Who was let in
        again and has computed nothing since comes last, or its way back would have been in vain.
        """
        running = self.roster.running.values()
        oldest = min((request.ticket for request in running), default=0)
        step = StepProxy(self.roster, plan.step, plan.now)
        ranked: list[tuple[object, int, Request]] = []
        protected: list[Request] = []
        for request in running:
            order = self.guard.victim(request.view, step)
            if order is None:
                protected.append(request)
            else:
                ranked.append((order, -request.ticket, request))
        ranked.sort(key=lambda entry: entry[:2])
        protected.sort(key=lambda request: -request.ticket)
        victims = [request for _, _, request in ranked] + protected
        if ranked and len(victims) > 1 and victims[0].ticket == oldest:
            self.guard.veto("victim", victims[0].view, victims[1].view)
        others = (request for request in victims if request.ticket != oldest)
        return sorted(others, key=lambda request: request.resuming)

    def _preempt(self, request: Request, plan: Plan, by: Request | None = None) -> None:
        """Take all blocks from a running request. Who displaces it, if anybody does, is `by`."""
        roster = self.roster
        for sequence in request.sequences:
            plan.withdraw(sequence)
        offloaded = self.relief.keep(request)
        lost = self.relief.lost(request)
        request.lost += lost
        if by is None:
            roster.log("preempt", request.id, lost)
        else:
            roster.log("displace", request.id, by.id)
        if offloaded:
            roster.counters.offloaded_blocks += offloaded
            roster.log("offload", request.id, offloaded)
        roster.preempt(request)
        plan.gave_way.add(request)
        roster.events.append(Preempted(request.view, lost))
        roster.notify()

    # ---------------------------------------------------------------- admission

    def fits(self, request: Request) -> bool:
        """Whether rows and blocks suffice for all its known tokens.

        Blocks that running prompts still need count as taken: admitting on their account would
        only mean preempting somebody a few steps later. Cached blocks that somebody owns cost
        nothing.
        """
        if any(sequence.pending for sequence in request.open_sequences):
            return False  # preempted a moment ago: a token of it is still being sampled
        if self.roster.rows + request.rows > self.limits.rows:
            return False
        return self.to_take(request) <= self.blocks_to_give()

    def blocks_to_give(self) -> int:
        """Free blocks that no running prompt is going to need."""
        return self.memory.pool.free - self.memory.committed(self.roster.prefilling)

    def to_take(self, request: Request) -> int:
        """Free blocks that admitting a request will cost sooner or later."""
        references = self.memory.pool.references
        found = self.memory.found(request.open_sequences[0])
        owned = sum(references(block) > 0 for block in found)
        return self.memory.wanted(request) - owned

    def class_can_hold(self, request: Request, slo_class: str) -> bool:
        """Whether a class may ever hold as many blocks as the request can grow to."""
        fraction = self.limits.of(slo_class).max_blocks_fraction
        return fraction is None or request.blocks_at_most <= fraction * self.memory.pool.total

    def fits_its_class(self, request: Request) -> bool:
        """Whether its class may hold the blocks it asks for."""
        fraction = self.limits.of(request.slo_class).max_blocks_fraction
        if fraction is None:
            return True
        held = self.roster.blocks_of_class(request.slo_class)
        if not held:
            return True  # more than the whole share, which was larger when it came: alone, then
        return held + self.memory.wanted(request) <= fraction * self.memory.pool.total

    def displace_for(self, head: Request, plan: Plan) -> bool:
        """Push out running requests that the policy lets `head` push out, if that lets it in.

        That takes rows and blocks, and a token of this step, which decodes may have taken.
        """
        if not self.guard.displaces_anybody:
            return False
        running = self.roster.running.values()
        worse = {request for request in running if self.guard.displaces(head.view, request.view)}
        if not worse:
            return False  # the usual case, in every step behind a full house
        chosen: list[Request] = []
        wanted = self.to_take(head)
        rows = self.roster.rows + head.rows
        blocks = self.blocks_to_give()
        tokens = plan.left
        candidates = self._displaceable(head, plan)
        oldest = min(running, key=lambda request: request.ticket)
        if oldest in worse and oldest not in candidates:
            self.guard.veto("displaces", oldest.view, head.view)
        for request in candidates:
            has_room = rows <= self.limits.rows and wanted <= blocks
            if has_room and tokens > 0:
                break
            granted = plan.granted(request)
            if request in worse and (granted or not has_room):
                chosen.append(request)
                tokens += granted
                rows -= request.rows
                blocks += self.memory.private(request) + sum(
                    self.memory.missing(s) for s in request.sequences if s in self.roster.prefilling
                )
        if not chosen or rows > self.limits.rows or wanted > blocks or tokens < 1:
            return False
        if not self.relief.possible(chosen):
            return False
        for request in chosen:
            self._preempt(request, plan, by=head)
        return self.fits(head)

    def _displaceable(self, head: Request, plan: Plan) -> list[Request]:
        """Who may be displaced at all, in victim order.

        The lowest running ticket only by a strictly better class, when it alone fills the rows.
        """
        victims = self._victims(plan)
        if victims:
            return victims
        return [
            request
            for request in self.roster.running.values()
            if request.rows + head.rows > self.limits.rows
            and head.submission.priority < request.submission.priority
        ]
