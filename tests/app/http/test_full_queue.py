"""A queue that is full of long prompts refuses at once, whatever is asked, and recovers."""

import asyncio
import threading

from support.serving import COMPLETIONS, serving


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
