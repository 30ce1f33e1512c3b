"""Frames that take the short cut to the socket are those that would have gone the long way."""

import asyncio
import contextlib
import re
import threading
from time import monotonic

import httpx2
import pytest
from support.serving import CHAT, COMPLETIONS, HELLO, events, saying, serving, until

from app.chunks import DONE
from app.connection import ShortCut
from app.stream import news_or_silence

TEXT = "Say: 🦙 日本, <|im_end|>."

BODIES = {
    "chat": (CHAT, {"messages": HELLO}),
    "usage": (CHAT, {"messages": HELLO, "stream_options": {"include_usage": True}}),
    "running usage": (
        COMPLETIONS,
        {
            "prompt": "x",
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        },
    ),
    "two choices": (CHAT, {"messages": HELLO, "n": 2}),
    "logprobs": (COMPLETIONS, {"prompt": "x", "logprobs": 2}),
    "echo": (COMPLETIONS, {"prompt": "x", "echo": True}),
    "stop string": (COMPLETIONS, {"prompt": "x", "stop": ["🦙"]}),
    "token ids": (COMPLETIONS, {"prompt": "x", "return_token_ids": True}),
    "responses": ("/v1/responses", {"input": "x"}),
}


class Counted:
    """How often the short cut was taken."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.times = 0
        write = ShortCut.write

        def counting(short_cut: ShortCut, body: bytes) -> None:
            self.times += 1
            write(short_cut, body)

        monkeypatch.setattr(ShortCut, "write", counting)


def steps_in_turn(steps: int = 64):
    """Hooks with which the engine computes a step whenever the semaphore is released."""
    turn = threading.Semaphore(0)
    return turn, {step: lambda batch: turn.acquire(timeout=60) for step in range(1, steps)}


async def read_in_turn(reading, turn: threading.Semaphore, until: bytes = DONE) -> bytes:
    """Read on up to `until`; each step is computed once the one before it has been read."""
    raw = b""
    async for piece in reading:
        raw += piece
        turn.release()
        if until in raw:
            break
    return raw


async def said(path: str, body: dict) -> bytes:
    """A stream, read token by token."""
    turn, hooks = steps_in_turn()
    async with serving(script=saying(TEXT), hooks=hooks) as house:
        request = {"max_tokens": 14, "max_output_tokens": 14, "stream": True, **body}
        async with house.client.stream("POST", path, json=request) as reply:
            assert reply.status_code == 200
            raw = await read_in_turn(reply.aiter_bytes(), turn, b"nothing")
        await house.idle()
    return raw


def anonymous(raw: bytes) -> bytes:
    """Without what differs between two replies."""
    raw = re.sub(rb'"(id|item_id)":"[^"]*"', b'"id":""', raw)
    return re.sub(rb'"(created|created_at|completed_at)":[0-9.]+', b'"created":0', raw)


@pytest.mark.parametrize("kind", BODIES)
async def test_both_ways_say_the_same_bytes(monkeypatch, kind):
    path, body = BODIES[kind]
    short = Counted(monkeypatch)
    by_short_cut = await said(path, body)
    assert short.times > 0
    monkeypatch.setattr(ShortCut, "clear", property(lambda self: False))
    short.times = 0
    the_long_way = await said(path, body)
    assert short.times == 0
    order = sorted if kind == "two choices" else list  # which of them comes first is no matter
    assert order(events(anonymous(by_short_cut))) == order(events(anonymous(the_long_way)))


async def test_a_client_that_takes_nothing_is_no_short_cut(monkeypatch):
    """Its frames wait for it, and come in order."""
    gate = threading.Event()
    short = Counted(monkeypatch)
    async with serving(hooks={1: lambda batch: gate.wait(60)}) as house:
        body = {"prompt": "AB", "max_tokens": 9, "stream": True}
        async with house.client.stream("POST", COMPLETIONS, json=body) as reply:
            reading = reply.aiter_bytes()
            raw = await anext(reading)
            (connection,) = house.server.server_state.connections
            connection.pause_writing()
            gate.set()
            await until(lambda: house.scheduler.counters.finished == 1)
            assert short.times == 0
            connection.resume_writing()
            raw += b"".join([piece async for piece in reading])
    letters = b"".join(re.findall(rb'"text":"(\w)"', raw))
    assert letters == b"ABABABABA"
    assert raw.endswith(DONE)
    assert short.times == 0


async def test_a_client_that_leaves_while_frames_take_the_short_cut_is_noticed(monkeypatch):
    turn, hooks = steps_in_turn(900)
    short = Counted(monkeypatch)
    async with serving(hooks=hooks, model_len=1024) as house:
        body = {"prompt": "AB", "max_tokens": 900, "stream": True, "ignore_eos": True}
        async with house.client.stream("POST", COMPLETIONS, json=body) as reply:
            reading = reply.aiter_bytes()
            await read_in_turn(reading, turn, b'"text":"B"')
        await until(lambda: house.bridge.open_requests == 0)
        turn.release(1000)
        await house.idle()
        assert short.times > 0
        assert house.scheduler.counters.cancelled == 1


async def test_a_bug_while_a_frame_is_made_ends_that_stream_and_no_other(monkeypatch):
    turn, hooks = steps_in_turn()
    write = ShortCut.write

    def failing(short_cut: ShortCut, body: bytes) -> None:
        if b'"text":"B"' in body:
            raise ZeroDivisionError
        write(short_cut, body)

    monkeypatch.setattr(ShortCut, "write", failing)
    async with serving(script=lambda row: row.tokens[0], hooks=hooks) as house:

        def stream(letter: int, max_tokens: int):
            body = {"prompt": [letter], "max_tokens": max_tokens, "stream": True}
            return house.client.stream("POST", COMPLETIONS, json=body)

        async with contextlib.AsyncExitStack() as stack:
            good = await stack.enter_async_context(stream(65, 5))
            entering = asyncio.ensure_future(stack.enter_async_context(stream(66, 30)))
            await until(lambda: house.bridge.open_requests == 2)
            turn.release(2)  # for the step that waits, and for the other's first
            bad = await entering
            with pytest.raises(httpx2.RemoteProtocolError):
                await read_in_turn(bad.aiter_bytes(), turn, b"nothing")
            raw = await read_in_turn(good.aiter_bytes(), turn)
        assert len(events(raw)) == 6
        await house.idle()


# -------------------------------------------------------------------- keep-alives beside it


class Talking:
    """A reader whose news take the short cut: looked at `looks` times, it has always just spoken;
    then its last word comes the other way."""

    def __init__(self, looks: int) -> None:
        self.ended = False
        self._looks = looks
        self._last = asyncio.Event()

    @property
    def heard_at(self) -> float:
        self._looks -= 1
        if not self._looks:
            self._last.set()
        return monotonic()

    async def next(self, push=None):
        await self._last.wait()
        self.ended = True
        return {}


async def test_who_speaks_by_the_short_cut_is_not_silent():
    assert [each async for each in news_or_silence(Talking(3), 0.01)] == [{}]


class Silent:
    """A reader to whom nothing comes; it keeps what it was given to push."""

    ended = False
    heard_at = 0.0
    push = None

    async def next(self, push):
        self.push = push
        await asyncio.Event().wait()


async def test_no_token_overtakes_a_keep_alive_that_is_on_its_way_out():
    reader, pushed = Silent(), []
    news = news_or_silence(reader, 0.01, lambda outputs: pushed.append(outputs) or True)
    assert await anext(news) is None
    assert not reader.push(["early"])
    waiting = asyncio.ensure_future(anext(news))
    await asyncio.sleep(0)  # it is out, and the next one is waited for
    assert reader.push(["later"])
    assert pushed == [["later"]]
    waiting.cancel()
    await asyncio.wait({waiting})
