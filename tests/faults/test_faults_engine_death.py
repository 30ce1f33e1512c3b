"""An exception of one request is its own; one of the loop is everybody's, and is told."""

from __future__ import annotations

import asyncio
import threading

from support.answers import read
from support.serving import COMPLETIONS, House, serving, until
from support.sockets import held_at

PROBES = ["/health", "/health/live", "/health/ready"]
ROWS = 5


async def everybody(house: House) -> list[asyncio.Task]:
    """Three streams and two whole answers that run, and two that wait; the engine is held."""
    tasks = []
    for number in range(7):
        body = {"prompt": [number + 1] * 3, "max_tokens": 40, "ignore_eos": True}
        body["stream"] = number < 3 or number == 6
        tasks.append(asyncio.create_task(house.post(COMPLETIONS, body)))
        await until(lambda: house.bridge.open_requests == len(tasks))
    return tasks


async def statuses(house: House) -> list[int]:
    return [(await house.client.get(path)).status_code for path in PROBES]


async def test_b55_an_exception_in_a_row_is_the_end_of_that_request_only() -> None:
    gate, hooks = held_at(0)
    async with serving(rows=ROWS, hooks=hooks, nan_rows={6: [1]}) as house:
        tasks = await everybody(house)
        gate.set()
        replies = [await task for task in tasks]
        failed = [
            number
            for number, reply in enumerate(replies)
            if reply.status_code != 200 or b"event: error" in reply.content
        ]
        assert len(failed) == 1
        for number, reply in enumerate(replies):
            if number not in failed:
                assert read(COMPLETIONS, reply).text == chr(number + 1) * 40
        assert await statuses(house) == [200, 200, 200]
        assert house.scheduler.counters.failed == 1
        await house.probe()
        await house.idle()


async def test_b55_an_exception_of_the_loop_is_told_to_all_and_the_probes_say_so() -> None:
    gate, hooks = held_at(4)

    def broken(now):
        raise RuntimeError("planted")

    async with serving(rows=ROWS, hooks=hooks) as house:
        tasks = await everybody(house)
        await until(lambda: len(house.backend.batches) == 5)
        house.scheduler.schedule = broken
        gate.set()
        for number, reply in enumerate([await task for task in tasks]):
            if reply.status_code == 200:
                assert number < 3, "of those that wait no stream has begun"
                assert b"event: error" in reply.content
                assert reply.content.endswith(b"data: [DONE]\n\n")
                assert b'"finish_reason":"' not in reply.content
            else:
                assert reply.status_code == 500
                assert reply.json()["error"]["code"] == "internal_error"
            assert b"planted" not in reply.content
        assert await statuses(house) == [503, 503, 503]
        for stream in (True, False):
            body = {"prompt": "x", "max_tokens": 1, "stream": stream}
            refused = await house.post(COMPLETIONS, body)
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "not_ready"
        assert house.bridge.open_requests == 0
        assert (await house.client.get("/metrics")).status_code == 200


async def test_b55_an_exception_in_a_submission_leaves_nobody_waiting() -> None:
    """The engine reads its mail outside of any step."""
    gate, hooks = held_at(4)

    def broken(submission, now):
        raise RuntimeError("planted")

    async with serving(rows=ROWS, hooks=hooks) as house:
        tasks = await everybody(house)
        await until(lambda: len(house.backend.batches) == 5)
        house.scheduler.submit = broken
        late = asyncio.create_task(house.post(COMPLETIONS, {"prompt": "x"}))
        await until(lambda: house.bridge.open_requests == 8)
        gate.set()
        replies = [await task for task in (*tasks, late)]
        assert replies[-1].status_code == 500
        assert await statuses(house) == [503, 503, 503]


async def test_b55_while_a_step_hangs_the_probes_answer_and_nothing_else_hangs() -> None:
    """Liveness and readiness of an engine that is stuck: see test_stuck_engine."""
    gate = threading.Event()
    async with serving(rows=1, hooks={2: lambda batch: gate.wait(60)}) as house:
        tasks = await everybody(house)
        await until(lambda: len(house.backend.batches) == 3)
        assert await statuses(house) == [200, 200, 200], "a long step is not stuck yet"
        assert (await house.client.get("/metrics")).status_code == 200
        assert (await house.post("/tokenize", {"prompt": "x"})).status_code == 200
        gate.set()
        assert [(await task).status_code for task in tasks] == [200] * 7
        await house.idle()
