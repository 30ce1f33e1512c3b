"""Streams: characters, spaces, usage, errors, the shape of chunks, keep-alives."""

from __future__ import annotations

import asyncio
import socket
import threading

import pytest
from openai import AsyncOpenAI
from support.answers import PROMPT, answer, asking, dispatched, read
from support.serving import CHAT, COMPLETIONS, HELLO, MODEL, chunks, events, serving, until

from engine.controls import SampleRow

PATHS = pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
MODES = pytest.mark.parametrize("stream", [True, False])
HALVES = [10813, 116, 243, 10813, 117, 120]
"""🦙🧪: two characters of four bytes, in six tokens none of which is text by itself."""
DEF, HELLO_WORD, EOS = 33203, 33662, 2
FORCED = {"logit_bias": {str(DEF): 100}}


pytestmark = pytest.mark.asyncio(loop_scope="module")


# ── B01 ───────────────────────────────────────────────────────────────────────────────────────


@PATHS
async def test_b01_a_character_over_several_tokens_comes_whole(
    house, speaker, smollm2, path
) -> None:
    said = [*HALVES, *smollm2.encode(" 日本")]
    assert smollm2.decode(said) == "🦙🧪 日本"
    speaker.ids = [*said, EOS]
    whole = await answer(house, path)
    streamed = await answer(house, path, stream=True, stream_options={"include_usage": True})
    raw = await house.post(path, asking(path, stream=True))
    assert streamed.text == whole.text == "🦙🧪 日本"
    for delta in streamed.deltas:
        assert "\ufffd" not in delta
    for event in events(raw.content):
        event.decode("utf-8", "strict")
    assert streamed.usage["completion_tokens"] == whole.usage["completion_tokens"] == len(said) + 1


@PATHS
@MODES
async def test_b01_what_never_becomes_a_character_is_replaced_once_at_its_place(
    house, speaker, smollm2, path, stream
) -> None:
    """Tokens with broken UTF-8 that begin with a space, and a character cut off by the limit."""
    said = [459, HELLO_WORD, 17097, DEF, *HALVES[:2]]
    speaker.ids = said
    got = await answer(house, path, stream=stream, max_tokens=len(said))
    assert got.text == smollm2.decode(said) == " \ufffd hello \ufffdDEF\ufffd"
    assert got.finish_reason == "length"


# ── B04 ───────────────────────────────────────────────────────────────────────────────────────


@PATHS
@MODES
async def test_b04_no_space_is_lost_or_doubled(house, path, stream) -> None:
    fields = {"logit_bias": {str(HELLO_WORD): 100}, "max_tokens": 3, "stream": stream}
    assert (await answer(house, path, **fields)).text == " hello hello hello"


@MODES
async def test_b04_prompt_and_text_are_the_raw_continuation(
    house, speaker, smollm2, stream
) -> None:
    prompt, rest = "The capital of France is", " Paris,  two spaces\n and \ta tab "
    speaker.ids = [*smollm2.encode(rest), EOS]
    got = await answer(house, COMPLETIONS, prompt=prompt, stream=stream)
    assert got.text == rest
    echoed = await answer(house, COMPLETIONS, prompt=prompt, stream=stream, echo=True)
    assert echoed.text == prompt + rest


# ── B07 ───────────────────────────────────────────────────────────────────────────────────────


@PATHS
@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}])
async def test_b07_without_being_asked_nobody_is_told_the_usage(house, path, options) -> None:
    fields = {} if options is None else {"stream_options": options}
    raw = (await house.post(path, asking(path, stream=True, max_tokens=3, **fields))).content
    for chunk in chunks(raw):
        assert len(chunk["choices"]) == 1
        assert chunk.get("usage") is None


@PATHS
@pytest.mark.parametrize("n", [1, 2])
async def test_b07_usage_is_one_chunk_between_the_last_choice_and_done(house, path, n) -> None:
    fields = {"n": n, "max_tokens": 5, **FORCED}
    whole = await house.post(path, asking(path, **fields))
    body = asking(path, stream=True, stream_options={"include_usage": True}, **fields)
    raw = (await house.post(path, body)).content
    *before, last = chunks(raw)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 5 * n
    for key in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert last["usage"][key] == whole.json()["usage"][key]
    assert all(chunk["choices"] and chunk["usage"] is None for chunk in before)
    assert before[-1]["choices"][0]["finish_reason"] == "length"


@PATHS
@pytest.mark.parametrize("stream", [{}, {"stream": False}, {"stream": None}])
async def test_b07_stream_options_without_a_stream_are_refused(house, path, stream) -> None:
    body = asking(path, stream_options={"include_usage": True}, **stream)
    reply = await house.post(path, body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "stream_options")


# ── B08 ───────────────────────────────────────────────────────────────────────────────────────


@PATHS
@pytest.mark.parametrize(
    "bad",
    [
        {"n": 0},
        {"temperature": 3},
        {"max_tokens": 0},
        {"max_tokens": 10_000},
        {"stop": ""},
        {"logit_bias": {"999999": 1}},
        {"model": "nope"},
    ],
    ids=str,
)
async def test_b08_a_bad_request_for_a_stream_is_an_error_before_the_stream(
    house, path, bad
) -> None:
    arrived = house.scheduler.counters.arrived
    reply = await house.post(path, asking(path, **{"stream": True, **bad}))
    assert reply.status_code == (404 if "model" in bad else 400)
    assert reply.headers["content-type"] == "application/json"
    assert reply.json()["error"].keys() == {"message", "type", "param", "code"}
    assert house.scheduler.counters.arrived == arrived


@PATHS
async def test_b08_an_error_in_a_stream_is_told_ends_it_and_hurts_no_neighbour(path) -> None:
    """The engine fails a row at step 4 of two streams that run side by side."""
    together = threading.Event()
    hooks = {0: lambda batch: together.wait(60)}
    async with serving(hooks=hooks, nan_rows={5: [0]}, script=lambda row: 65) as house:
        before = asyncio.ensure_future(house.post(path, asking(path, max_tokens=1)))
        await until(lambda: house.backend.batches)
        body = asking(path, max_tokens=12, stream=True)
        both = [asyncio.ensure_future(house.post(path, body)) for _ in range(2)]
        await until(lambda: house.bridge.open_requests == 3)
        together.set()
        await before
        # The bodies come to their end (httpx reads chunked coding to its last, empty chunk).
        replies = sorted(
            [await reply for reply in both], key=lambda r: b"event: error" in r.content
        )
        well, failed = replies
        assert read(path, well).text == "A" * 12
        *deltas, error, done = dispatched(failed.content)
        assert 0 < len(deltas) < 12
        assert all(event.json["choices"][0]["finish_reason"] is None for event in deltas)
        assert error.kind == "error"
        assert error.json["error"].keys() == {"message", "type", "param", "code"}
        assert error.json["error"]["type"] == "server_error"
        assert done.data == "[DONE]"
        await house.idle()


@PATHS
async def test_b08_fifty_streams_end_once_each_however_they_end(path) -> None:
    ends = {"stop": "stop", "eos": "stop", "length": "length"}

    def script(row: SampleRow) -> int:
        return b"abcdefgh"[row.position - row.prompt_length] if not row.controls.seed else 257

    async with serving(script=script, rows=16) as house:

        async def one(number: int) -> None:
            kind = list(ends)[number % 3]
            fields = {"stop": {"stop": "de"}, "eos": {"seed": 1}, "length": {"max_tokens": 5}}
            body = asking(path, stream=True, **{"seed": 0, "max_tokens": 8, **fields[kind]})
            raw = (await house.post(path, body)).content
            assert raw.count(b"[DONE]") == 1
            assert dispatched(raw)[-1].data == "[DONE]"
            reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks(raw)]
            assert reasons == [None] * (len(reasons) - 1) + [ends[kind]]

        await asyncio.gather(*(one(number) for number in range(50)))
        await house.idle()


# ── B09 ───────────────────────────────────────────────────────────────────────────────────────


@PATHS
@pytest.mark.parametrize("max_tokens", [1, 2, 3])
async def test_b09_role_first_reason_last_and_no_token_lost(house, path, max_tokens) -> None:
    body = asking(path, stream=True, max_tokens=max_tokens, **FORCED)
    got = chunks((await house.post(path, body)).content)
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in got}) == 1
    kind = "chat.completion.chunk" if path == CHAT else "text_completion"
    assert {chunk["object"] for chunk in got} == {kind}
    choices = [chunk["choices"][0] for chunk in got]
    assert [choice["finish_reason"] for choice in choices[:-1]] == [None] * (len(choices) - 1)
    assert choices[-1]["finish_reason"] == "length"
    if path == CHAT:
        assert choices[0]["delta"]["role"] == "assistant"
        assert all("role" not in choice["delta"] for choice in choices[1:])
        text = "".join(choice["delta"].get("content") or "" for choice in choices)
    else:
        text = "".join(choice["text"] for choice in choices)
    assert text == "DEF" * max_tokens


# ── B10 ───────────────────────────────────────────────────────────────────────────────────────


async def test_b10_keep_alives_are_comments_between_events_until_the_first_token() -> None:
    gate = threading.Event()
    hooks = {3: lambda batch: gate.wait(60)}
    async with (
        serving(
            rows=1, hooks=hooks, sse={"keepalive_interval_s": 0.01}, script=lambda row: 65
        ) as house,
        AsyncOpenAI(base_url=f"{house.url}/v1", api_key="x", max_retries=0) as client,
    ):
        first = asyncio.ensure_future(house.post(COMPLETIONS, asking(COMPLETIONS, max_tokens=20)))
        await until(lambda: len(house.backend.batches) == 4)
        body = asking(CHAT, max_tokens=20, stream=True)
        # A strict reader and the official client wait behind it.
        official = await client.chat.completions.create(
            model=MODEL, messages=HELLO, max_tokens=20, stream=True, temperature=0
        )
        raw = b""
        async with house.client.stream("POST", CHAT, json=body) as reply:
            async for piece in reply.aiter_bytes():
                raw += piece
                if raw.count(b": keepalive") >= 3:
                    gate.set()
        assert (await first).status_code == 200
        texts = [chunk.choices[0].delta.content or "" async for chunk in official]
        await house.idle()
    for block in events(raw):
        lines = block.split(b"\n")
        assert lines == [b": keepalive"] or (len(lines) == 1 and lines[0].startswith(b"data: "))
    assert raw.endswith(b"data: [DONE]\n\n")
    *data, done = dispatched(raw)
    assert done.data == "[DONE]"
    assert "".join(event.json["choices"][0]["delta"]["content"] for event in data) == "A" * 20
    assert "".join(texts) == "A" * 20
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert reply.headers["cache-control"] in ("no-store", "no-cache")
    assert reply.headers["x-accel-buffering"] == "no"
    assert not {"content-length", "content-encoding"} & reply.headers.keys()


async def test_b10_the_first_delta_of_a_long_answer_is_there_before_the_last_is_computed() -> None:
    gate = threading.Event()
    async with serving(hooks={50: lambda batch: gate.wait(60)}) as house:
        body = asking(COMPLETIONS, stream=True, prompt=PROMPT, max_tokens=100)
        headers = {"accept-encoding": "gzip, br"}
        async with house.client.stream("POST", COMPLETIONS, json=body, headers=headers) as reply:
            reading = reply.aiter_bytes()
            raw = await anext(reading)
            assert b'"text"' in raw
            assert not gate.is_set()
            gate.set()
            async for piece in reading:
                raw += piece
        assert len(chunks(raw)) >= 2


async def test_b10_nothing_small_waits_for_the_network_to_acknowledge_what_went_before(
    house,
) -> None:
    await answer(house, CHAT, max_tokens=1)
    held = house.server.server_state.connections
    sockets = [connection.transport.get_extra_info("socket") for connection in held]
    assert sockets
    assert all(each.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for each in sockets)
