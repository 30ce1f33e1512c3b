"""A queue that is full of long prompts refuses at once, whatever is asked, and recovers."""

import asyncio
import threading

from support.serving import COMPLETIONS, serving, until

from engine.clock import VirtualClock


async def test_of_many_prompts_as_many_are_taken_as_may_wait_and_the_others_told_at_once():
    gate = threading.Event()
    async with serving(max_waiting_tokens=100, hooks={0: lambda batch: gate.wait(60)}) as house:
        refused = 0
        enough = asyncio.Event()

        async def client(number: int) -> int:
            nonlocal refused
            # Also as a stream, and as two answers: the prompt is one, and so is the refusal.
            body = {
                "prompt": "x" * 25,
                "max_tokens": 2,
                "stream": number % 2 == 0,
                "n": 1 + number % 3,
            }
            reply = await house.post(COMPLETIONS, body)
            if reply.status_code != 200:
                assert (reply.status_code, reply.json()["error"]["code"]) == (429, "queue_full")
                assert int(reply.headers["retry-after"]) >= 1
                refused += 1
                if refused == 16:
                    enough.set()
            return reply.status_code

        clients = [asyncio.create_task(client(number)) for number in range(20)]
        await asyncio.wait_for(enough.wait(), 60)  # while the four that were taken wait
        assert house.bridge.open_requests == 4
        assert (await house.client.get("/health/ready")).status_code == 503
        assert (await house.client.get("/health")).status_code == 200
        gate.set()
        assert sorted(await asyncio.gather(*clients)) == [200] * 4 + [429] * 16
        await house.idle()
        assert (await house.client.get("/health/ready")).status_code == 200
        assert await client(0) == 200


class Steps:
    """A clock that stands still but for the steps of an engine, which take a second each."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, batch) -> None:
        self.gate.wait(60)
        self.clock.advance(1.0)


async def test_who_would_wait_for_too_long_is_told_so_at_once_and_when_to_come_again():
    steps = Steps()
    config = {"classes": {"urgent": {"max_wait_s": 3.0}}}
    hooks = dict.fromkeys(range(200), steps)
    async with serving(
        hooks=hooks, clock=steps.clock, rows=1, max_wait_s=600.0, config=config
    ) as house:
        body = {"prompt": "x", "max_tokens": 1, "service_tier": "urgent"}
        for _ in range(40):  # each of them takes a step: a second
            assert (await house.post(COMPLETIONS, body)).status_code == 200
        steps.gate.clear()
        waiting = []
        for number in range(2):
            waiting.append(asyncio.create_task(house.post(COMPLETIONS, body)))
            await until(lambda number=number: house.bridge.open_requests == number + 1)
        refused = await house.post(COMPLETIONS, body | {"prompt": "y" * 20})
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
        assert "may take 3 s" in refused.json()["error"]["message"]
        assert 2 <= int(refused.headers["retry-after"]) <= 20
        other = asyncio.create_task(house.post(COMPLETIONS, body | {"service_tier": "auto"}))
        await until(lambda: house.bridge.open_requests == 3)  # nobody of its class is ahead of it
        page = (await house.client.get("/metrics")).text
        assert 'octavo_requests_turned_away_total{limit="classes.max_wait_s"} 1.0' in page
        assert 'octavo_expected_wait_seconds{class="urgent"}' in page
        steps.gate.set()
        assert {(await each).status_code for each in [*waiting, other]} == {200}
        await house.idle()
