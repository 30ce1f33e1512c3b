"""Requests sent behind one in progress: not answered, and never in the way of noticing a leaver."""

import asyncio
import json
import threading

from support.serving import COMPLETIONS, House, serving, until


def raw(max_tokens: int) -> bytes:
    body = json.dumps({"prompt": "x", "max_tokens": max_tokens}).encode()
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n"
    return head.encode() + b"content-type: application/json\r\n\r\n" + body


async def connect(house: House) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", house.port)


async def test_the_request_in_progress_is_answered_and_the_connection_ends_with_it() -> None:
    async with serving() as house:
        reader, writer = await connect(house)
        writer.write(raw(3) + raw(5) + raw(7))
        reply = await asyncio.wait_for(reader.read(), 60)
        assert reply.count(b"HTTP/1.1 200") == 1
        assert b'"completion_tokens":3' in reply
        writer.close()
        await house.idle()
        assert house.scheduler.counters.arrived == 1


async def test_requests_one_after_the_other_share_a_connection() -> None:
    async with serving() as house:
        reader, writer = await connect(house)
        for tokens in (2, 3):
            writer.write(raw(tokens))
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            assert b'"completion_tokens":%d' % tokens in await reader.readexactly(length)
        writer.close()
        await house.idle()


async def test_a_client_that_pipelines_and_leaves_is_noticed_at_once() -> None:
    gate = threading.Event()
    hooks = {2: lambda batch: gate.wait(60)}
    async with serving(hooks=hooks, model_len=1024, blocks=256, max_open=1) as house:
        _, writer = await connect(house)
        writer.write(raw(900) + raw(900))
        await until(lambda: house.bridge.open_requests == 1)
        writer.transport.abort()
        await until(lambda: house.bridge.open_requests == 0)
        gate.set()
        await house.idle()
        assert house.scheduler.counters.cancelled == 1
        await house.probe()
