"""The real model says the same while the policy is another one every five steps."""

from __future__ import annotations

import itertools

import pytest
from support.built_in import BUILT_IN
from support.engines import Harness, services
from support.float_parity import MODEL, asks, differences, said

from engine.backends.cpu import on_torch
from engine.inbox import Reconfigure

EVERY = 5
STEPS = 300

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not MODEL.exists(), reason=f"{MODEL.name} is not in models/"),
    pytest.mark.timeout(1200),
]


def test_300_steps_under_a_policy_that_changes_every_five(model, record_property) -> None:
    """A pool too small for who runs, tenants and priorities that policies tell apart."""
    wanted = asks(60, max_tokens=20, longest=90)

    def serve(blocks: int, rows: int, *, swaps: bool):
        backend = on_torch(*model, blocks)
        harness = Harness(backend=backend, blocks=blocks, budget=32, rows=rows)
        policies = itertools.cycle(BUILT_IN.values())
        coming = iter(enumerate(wanted))
        requests, steps = [], 0
        while True:
            for number, ask in itertools.islice(coming, max(0, 16 - harness.scheduler.live)):
                requests.append(
                    harness.submit(
                        ask.prompt,
                        ask.max_tokens,
                        ask.controls,
                        tenant="abc"[number % 3],
                        priority=number % 4,
                    )
                )
            if swaps and steps % EVERY == 0:
                harness.mail.append(Reconfigure(next(policies)(services=services())))
            steps += harness.step()
            if not harness.scheduler.live:
                break
        backend.close()
        assert harness.pool.free == blocks
        assert harness.scheduler.counters.finished == len(wanted)
        return [said(harness, request) for request in requests], harness, steps

    expected, _, _ = serve(200, rows=16, swaps=False)
    found, harness, steps = serve(14, rows=6, swaps=True)
    assert steps >= STEPS
    assert harness.scheduler.counters.preemptions > 0
    assert harness.scheduler.guard.saves.total() == 0
    parted = differences(wanted, expected, found)
    record_property("parted", {"parted": parted, "steps": steps})
    assert sum(parted.values()) <= len(wanted) // 10
