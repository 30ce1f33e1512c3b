"""A look inside: who is shown first, and what it says of the pool."""

from __future__ import annotations

import pytest
from support.engines import Harness

from engine.inbox import Inspect
from engine.outputs import Inspection
from policies.base import Policy


class LastComeFirst(Policy):
    def key(self, request):
        return (-request.ticket,)


def look(harness: Harness, limit: int = 100) -> Inspection:
    """What the engine shows before its next step, which this takes."""
    looks: list[Inspection] = []
    harness.mail.append(Inspect(looks.append, limit=limit))
    harness.step()
    return looks[0]


def test_who_runs_comes_first_then_who_waits_each_by_ticket() -> None:
    harness = Harness(policy=LastComeFirst, rows=2)
    requests = [harness.submit(4, max_tokens=9) for _ in range(5)]
    harness.step()
    assert [seen.id for seen in look(harness).requests] == [
        *requests[3:],
        *requests[:3],
    ]
    harness.abort(requests[1])
    assert [seen.id for seen in look(harness, limit=4).requests] == [
        *requests[3:],
        requests[0],
        requests[2],
    ]
    harness.run()


@pytest.mark.parametrize("limit", [0, 1, 2, 3, 4])
def test_no_more_are_shown_than_asked_for(limit: int) -> None:
    harness = Harness(rows=2)
    for _ in range(3):
        harness.submit(4)
    harness.step()
    assert len(look(harness, limit).requests) == min(limit, 3)


def test_a_preempted_request_waits_in_its_old_place() -> None:
    harness = Harness(blocks=8)
    requests = [harness.submit(30, max_tokens=40) for _ in range(3)]
    while not harness.scheduler.counters.preemptions:
        harness.step()
    late = harness.submit(4)
    seen = look(harness).requests
    phases = {snapshot.id: snapshot.phase for snapshot in seen}
    waiting = [s.id for s in seen if s.phase in ("waiting", "preempted")]
    assert waiting == sorted(waiting)
    assert [phases[request] for request in (requests[0], late)] == ["decode", "waiting"]
    assert "preempted" in phases.values()
    harness.run()


def test_the_pool_is_told_block_by_block() -> None:
    harness = Harness(blocks=8)
    done = harness.submit(33, max_tokens=1)
    harness.run()
    group = harness.submit(20, max_tokens=9, n=2)
    harness.step()
    harness.step()
    seen = look(harness)
    tables = {request.id: request.blocks for request in seen.requests}
    assert done not in tables
    owners = [0] * 8
    for table in tables[group]:
        for block in table:
            owners[block] += 1
    assert list(seen.pool.owners) == owners
    assert sorted(owners) == [0, 0, 0, 0, 0, 1, 1, 2]
    assert len(seen.pool.cached) == 2
    assert all(owners[block] == 0 for block in seen.pool.cached)
    harness.run()


def test_a_look_changes_nothing() -> None:
    logs = []
    for looks in (0, 3):
        harness = Harness(blocks=8)
        for _ in range(4):
            harness.submit(30, max_tokens=20)
        for _ in range(10):
            harness.mail += [Inspect(lambda seen: None)] * looks
            harness.step()
        harness.run()
        logs.append(harness.log.encode())
    assert logs[0] == logs[1]


def test_what_waits_in_host_memory_is_told_by_sequence() -> None:
    harness = Harness(blocks=8, host_blocks=8)
    requests = [harness.submit(30, max_tokens=40) for _ in range(3)]
    while not harness.scheduler.counters.offloaded_blocks:
        harness.step()
    seen = {request.id: request for request in look(harness).requests}
    (away,) = [request for request in seen.values() if any(request.host_blocks)]
    assert away.id in requests[1:]
    assert (away.phase, away.blocks) == ("preempted", ((),))
    assert len(away.host_blocks[0]) == harness.scheduler.counters.offloaded_blocks
    harness.run()
