"""`priority` over HTTP: an urgent request does not wait for a house full of others to end."""

import asyncio
import threading

import pytest
from support.serving import CHAT, COMPLETIONS, HELLO, serving, until

from policies.fcfs import FCFS
from policies.priority import Priority

LONG = 400
HELD = 3
"""The step before which the engine waits until everybody is there."""


async def post(house, number: int, **fields) -> asyncio.Task:
    """Post the `number`-th request; the engine gets to know of it before any later one."""
    body = {"prompt": [number] * 4, "ignore_eos": True, **fields}
    reply = asyncio.ensure_future(house.post(COMPLETIONS, body))
    await until(lambda: house.bridge.open_requests == number)
    return reply


def served(house) -> list[tuple[int, int]]:
    """The first and the last step that computed each request, in order of arrival."""
    steps: dict[int, list[int]] = {}
    for batch in house.backend.batches:
        for row in batch.rows:
            steps.setdefault(row.request, []).append(batch.step)
    return [(steps[request][0], steps[request][-1]) for request in sorted(steps)]


async def rush_hour(policy) -> list[tuple[int, int]]:
    """Two long requests run; an urgent one comes, then ten that are not. When each was served."""
    both, everybody = threading.Event(), threading.Event()
    hooks = {0: lambda batch: both.wait(60), HELD: lambda batch: everybody.wait(60)}
    async with serving(
        policy=policy, rows=2, hooks=hooks, script=lambda row: 65, model_len=512, blocks=128
    ) as house:
        replies = [await post(house, 1, max_tokens=LONG, priority=5)]
        await until(lambda: house.backend.batches)  # or both would be in the first step
        replies.append(await post(house, 2, max_tokens=LONG, priority=5))
        both.set()
        await until(lambda: len(house.backend.batches) == HELD + 1)
        replies.append(await post(house, 3, max_tokens=5, priority=0))
        replies += [await post(house, n, max_tokens=5, priority=5) for n in range(4, 14)]
        everybody.set()
        texts = [(await reply).json()["choices"][0]["text"] for reply in replies]
        await house.idle()
        assert texts == ["A" * LONG] * 2 + ["A" * 5] * 11, "who gave way still ends right"
        return served(house)


async def test_b34_an_urgent_request_displaces_one_of_a_full_house_and_nobody_else_does():
    steps = await rush_hour(Priority)
    assert steps[2] == (HELD + 1, HELD + 5)
    assert steps[0] == (0, LONG - 1), "the oldest went on"
    assert steps[1] == (1, LONG + 5), "who gave way lost the five steps of the urgent one"
    assert min(first for first, _ in steps[3:]) == LONG


async def test_b34_first_come_first_served_does_not_look_at_it():
    steps = await rush_hour(FCFS)
    assert [last for _, last in steps[:2]] == [LONG - 1, LONG]
    assert min(first for first, _ in steps[2:]) == steps[2][0] == LONG


@pytest.mark.parametrize("priority", ["high", 1e9, 0.5, True, [1], 2**63])
async def test_b34_a_priority_that_is_no_number_of_64_bits_is_refused(priority):
    async with serving(policy=Priority) as house:
        reply = await house.post(CHAT, {"messages": HELLO, "priority": priority})
        assert reply.status_code == 400
        assert reply.json()["error"]["param"] == "priority"


@pytest.mark.parametrize("priority", [None, 0, -(2**63), 2**63 - 1, 10**9])
async def test_b34_any_whole_number_is_a_priority_and_null_is_none(priority):
    async with serving(policy=Priority) as house:
        body = {"messages": HELLO, "max_tokens": 2, "priority": priority}
        assert (await house.post(CHAT, body)).status_code == 200
        await house.idle()
