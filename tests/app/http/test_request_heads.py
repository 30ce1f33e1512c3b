"""Heads of requests: bounded while they are read, and refused in the shape of all errors."""

from __future__ import annotations

import asyncio
import json

import pytest
from support.serving import COMPLETIONS, serving, until

from app import connection

LIMITS = {"server": {"max_header_bytes": 1024, "max_headers": 10}}
LINE = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n"


@pytest.fixture
async def house():
    async with serving(config=LIMITS) as house:
        yield house


async def answer(house, raw: bytes) -> tuple[int, bytes]:
    """Status and body of the last reply to these bytes, which ends the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", house.port)
    writer.write(raw)
    reply = await asyncio.wait_for(reader.read(), 60)
    writer.close()
    head, _, body = reply.partition(b"\r\n\r\n")
    assert reply.count(b"HTTP/1.1 ") == 1, reply
    assert b"connection: close" in head.lower()
    return int(head.split()[1]), body


def lines(count: int) -> bytes:
    return b"".join(b"x-%d: y\r\n" % number for number in range(count))


@pytest.mark.parametrize(
    "raw",
    [
        LINE + b"x: " + b"y" * 1100 + b"\r\n\r\n",
        LINE + b"x" * 1100 + b": y\r\n\r\n",
        LINE + lines(10) + b"\r\n",
        LINE + b"".join(b"x: %b\r\n" % (b"y" * 300) for _ in range(4)) + b"\r\n",
        b"GET /" + b"y" * 1100 + b" HTTP/1.1\r\nhost: x\r\n\r\n",
        LINE + b"x: " + b"y" * 3000,
        LINE + b"y" * 3000,
        LINE + b"x:" + b" " * 3000,
        LINE + b"transfer-encoding: chunked\r\n\r\n1\r\n{\r\n0\r\n" + lines(10),
    ],
    ids=[
        "value",
        "name",
        "lines",
        "all",
        "target",
        "endless value",
        "endless name",
        "endless blanks",
        "trailers",
    ],
)
async def test_a_head_that_is_too_large_is_431_before_it_has_ended(house, raw) -> None:
    status, body = await answer(house, raw)
    assert status == 431
    assert json.loads(body)["error"] == {
        "message": "The head of the request is too large.",
        "type": "invalid_request_error",
        "param": None,
        "code": "headers_too_large",
    }
    await house.probe()
    await house.idle()


@pytest.mark.parametrize("start", [b"1\r\n{\r\n0\r\nx: ", b"1;"], ids=["trailer", "extension"])
async def test_a_line_without_an_end_behind_the_head_is_431(house, start) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", house.port)
    writer.write(LINE + b"transfer-encoding: chunked\r\n\r\n" + start)
    await until(lambda: house.server.server_state.tasks)  # the head has been read
    writer.write(b"y" * 3000)
    reply = await asyncio.wait_for(reader.read(), 60)
    assert reply.startswith(b"HTTP/1.1 431 ")
    writer.close()
    await house.idle()


async def test_a_head_up_to_the_limits_is_read_and_each_request_has_its_own(house) -> None:
    for _ in range(3):
        headers = {"x-long": "y" * 600}
        reply = await house.post(COMPLETIONS, {"prompt": "x", "max_tokens": 1}, headers=headers)
        assert reply.status_code == 200
    assert (await house.post(COMPLETIONS, b"x" * 50_000)).status_code == 400
    await house.idle()


@pytest.mark.parametrize(
    "raw", [b"nonsense\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/1.1\r\n:x\r\n\r\n"]
)
async def test_what_is_no_http_is_a_400_in_the_usual_shape(house, raw) -> None:
    status, body = await answer(house, raw)
    assert (status, json.loads(body)["error"]["code"]) == (400, "invalid_http")


async def test_nonsense_behind_a_request_does_not_take_the_place_of_its_answer(house) -> None:
    body = json.dumps({"prompt": "x", "max_tokens": 3}).encode()
    head = LINE + b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
    status, reply = await answer(house, head + body + b"nonsense\r\n\r\n")
    assert status == 200
    assert json.loads(reply)["usage"]["completion_tokens"] == 3
    await house.idle()


async def test_a_trailer_is_no_header() -> None:
    """A key that comes behind the body opens nothing, nor does a gateway's word."""
    config = {"tenants": {"acme": {"keys": ["k1"]}}, "identity": {"require_key": True}}
    async with serving(config=config) as house:
        raw = LINE + b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n"
        raw += b"2\r\n{}\r\n0\r\nauthorization: Bearer k1\r\n\r\n"
        assert (await answer(house, raw))[0] == 401


async def test_what_follows_an_answer_that_did_not_wait_for_the_body_is_read_for_a_while_only(
    house, monkeypatch
) -> None:
    monkeypatch.setattr(connection, "LINGER_S", 0.05)
    reader, writer = await asyncio.open_connection("127.0.0.1", house.port)
    writer.write(LINE + b"content-type: text/csv\r\ntransfer-encoding: chunked\r\n\r\n")
    assert b" 415 " in await asyncio.wait_for(reader.readline(), 60)

    async def endless() -> None:
        while True:
            writer.write(b"4000\r\n" + b"x" * 0x4000 + b"\r\n")
            await writer.drain()

    with pytest.raises(ConnectionError):
        await asyncio.wait_for(endless(), 60)
    writer.close()
    await house.probe()
    await house.idle()


async def test_a_body_that_ends_behind_its_answer_keeps_the_connection(house) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", house.port)
    writer.write(LINE + b"content-type: text/csv\r\ncontent-length: 4\r\n\r\n")
    for _ in range(2):
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
        assert b" 415 " in head
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        await reader.readexactly(length)
        writer.write(b"1234" + LINE + b"content-type: text/csv\r\ncontent-length: 4\r\n\r\n")
    writer.close()
