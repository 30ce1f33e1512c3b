"""Clients that leave, and what they call their requests."""

from __future__ import annotations

import asyncio
import logging

import pytest
from support.answers import gauge
from support.serving import COMPLETIONS, chunks, serving, until
from support.sockets import Socket, held_at

STREAM = pytest.mark.parametrize("stream", [True, False])


# ── B12 ───────────────────────────────────────────────────────────────────────────────────────


async def test_b12_three_hundred_who_leave_leave_nothing_behind(caplog) -> None:
    """Eight at a time; half of them read two events of a stream, half wait for a whole answer."""
    caplog.set_level(logging.INFO)
    async with serving(model_len=32_768, blocks=20_000, rows=8, max_lag=1 << 20) as house:

        async def visit(number: int) -> Socket:
            stream = number % 2 == 1
            client = await Socket.post(
                house,
                request_id=f"r-{number}",
                prompt=[number % 250 + 1] * 20,
                max_tokens=20_000,  # more than can be said before it has left
                ignore_eos=True,
                stream=stream,
            )
            if stream:
                for _ in range(2):
                    await client.reader.readuntil(b"\n\n")
            return client

        for start in range(0, 304, 8):
            visitors = await asyncio.gather(*(visit(start + number) for number in range(8)))
            await until(lambda come=start + 8: house.scheduler.counters.arrived == come)
            await asyncio.gather(*(visitor.leave() for visitor in visitors))
            await until(lambda: house.bridge.open_requests == 0)
        await house.idle()
        generated = house.scheduler.counters.generated_tokens
        page = (await house.client.get("/metrics")).text
        assert gauge(page, "octavo_requests_running") == 0
        assert gauge(page, "octavo_requests_waiting") == 0
        assert gauge(page, "octavo_kv_usage_ratio") == 0
        assert gauge(page, 'octavo_requests_ended_total{outcome="cancelled"}') == 304
        assert gauge(page, "octavo_client_disconnects_total") == 304
        await house.probe()
        assert house.scheduler.counters.generated_tokens == generated + 4
        assert len(house.service.directory) == 0
    assert not [each for each in caplog.records if each.exc_info or each.levelno >= logging.ERROR]


# ── B13 ───────────────────────────────────────────────────────────────────────────────────────


@STREAM
async def test_b13_leaving_the_queue_means_never_being_computed(stream) -> None:
    gate, hooks = held_at(1)
    async with serving(rows=1, hooks=hooks, model_len=1024, script=lambda row: 65) as house:
        running = await Socket.post(house, prompt=[1, 2], max_tokens=200)
        await until(lambda: len(house.backend.batches) == 2)
        queued = await Socket.post(house, prompt=[3] * 500, max_tokens=5, stream=stream)
        await until(lambda: house.bridge.open_requests == 2)
        await queued.leave()
        await until(lambda: house.bridge.open_requests == 1)
        gate.set()
        assert b"200 OK" in await running.reader.readline()
        await house.idle()
        page = (await house.client.get("/metrics")).text
        assert gauge(page, "octavo_prompt_tokens_total") == 2
        await running.leave()


@STREAM
async def test_b13_leaving_in_prefill_stops_it_within_a_chunk(stream) -> None:
    gate, hooks = held_at(1)
    async with serving(model_len=4096, blocks=300, step_tokens=64, hooks=hooks) as house:
        client = await Socket.post(house, prompt=[1] * 3000, max_tokens=5, stream=stream)
        await until(lambda: len(house.backend.batches) == 2)  # the first chunk is computed
        await client.leave()
        await until(lambda: house.bridge.open_requests == 0)
        gate.set()
        await house.idle()
        page = (await house.client.get("/metrics")).text
        assert gauge(page, "octavo_prompt_tokens_total") <= 3 * 64
        assert gauge(page, "octavo_kv_usage_ratio") == 0
        assert house.scheduler.counters.cancelled == 1


# ── B16 ───────────────────────────────────────────────────────────────────────────────────────


async def test_b16_two_live_requests_with_one_id_do_not_meet() -> None:
    gate, hooks = held_at(3)
    async with serving(hooks=hooks) as house:

        def stream(letter: int):
            body = {"prompt": "x", "max_tokens": 20, "logit_bias": {str(letter): 100}}
            headers = {"x-request-id": "dup-1"}
            body |= {"stream": True, "request_id": "dup-1"}
            return asyncio.ensure_future(house.post(COMPLETIONS, body, headers=headers))

        replies = [stream(letter) for letter in b"AB"]
        await until(lambda: house.bridge.open_requests == 2)
        replies.append(stream(ord("C")))
        await until(lambda: house.bridge.open_requests == 3)
        gate.set()
        ids = set()
        for letter, coming in zip("ABC", replies, strict=True):
            reply = await coming
            said = chunks(reply.content)
            assert "".join(chunk["choices"][0]["text"] for chunk in said) == letter * 20
            assert reply.headers["x-request-id"] == "dup-1"
            ids |= {chunk["id"] for chunk in said}
        assert len(ids) == 3
        await house.idle()


async def test_b16_an_id_of_100_kB_is_refused_or_replaced_and_never_repeated() -> None:
    async with serving() as house:
        long = {"x-request-id": "r" * 100_000}
        body = {"prompt": "x", "max_tokens": 2, "stream": True}
        assert (await house.post(COMPLETIONS, body, headers=long)).status_code == 431
        for odd in ("r" * 129, "a b", 'a"b', "é"):
            headers = {"x-request-id": odd.encode("latin-1")}
            reply = await house.post(COMPLETIONS, body, headers=headers)
            assert reply.status_code == 200
            assert reply.headers["x-request-id"].startswith("req-")
            assert b"rrrr" not in reply.content
        reply = await house.post(COMPLETIONS, body | {"request_id": "r" * 100_000})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "request_id")
        assert len(reply.content) < 1000
        await house.idle()


# ── B17 ───────────────────────────────────────────────────────────────────────────────────────


async def test_b17_an_id_can_be_used_again_at_once_after_leaving_the_queue() -> None:
    gate, hooks = held_at(1)
    async with serving(rows=1, hooks=hooks) as house:
        running = await Socket.post(house, prompt=[1, 2], max_tokens=3, request_id="r-1")
        await until(lambda: len(house.backend.batches) == 2)
        for _ in range(100):
            queued = await Socket.post(house, prompt=[3], max_tokens=2, request_id="r-7")
            await until(lambda: house.bridge.open_requests == 2)
            await queued.leave()
            await until(lambda: house.bridge.open_requests == 1)
        last = await Socket.post(house, prompt=[3], max_tokens=2, request_id="r-7")
        gate.set()
        assert b"200 OK" in await last.reader.readline()
        await house.idle()
        assert len(house.service.directory) == 0
        assert house.metrics.followed == 0
        assert house.scheduler.roster.requests == {}
        assert house.scheduler.counters.cancelled == 100
        await last.leave()
        await running.leave()
