"""An engine whose loop breaks: nobody who waits for it is left waiting, and newcomers are told."""

import asyncio
import threading

from support.serving import COMPLETIONS, serving, until

PROBES = ["/health", "/health/live", "/health/ready"]


async def test_streams_answers_and_who_is_queued_all_end_in_an_error_when_the_loop_breaks():
    gate = threading.Event()

    def broken(now):
        raise RuntimeError("planted")

    async with serving(rows=5, hooks={3: lambda batch: gate.wait(60)}) as house:
        body = {"prompt": "x", "max_tokens": 200, "ignore_eos": True}
        clients = [
            asyncio.create_task(house.post(COMPLETIONS, {**body, "stream": number < 4}))
            for number in range(7)
        ]
        await until(lambda: house.bridge.open_requests == 7)
        house.scheduler.schedule = broken
        gate.set()
        for number, reply in enumerate(await asyncio.gather(*clients)):
            begun = reply.status_code == 200
            assert begun or (reply.status_code, reply.json()["error"]["code"]) == (
                500,
                "internal_error",
            )
            if begun:
                assert number < 4, "only a stream can have begun"
                assert b"event: error" in reply.content
                assert b"internal_error" in reply.content
        assert [(await house.client.get(path)).status_code for path in PROBES] == [503] * 3
        refused = await house.post(COMPLETIONS, body)
        assert refused.status_code == 503
        assert house.bridge.open_requests == 0
