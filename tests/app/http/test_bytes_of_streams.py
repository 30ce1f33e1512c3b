"""Streams on the wire: bytes, chunks, usage, and equality with the unstreamed reply."""

import asyncio
import json
import re
import threading

import pytest
import pytest_asyncio
from support.serving import CHAT, COMPLETIONS, HELLO, chunks, events, saying, serving, until

from engine.backends.scripted import raising

TEXT = "Say: 🦙🧪 crème 日本, <|im_end|> and that is that."


def request(path: str, **fields):
    source = {"messages": HELLO} if path == CHAT else {"prompt": "Say"}
    return {**source, "max_tokens": 100, **fields}


def said(reply, path: str, *, streamed: bool) -> str:
    """The text of a reply, whichever way it came."""
    if not streamed:
        choice = reply.json()["choices"][0]
        return choice["message"]["content"] if path == CHAT else choice["text"]
    choices = [c for chunk in chunks(reply.content) for c in chunk["choices"]]
    return "".join(c["delta"]["content"] if path == CHAT else c["text"] for c in choices)


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house():
    async with serving(script=saying(TEXT)) as house:
        yield house
        await house.idle()


PATHS = pytest.mark.parametrize("path", [CHAT, COMPLETIONS])


@PATHS
async def test_a_stream_is_data_lines_that_end_with_lf_and_one_done(house, path):
    reply = await house.post(path, request(path, stream=True))
    raw = reply.content
    assert b"\r" not in raw
    assert raw.count(b"data: [DONE]\n\n") == 1
    assert raw.endswith(b"data: [DONE]\n\n")
    for event in events(raw):
        assert re.fullmatch(rb"data: [^\n]+", event)
    assert raw.decode("utf-8", "strict")


async def test_headers_keep_proxies_from_holding_the_stream_back(house):
    reply = await house.post(CHAT, request(CHAT, stream=True))
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert reply.headers["cache-control"] in ("no-store", "no-cache")
    assert reply.headers["x-accel-buffering"] == "no"
    assert "content-length" not in reply.headers
    assert "content-encoding" not in reply.headers


@PATHS
async def test_both_modes_say_the_same_and_never_half_a_character(house, path):
    streamed = await house.post(path, request(path, stream=True))
    whole = await house.post(path, request(path))
    assert said(streamed, path, streamed=True) == said(whole, path, streamed=False) == TEXT
    assert "\ufffd" not in streamed.text


@PATHS
async def test_the_first_space_is_kept_in_both_modes(path):
    async with serving(script=saying(" hello hello hello")) as house:
        for streamed in (True, False):
            reply = await house.post(path, request(path, stream=streamed))
            assert said(reply, path, streamed=streamed) == " hello hello hello"


@pytest.mark.parametrize("max_tokens", [1, 2, 3])
@PATHS
async def test_every_chunk_has_the_shape_that_clients_expect(house, path, max_tokens):
    body = request(path, stream=True, max_tokens=max_tokens, logit_bias={"68": 100})
    got = chunks((await house.post(path, body)).content)
    assert len(got) == max_tokens
    assert len({(c["id"], c["created"], c["model"]) for c in got}) == 1
    kind = "chat.completion.chunk" if path == CHAT else "text_completion"
    assert {c["object"] for c in got} == {kind}
    choices = [c["choices"][0] for c in got]
    assert [c["finish_reason"] for c in choices] == [None] * (max_tokens - 1) + ["length"]
    if path == CHAT:
        roles = [c["delta"].get("role") for c in choices]
        assert roles == ["assistant"] + [None] * (max_tokens - 1)
        assert [c["delta"]["content"] for c in choices] == ["D"] * max_tokens
    else:
        assert [c["text"] for c in choices] == ["D"] * max_tokens


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": None}])
@PATHS
async def test_no_usage_unless_asked_for(house, path, options):
    reply = await house.post(path, request(path, stream=True, stream_options=options))
    assert all(len(c["choices"]) == 1 and "usage" not in c for c in chunks(reply.content))


@PATHS
async def test_usage_comes_last_with_no_choices_and_equals_the_unstreamed_one(house, path):
    options = {"include_usage": True}
    reply = await house.post(path, request(path, stream=True, stream_options=options))
    *before, last = chunks(reply.content)
    assert last["choices"] == []
    assert all(c["usage"] is None and len(c["choices"]) == 1 for c in before)
    assert before[-1]["choices"][0]["finish_reason"] == "stop"
    whole = (await house.post(path, request(path))).json()
    assert last["usage"] == whole["usage"]
    assert last["usage"]["completion_tokens"] == len(TEXT.encode()) + 1
    assert last["usage"]["total_tokens"] == sum(
        last["usage"][key] for key in ("prompt_tokens", "completion_tokens")
    )


@pytest.mark.parametrize(
    ("stop", "text", "tokens"),
    [("FD", "DE", 4), ("EF", "D", 3), ("D", "", 1), ("FDEFD", "DE", 7), (["xyz", "F"], "DE", 3)],
)
@PATHS
async def test_a_stop_string_cuts_exactly_wherever_tokens_end(path, stop, text, tokens):
    async with serving(script=lambda row: b"DEF"[(row.position - row.prompt_length) % 3]) as house:
        for streamed in (True, False):
            reply = await house.post(path, request(path, stop=stop, stream=streamed))
            assert said(reply, path, streamed=streamed) == text
            last = chunks(reply.content)[-1] if streamed else reply.json()
            assert last["choices"][0]["finish_reason"] == "stop"
        assert reply.json()["usage"]["completion_tokens"] == tokens
        await house.idle()
        assert house.scheduler.counters.finished == 2


async def test_a_stop_string_ends_the_computation_too():
    answered = threading.Event()
    async with serving(
        script=lambda row: 68, hooks={10: lambda batch: answered.wait(60)}, model_len=1024
    ) as house:
        body = {"prompt": "x", "max_tokens": 900, "stop": "DDD"}
        reply = (await house.post(COMPLETIONS, body)).json()
        answered.set()
        assert reply["usage"]["completion_tokens"] == 3
        await house.idle()
        assert len(house.backend.batches) <= 11, "900 tokens would take 900 steps"


@pytest.mark.parametrize("alternatives", [0, 1, 3])
async def test_chat_logprobs_have_one_entry_a_token_in_both_modes(house, alternatives):
    fields = {"logprobs": True, "top_logprobs": alternatives, "max_tokens": 9}
    streamed = chunks((await house.post(CHAT, request(CHAT, stream=True, **fields))).content)
    whole = (await house.post(CHAT, request(CHAT, **fields))).json()["choices"][0]["logprobs"]
    pieces = [c["choices"][0]["logprobs"]["content"] for c in streamed]
    assert [entry for piece in pieces for entry in piece] == whole["content"]
    assert len(whole["content"]) == 9
    for entry in whole["content"]:
        assert bytes(entry["bytes"])
        assert len(entry["top_logprobs"]) == alternatives
        assert entry["logprob"] <= 0


async def test_completion_logprobs_are_parallel_lists_with_offsets_in_both_modes(house):
    fields = {"logprobs": 1, "max_tokens": 12}
    body = request(COMPLETIONS, stream=True, **fields)
    streamed = chunks((await house.post(COMPLETIONS, body)).content)
    reply = (await house.post(COMPLETIONS, request(COMPLETIONS, **fields))).json()
    whole = reply["choices"][0]["logprobs"]
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        joined = [x for c in streamed for x in c["choices"][0]["logprobs"][name]]
        assert joined == whole[name]
        assert len(joined) == 12
    assert whole["text_offset"] == [0, 1, 2, 3, 4, 5, 5, 5, 5, 6, 6, 6]


async def test_a_bad_value_in_a_stream_request_is_plain_json_with_its_status(house):
    for bad in ({"n": 0}, {"temperature": 9}, {"messages": []}):
        reply = await house.post(CHAT, request(CHAT, stream=True, **bad))
        assert reply.status_code == 400
        assert reply.headers["content-type"] == "application/json"
        assert reply.json()["error"]["type"] == "invalid_request_error"


async def test_a_row_fault_midstream_ends_that_stream_and_no_other():
    together = threading.Event()
    letters = {1: 65, 2: 66}
    async with serving(
        script=lambda row: letters.get(row.tokens[0], 67),
        hooks={0: lambda batch: together.wait(60)},
        nan_rows={4: [0]},
    ) as house:

        def stream(prompt: int, max_tokens: int):
            body = {"prompt": [prompt], "max_tokens": max_tokens, "stream": True}
            return asyncio.ensure_future(house.post(COMPLETIONS, body))

        # The first holds step 0 until the other two are there; they share the steps from 1 on.
        posts = [stream(9, 1)]
        await until(lambda: house.backend.batches)
        posts += [stream(1, 8), stream(2, 8)]
        await until(lambda: house.bridge.open_requests == 3)
        together.set()
        _, *replies = await asyncio.gather(*posts)
        failed, well = sorted(replies, key=lambda reply: b"event: error" not in reply.content)
        *some, error, done = events(failed.content)
        assert some
        assert error.startswith(b"event: error\ndata: ")
        assert json.loads(error.split(b"data: ")[1])["error"]["code"] == "internal_error"
        assert done == b"data: [DONE]"
        assert b'"finish_reason":"' not in failed.content
        assert said(well, COMPLETIONS, streamed=True) in ("A" * 8, "B" * 8)
        await house.probe()
        await house.idle()


async def test_a_token_is_on_the_wire_while_the_next_is_computed():
    gate = threading.Event()
    async with serving(hooks={1: lambda batch: gate.wait(60)}) as house:
        body = {"prompt": "AB", "max_tokens": 2, "stream": True}
        async with house.client.stream("POST", COMPLETIONS, json=body) as reply:
            reading = reply.aiter_bytes()
            first = await anext(reading)
            assert b'"text":"A"' in first
            gate.set()
            rest = b"".join([piece async for piece in reading])
        assert b'"text":"B"' in rest


async def test_fifty_streams_each_end_with_one_done(house):
    endings = [{"stop": "that"}, {}, {"max_tokens": 3}]
    bodies = [request(CHAT, stream=True, **endings[number % 3]) for number in range(50)]
    replies = await asyncio.gather(*(house.post(CHAT, body) for body in bodies))
    for reply in replies:
        assert chunks(reply.content)[-1]["choices"][0]["finish_reason"] in ("stop", "length")


async def test_a_broken_step_fails_its_requests_with_500_and_the_next_are_served():
    async with serving(hooks={0: raising(RuntimeError("boom"))}) as house:
        for streamed in (False, True):
            reply = await house.post(COMPLETIONS, request(COMPLETIONS, stream=streamed))
            if not streamed:
                assert reply.status_code == 500
                assert reply.json()["error"]["code"] == "internal_error"
            else:
                assert reply.status_code == 200
        assert (await house.client.get("/health")).status_code == 200
        await house.idle()
