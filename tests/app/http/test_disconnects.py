"""A client that leaves, in whatever phase, leaves nothing behind."""

import asyncio
import contextlib
import json
import socket

import pytest
import structlog
from support.serving import COMPLETIONS, House, serving, until
from support.sockets import Socket, held_at

from app import connection

STREAM = pytest.mark.parametrize("stream", [True, False])


@STREAM
async def test_leaving_in_decode_stops_it(stream):
    gate, hooks = held_at(5)
    async with serving(model_len=1024, hooks=hooks) as house:
        client = await Socket.post(house, prompt=[1], max_tokens=900, stream=stream)
        await until(lambda: len(house.backend.batches) == 6)
        await client.leave()
        await until(lambda: house.bridge.open_requests == 0)
        gate.set()
        await house.idle()
        assert house.scheduler.counters.generated_tokens < 20
        assert house.metrics.followed == 0


async def test_a_client_that_stops_sending_its_body_is_forgotten():
    async with serving() as house:
        _, writer = await asyncio.open_connection("127.0.0.1", house.port)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
        await writer.drain()
        writer.transport.abort()
        await house.probe()
        await until(lambda: b'status="499"' in house.metrics.render())


# -------------------------------------------------------------------- clients that do not read


@contextlib.contextmanager
def who_never_reads(house: House, **fields):
    """A client with the smallest buffers there are, which sends a request and reads nothing."""
    body = json.dumps({"prompt": "x", "ignore_eos": True, "logprobs": 5, **fields}).encode()
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        client.connect(("127.0.0.1", house.port))
        client.sendall(head.encode() + body)
        yield client


async def test_a_stream_that_is_cut_for_lag_ends_its_connection(monkeypatch):
    monkeypatch.setattr(connection, "LAST_WORDS_S", 0.05)
    gate, hooks = held_at(3000)  # with the buffers full, and many more than `max_lag` behind them
    options = {"model_len": 4096, "blocks": 300, "max_lag": 50, "send_buffer": 1}
    async with serving(**options, hooks=hooks) as house:
        with (
            structlog.testing.capture_logs() as lines,
            who_never_reads(house, max_tokens=4000, stream=True),
        ):
            await until(lambda: house.scheduler.counters.arrived == 1)
            await until(lambda: house.bridge.open_requests == 0)
            gate.set()
            await until(lambda: len(lines) == 1)
        await house.idle()
        assert lines[0]["error"] == "client_lagged"
        assert house.scheduler.counters.cancelled == 1


async def test_a_client_that_reads_why_it_was_cut_keeps_its_connection():
    gate, hooks = held_at(1)
    async with serving(model_len=1024, max_lag=50, hooks=hooks) as house:
        client = await Socket.post(house, prompt="x", max_tokens=900, stream=True, ignore_eos=True)
        await client.reader.readuntil(b"\r\n\r\n")
        gate.set()
        while house.scheduler.counters.generated_tokens < 500:
            pass  # as other clients would, keep the event loop busy until the reader lags
        said = await client.reader.readuntil(b"data: [DONE]\n\n")
        assert b"event: error" in said
        assert b'"client_lagged"' in said
        await house.idle()
        client.writer.write(b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n")
        assert b"200 OK" in await client.reader.readuntil(b"200 OK")
        await client.leave()


async def test_who_takes_nothing_for_long_is_hung_up_on_however_little_it_lags():
    options = {"model_len": 2048, "blocks": 200, "send_buffer": 1, "send_timeout_s": 0.1}
    async with serving(**options) as house:
        with who_never_reads(house, max_tokens=2000, stream=True):
            await until(lambda: house.scheduler.counters.arrived == 1)
            await until(lambda: house.bridge.open_requests == 0)
        await house.idle()
        counters = house.scheduler.counters
        assert counters.finished + counters.cancelled == counters.arrived == 1
