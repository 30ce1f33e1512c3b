"""Clients whose requests come to no end: told 408 in time, counted, and in nobody's way."""

from __future__ import annotations

import asyncio
import json
import time

import pytest
from support.serving import COMPLETIONS, serving, until

HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
BEGUN = HEAD + b"content-length: 1000\r\n\r\n{"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n1\r\n{\r\n"
WHOLE = b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n"
SHORT, LONG = 0.05, 3600.0


def hurried(head: float = LONG, body: float = LONG, **options):
    server = {"head_timeout_s": head, "body_timeout_s": body}
    return serving(config={"server": server}, **options)


async def connect(house):
    return await asyncio.open_connection("127.0.0.1", house.port)


async def dripped(reader, writer, first: bytes, drop: bytes) -> bytes:
    """All that is answered to a client who sends a beginning, and then drop after drop for ever."""
    writer.write(first)

    async def drip() -> None:
        while not writer.transport.is_closing():
            writer.write(drop)
            await asyncio.sleep(0.01)

    dripping = asyncio.ensure_future(drip())
    try:
        return await asyncio.wait_for(reader.read(), 60)
    except ConnectionResetError:  # a drop came behind the answer
        return b""
    finally:
        dripping.cancel()
        writer.close()


def late(reply: bytes) -> bool:
    """Whether a connection ended with a whole 408."""
    *_, last = reply.split(b"HTTP/1.1 ")
    head, _, body = last.partition(b"\r\n\r\n")
    assert head.startswith(b"408 Request Timeout\r\n"), reply
    assert b"connection: close" in head
    return json.loads(body)["error"]["code"] == "request_timeout"


async def counted(house) -> dict[str, str]:
    """Samples of the page that are not zero, by name and labels."""
    await until(lambda: not house.server.server_state.tasks)
    page = (await house.client.get("/metrics")).text
    lines = [line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#")]
    return {name: value for name, value in lines if value != "0.0"}


@pytest.mark.parametrize("begin", [b"G", HEAD, HEAD + b"x: y"])
async def test_a_head_without_an_end_is_408(begin) -> None:
    async with hurried(head=SHORT) as house:
        reader, writer = await connect(house)
        writer.write(begin)
        assert late(await asyncio.wait_for(reader.read(), 60))
        writer.close()
        key = 'octavo_http_requests_total{method="other",route="unmatched",status="408"}'
        assert (await counted(house))[key] == "1.0"
        await house.idle()


async def test_so_is_one_behind_another_request() -> None:
    async with hurried(head=SHORT) as house:
        reader, writer = await connect(house)
        writer.write(WHOLE)
        await asyncio.wait_for(reader.readuntil(b"}"), 60)
        await until(lambda: not house.server.server_state.tasks)
        writer.write(HEAD)
        assert late(await asyncio.wait_for(reader.read(), 60))
        writer.close()


@pytest.mark.parametrize("begin", [BEGUN, CHUNKED])
async def test_a_body_without_an_end_is_408_and_counted_under_its_route(begin) -> None:
    async with hurried(body=SHORT) as house:
        reader, writer = await connect(house)
        writer.write(begin)
        assert late(await asyncio.wait_for(reader.read(), 60))
        writer.close()
        samples = await counted(house)
        key = f'octavo_http_requests_total{{method="POST",route="{COMPLETIONS}",status="408"}}'
        assert samples[key] == "1.0"
        assert samples['octavo_requests_rejected_total{reason="invalid_request"}'] == "1.0"
        await house.idle()


@pytest.mark.parametrize(
    ("first", "drop"), [(HEAD, b"x: y\r\n"), (BEGUN, b" "), (CHUNKED, b"1\r\n \r\n")]
)
async def test_it_is_the_whole_that_has_to_come_in_time_not_each_byte(first, drop) -> None:
    async with hurried(head=SHORT, body=SHORT) as house:
        reply = await dripped(*await connect(house), first, drop)
        assert not reply or late(reply)


def whole(body: bytes = b'{"prompt": "x", "max_tokens": 2}') -> tuple[bytes, bytes]:
    """Head and body of a request."""
    return HEAD + b"content-length: %d\r\n\r\n" % len(body), body


async def test_a_body_has_its_own_time_after_the_head() -> None:
    async with hurried(head=SHORT) as house:
        reader, writer = await connect(house)
        head, body = whole()
        writer.write(head)
        await until(lambda: house.server.server_state.tasks)
        await asyncio.sleep(4 * SHORT)  # timers fire in their order: the head's would have
        writer.write(body)
        assert b" 200 " in await asyncio.wait_for(reader.readline(), 60)
        writer.close()


async def test_answers_may_take_longer_than_requests() -> None:
    slow = {0: lambda batch: time.sleep(4 * SHORT)}
    async with hurried(head=SHORT, body=SHORT, hooks=slow) as house:
        reader, writer = await connect(house)
        writer.write(b"".join(whole()))
        assert b" 200 " in await asyncio.wait_for(reader.readline(), 60)
        writer.close()


async def test_a_connection_on_which_nothing_is_asked_ends_like_an_idle_one() -> None:
    async with hurried(keep_alive_s=1) as house:
        silent, blank = await connect(house), await connect(house)
        blank[1].write(WHOLE + b"\r\n")
        assert await asyncio.wait_for(silent[0].read(), 60) == b""
        assert (await asyncio.wait_for(blank[0].read(), 60)).count(b"HTTP/1.1") == 1
        for _, writer in (silent, blank):
            writer.close()


async def test_what_is_no_http_is_counted() -> None:
    async with serving(config={"server": {"max_header_bytes": 1024}}) as house:
        for raw in (b"\x16\x03\x01hello\r\n\r\n", HEAD + b"x: " + b"y" * 2000):
            reader, writer = await connect(house)
            writer.write(raw)
            await asyncio.wait_for(reader.read(), 60)
            writer.close()
        samples = await counted(house)
        for status in ("400", "431"):
            labels = f'method="other",route="unmatched",status="{status}"'
            assert samples[f"octavo_http_requests_total{{{labels}}}"] == "1.0"
