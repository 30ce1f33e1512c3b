"""What the load generator makes of streams, however they are cut and however they end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest

from loadtest.live.connections import Client, Lost
from loadtest.live.stream import Stream

CHUNK = b'data: {"choices":[{"index":0,"text":"a"}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"completion_tokens":3},"metrics":{"queue_time_ms":7.0}}\n\n'
WHOLE = CHUNK * 3 + USAGE + b"data: [DONE]\n\n"
FAILED = b'event: error\ndata: {"error":{"message":"m","code":"internal_error"}}\n\n'
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], object]


def read(*pieces: bytes) -> Stream:
    """A stream of which one piece came at each second."""
    stream = Stream()
    for at, piece in enumerate(pieces):
        stream.take(piece, float(at))
    return stream


def test_chunks_have_the_times_at_which_they_came_and_usage_is_none():
    stream = read(CHUNK, CHUNK + CHUNK, USAGE, b"data: [DONE]\n\n")
    assert list(stream.chunk_times) == [0.0, 1.0, 1.0]
    assert stream.usage == {"completion_tokens": 3}
    assert stream.metrics == {"queue_time_ms": 7.0}
    assert stream.done
    assert stream.error is None


@pytest.mark.parametrize("cut", range(1, len(WHOLE)))
def test_it_does_not_matter_where_a_stream_is_cut(cut):
    stream = read(WHOLE[:cut], WHOLE[cut:])
    assert len(stream.chunk_times) == 3
    assert stream.done


def test_comments_and_other_line_ends_change_nothing():
    stream = read(b": keepalive\n\n", WHOLE.replace(b"\n", b"\r\n"))
    assert len(stream.chunk_times) == 3
    assert stream.done


def test_an_error_in_a_stream_is_told_by_its_code():
    assert read(CHUNK, FAILED).error == "internal_error"
    assert read(b'data: {"error":"overloaded"}\n\n').error == "error"
    assert read(b"data: {half\n\n").error == "invalid_event"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b'{"error":{"code":"queue_full"}}', "queue_full"),
        (b'{"error":{"code":null}}', "http_429"),
        (b'{"error":"no"}', "http_429"),
        (b"<html>", "http_429"),
        (b"", "http_429"),
    ],
)
def test_a_reply_that_is_no_stream_is_told_by_its_code_or_status(body, code):
    stream = read(body)
    stream.fail(429)
    assert stream.error == code


@contextlib.asynccontextmanager
async def answering(serve: Serve) -> AsyncIterator[str]:
    writers = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                if serve(reader, writer) is False:
                    break
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        for writer in writers:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


def chunked(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


async def test_a_connection_is_used_again_unless_the_server_has_closed_it():
    connections = []

    def serve(reader, writer):
        connections.append(id(writer))
        writer.write(HEAD + chunked(b"one") + chunked(b"two") + b"0\r\n\r\n")
        return len(connections) != 2

    async with answering(serve) as url:
        client = Client(url)
        for _ in range(3):
            head, body = await client.fetch("GET", "/")
            assert (head.status, body) == (200, b"onetwo")
        client.close()
    assert connections[0] == connections[1]
    assert len(connections) == 3


async def test_a_reply_that_ends_too_early_is_lost():
    def serve(reader, writer):
        writer.write(HEAD + chunked(CHUNK))
        return False

    async with answering(serve) as url:
        stream = Stream()
        with pytest.raises(Lost):
            await Client(url).exchange("GET", "/", b"", {}, stream.take)
        assert len(stream.chunk_times) == 1


async def test_what_is_no_http_is_lost():
    async with answering(lambda reader, writer: writer.write(b"SSH-2.0-x\r\n")) as url:
        with pytest.raises(Lost):
            await Client(url).fetch("GET", "/")


async def test_who_gives_up_leaves_no_connection_behind():
    gone = asyncio.Event()

    async def handle(reader, writer):
        while await reader.read(1000):
            pass
        gone.set()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await Client(f"http://127.0.0.1:{port}").fetch("GET", "/")
        await asyncio.wait_for(gone.wait(), 60)


def test_a_base_url_may_end_with_v1():
    client = Client("http://host:81/base/v1/")
    request = client._request("GET", "/v1/models", b"", {"a": "b"})
    assert request == b"GET /base/v1/models HTTP/1.1\r\nHost: host:81\r\na: b\r\n\r\n"
