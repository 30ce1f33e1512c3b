"""Another policy every five steps: nobody is lost, nothing leaks, every word is the same."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from support.built_in import BUILT_IN
from support.engines import Harness, services
from support.scripts import hashed

from engine.inbox import Reconfigure
from engine.limits import ClassLimits
from engine.outputs import Finish

EVERY = 5
CLASSES = {"batch": ClassLimits(max_running=3, max_blocks_fraction=0.9)}


def make(depth: int) -> Harness:
    return Harness(script=hashed, blocks=16, rows=6, budget=40, depth=depth, classes=CLASSES)


def wish(chance: random.Random, now: float) -> tuple[list[int], dict[str, Any]]:
    """A request of somebody; some share a prefix, some are groups, a few have deadlines."""
    shared = chance.choice([0, 0, 16, 33])
    prompt = [7000 + i for i in range(shared)]
    prompt += [chance.randrange(1000) for _ in range(chance.randint(1, 40))]
    return prompt, {
        "max_tokens": chance.randint(1, 30),
        "n": chance.choice([1, 1, 1, 2]),
        "tenant": chance.choice("aaab"),
        "weight": chance.choice([1.0, 2.0]),
        "slo_class": chance.choice(["default", "batch"]),
        "priority": chance.randint(0, 2),
        "ttft_deadline": now + chance.choice([0.05, 0.5, 1e9]),
        "tpot_target": chance.choice([0.01, 1e9]),
    }


def serve(steps: int, depth: int, *, swaps: bool) -> tuple[Harness, list[int]]:
    """So many steps under load, then until all have ended; the requests."""
    chance, harness = random.Random(depth), make(depth)
    policies = itertools.cycle(BUILT_IN.values())
    kept = []
    for step in range(steps):
        if swaps and step % EVERY == 0:
            harness.mail.append(Reconfigure(next(policies)(services=services())))
        if harness.scheduler.live + len(harness.mail) < 14 and chance.random() < 0.5:
            prompt, fields = wish(random.Random(1000 + len(kept)), harness.clock.now())
            kept.append(harness.submit(prompt, **fields))
        harness.step()
    harness.run()
    return harness, kept


def answers(harness: Harness, request: int) -> list[tuple[list[int], Finish | None]]:
    return [
        (harness.tokens(request, index), harness.end(request, index))
        for index in range(2)
        if (request, index) in harness.outputs
    ]


def compare(steps: int, depth: int) -> None:
    swapped, kept = serve(steps, depth, swaps=True)
    counters = swapped.scheduler.counters
    assert counters.finished == counters.arrived == len(kept)
    assert swapped.pool.free == swapped.pool.total
    assert swapped.scheduler.guard.saves.total() == 0
    assert [e for e in swapped.log.entries if e[0] in ("fallback", "reject", "fail")] == []
    assert len([e for e in swapped.log.entries if e[0] == "policy"]) == -(-steps // EVERY)
    assert counters.preemptions > steps // 100
    plain = make(depth)
    for number in range(len(kept)):
        prompt, fields = wish(random.Random(1000 + number), 0.0)
        plain.submit(prompt, **fields)
    plain.run(limit=20 * steps)
    for request in kept:
        assert answers(swapped, request) == answers(plain, request)


@pytest.mark.parametrize("depth", [0, 1])
def test_600_steps_under_a_policy_that_changes_every_five(depth: int) -> None:
    compare(600, depth)


@pytest.mark.slow
@pytest.mark.parametrize("depth", [0, 1])
def test_10000_steps_under_a_policy_that_changes_every_five(depth: int) -> None:
    compare(10_000, depth)
