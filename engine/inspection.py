"""A look inside: what admin pages and explanations read, copied on the engine thread."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from engine.outputs import Inspection, RequestSnapshot, Stats
from engine.request import Request
from engine.roster import Roster


def inspect(roster: Roster, stats: Stats, limit: int) -> Inspection:
    """The engine's counts, pool and policy, and at most `limit` requests.

    Those that run come first, then who waits, the oldest first: however many wait, it is quick.
    """
    guard = roster.guard
    return Inspection(
        stats=stats,
        pool=roster.memory.pool.snapshot(),
        policy=type(guard.policy).__name__,
        fallen_back=guard.fallen_back,
        last_fault=guard.last_fault,
        requests=tuple(map(snapshot, islice(in_order(roster), limit))),
    )


def in_order(roster: Roster) -> Iterator[Request]:
    """Running requests, then waiting ones, each by ticket."""
    yield from sorted(roster.running.values(), key=lambda request: request.ticket)
    # Requests came into this map in the order of their tickets.
    yield from (request for id, request in roster.requests.items() if id not in roster.running)


def snapshot(request: Request) -> RequestSnapshot:
    """A copy of what there is to say of a request."""
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
        host_blocks=tuple(tuple(sequence.host) for sequence in request.sequences),
    )
