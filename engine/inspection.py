"""A look inside: what admin pages and explanations read, copied on the engine thread."""

from __future__ import annotations

import heapq

from engine.outputs import Inspection, RequestSnapshot, Stats
from engine.request import Request
from engine.roster import Roster


def inspect(roster: Roster, stats: Stats, limit: int) -> Inspection:
    """The engine's counts, pool and policy, and its `limit` oldest live requests."""
    guard = roster.guard
    oldest = heapq.nsmallest(limit, roster.requests.values(), key=lambda request: request.ticket)
    return Inspection(
        stats=stats,
        pool=roster.memory.pool.snapshot(),
        policy=type(guard.policy).__name__,
        fallen_back=guard.fallen_back,
        last_fault=guard.last_fault,
        requests=tuple(map(_snapshot, oldest)),
    )


def _snapshot(request: Request) -> RequestSnapshot:
    submission = request.submission
    return RequestSnapshot(
        id=request.id,
        ticket=request.ticket,
        phase=request.phase.value,
        tenant=submission.tenant,
        slo_class=request.slo_class,
        priority=submission.priority,
        arrival=submission.arrival,
        prompt=request.prompt_length,
        computed=request.computed,
        generated=request.view.output,
        preemptions=request.preemptions,
        blocks=tuple(tuple(sequence.table) for sequence in request.sequences),
    )
