"""Why a request waits: made on the engine thread, between two steps, only when somebody asks.

Bounded in time, however many wait: no more than LOOKS entries of queues are looked at for all that
is asked at once, and no more admissions than are remembered.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator
from functools import cached_property
from itertools import islice

from engine.admissions import Line, Passage
from engine.forecast import Pending, Rates, Workload
from engine.heap import Looks
from engine.inspection import in_order, snapshot
from engine.outputs import Blocker, Overtaker, Position, RequestExplanation, StartEstimate
from engine.planner import Planner
from engine.request import Request
from policies.base import StepCost, StepView

LOOKS = 4096
"""Entries of queues that are looked at."""

OVERTAKERS = 1000
"""Overtakers that are named; the latest of more."""


class Explainer:
    """Answers one question. cost: what steps cost; step: the one that is planned next."""

    def __init__(self, planner: Planner, cost: StepCost, step: StepView) -> None:
        self._planner = planner
        self._roster = planner.roster
        self._cost = cost
        self._step = step
        self._looks = Looks(LOOKS)

    def in_brief(self, limit: int) -> tuple[RequestExplanation, ...]:
        """Of the first requests, without who overtook them and without the policy's words.

        Those for which no looks are left have no position.
        """
        return tuple(map(self._brief, islice(in_order(self._roster), limit)))

    def in_full(self, request: Request) -> RequestExplanation:
        """All there is to say of one request. What it is told of its start is remembered."""
        if not self._roster.waiting.holds(request):
            return RequestExplanation(snapshot(request), request.lost)
        passages = self._overtakers(request)
        named = passages[-OVERTAKERS:]
        before, position = self._position(request)
        return RequestExplanation(
            request=snapshot(request),
            lost=request.lost,
            position=position,
            blockers=self._blockers(request, position),
            overtakers=tuple(Overtaker(p.request, p.at, _why(p, request)) for p in named),
            overtaken=len(passages),
            complete=len(named) == len(passages)
            and self._roster.admissions.remembers(request.queued_at),
            start=self._start(request, before, position, tell=True),
            words=self._roster.guard.explain(request.view, self._step),
        )

    def _brief(self, request: Request) -> RequestExplanation:
        seen, waits = snapshot(request), self._roster.waiting.holds(request)
        if not (waits and self._looks.left):
            return RequestExplanation(seen, request.lost)
        before, position = self._position(request)
        blockers = self._blockers(request, position)
        start = self._start(request, before, position, tell=False)
        return RequestExplanation(seen, request.lost, position, blockers, start=start)

    # ---------------------------------------------------------------- who goes first

    def _position(self, request: Request) -> tuple[list[Request], Position]:
        """Who goes before it, as far as we looked, and its place."""
        waiting = self._roster.waiting
        flow = _named(waiting.line_of(request)[1])
        before, of = waiting.before(request, self._looks)
        exact = self._looks.left > 0
        return before, Position(flow, len(before) + 1, of, exact, waiting.lines())

    def _overtakers(self, request: Request) -> list[Passage]:
        """Admissions of younger requests since it began to wait, the earliest first."""
        passages = self._roster.admissions.since(request.queued_at)
        return [passage for passage in passages if passage.ticket > request.ticket][::-1]

    # ---------------------------------------------------------------- what it waits for

    def _blockers(self, request: Request, position: Position) -> tuple[Blocker, ...]:
        blockers = [*self._wants(request), *self._must_wait(request)]
        if position.place > 1:
            blockers.append(Blocker("order", position.place - 1))
        return tuple(blockers) or (Blocker("policy", self._roster.waiting.requests - 1),)

    def _must_wait(self, request: Request) -> Iterator[Blocker]:
        """Times that have to pass first."""
        hold = self._planner.hold_until - self._step.now
        if 0 < hold < math.inf:
            yield Blocker("hold", hold)
        if any(sequence.pending for sequence in request.open_sequences):
            yield Blocker("step")

    def _wants(self, request: Request) -> Iterator[Blocker]:
        """Room that there is too little of."""
        planner, roster = self._planner, self._roster
        limits = planner.limits.of(request.slo_class)
        running = roster.running_by_class[request.slo_class]
        if limits.max_running is not None and running >= limits.max_running:
            yield Blocker("class", 1, 0)
        if not planner.fits_its_class(request):
            assert limits.max_blocks_fraction is not None
            most = int(limits.max_blocks_fraction * planner.memory.pool.total)
            left = most - roster.blocks_of_class(request.slo_class)
            yield Blocker("class", planner.memory.wanted(request), max(0, left))
        rows = planner.limits.rows - roster.rows
        if request.rows > rows:
            yield Blocker("rows", request.rows, rows)
        blocks = planner.to_take(request)
        if blocks > self._blocks:
            yield Blocker("blocks", blocks, max(0, self._blocks))

    @cached_property
    def _blocks(self) -> int:
        """Blocks that an admission can have; the same for everybody who is explained."""
        return self._planner.blocks_to_give()

    # ---------------------------------------------------------------- when it starts

    def _start(
        self, request: Request, before: list[Request], position: Position, *, tell: bool
    ) -> StartEstimate:
        now, record, rates = self._step.now, self._roster.forecasts, self._rates
        line = self._roster.waiting.line_of(request)
        prompts = [each.prompt_length for each in [*before, request]]
        if not position.exact:
            prompts += self._beyond(request, position, prompts)
        work = self._workload.seconds(prompts)
        since = min(each.submission.arrival for each in [*before, request])
        pace = rates.of(line, since) * (1 - self._passing(request, line))
        forecast = Pending(now, work / pace, rates.grain)
        if tell:
            record.tell(request.id, forecast)
        low, high = record.spread(now)
        scaled = forecast.seconds + rates.grain
        return StartEstimate(
            forecast.seconds, max(0.0, scaled * low - rates.grain), scaled * high - rates.grain
        )

    def _beyond(self, request: Request, position: Position, prompts: list[int]) -> list[int]:
        """Those before it that were not looked at: as many as are older, of average length."""
        oldest = next(iter(self._roster.requests.values())).ticket
        count = min(position.of, request.ticket - oldest) - len(prompts)
        return [sum(prompts) // len(prompts)] * max(0, count)

    def _passing(self, request: Request, line: Line) -> float:
        """Part of what its line let in since it began to wait that is younger than it.

        As if it had been passed by none of eight before.
        """
        latest = self._rates.latest(line)
        tickets = [each.ticket for each in latest if each.number >= request.queued_at]
        younger = sum(ticket > request.ticket for ticket in tickets)
        return younger / (len(tickets) + 8)

    @cached_property
    def _rates(self) -> Rates:
        roster = self._roster
        return Rates(roster.admissions, self._workload, roster.waiting.lines(), self._step.now)

    @cached_property
    def _workload(self) -> Workload:
        counters = self._roster.counters
        output = counters.generated_tokens / max(1, counters.admitted)
        return Workload(self._cost, output, self._step.decoding)


def _named(flow: Hashable) -> str:
    """A flow in words; policies make some of several parts, such as class and tenant."""
    return " / ".join(map(str, flow)) if isinstance(flow, tuple) else str(flow)


def _why(passage: Passage, request: Request) -> str:
    if request.slo_class in passage.closed:
        return "class"
    return "room" if request.id in passage.aside else "policy"
