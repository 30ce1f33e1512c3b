"""Lengths and ranges: at the limit, one beyond it, and far beyond it."""

from __future__ import annotations

import asyncio
import contextlib

import orjson
import pytest
import pytest_asyncio
from support.answers import asking, read
from support.serving import CHAT, COMPLETIONS, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")

LENGTH = 64
VOCABULARY = 49152


def error_of(reply, param: str | None = None) -> dict:
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert len(error["message"]) < 1000
    if param is not None:
        assert (error["param"] or "").split(".")[0] == param
    return error


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def alive(house):
    """The house answers after each of them."""
    yield
    await house.probe()


# ── B36 ───────────────────────────────────────────────────────────────────────────────────────


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def small():
    """A context of 64 tokens, in letters."""
    async with serving(model_len=LENGTH, script=lambda row: 65) as small:
        yield small
        await small.probe()
        await small.idle()


def of_length(path: str, length: int) -> dict:
    """A prompt of so many tokens; a chat has 19 around its one message."""
    if path == COMPLETIONS:
        return {"prompt": [7] * length}
    return {"messages": [{"role": "user", "content": "x" * (length - CHAT_FRAME)}]}


CHAT_FRAME = 19
"""Tokens of the template around one message; `test_b36_the_frame_…` holds it to that."""


async def test_b36_the_frame_of_a_chat_is_what_these_tests_think(small) -> None:
    reply = await small.post("/tokenize", of_length(CHAT, CHAT_FRAME + 9))
    assert reply.json()["count"] == CHAT_FRAME + 9


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("max_tokens", [None, 1, 2, 10])
@pytest.mark.parametrize("length", [LENGTH - 2, LENGTH - 1, LENGTH, LENGTH + 1])
async def test_b36_prompt_and_answer_fill_the_context_and_no_more(
    small, path, length, max_tokens, stream
) -> None:
    body = {**of_length(path, length), "max_tokens": max_tokens, "stream": stream}
    reply = await small.post(path, body)
    left = LENGTH - length
    if left >= max(1, max_tokens or 0):
        said = read(path, reply)
        assert said.text == "A" * (max_tokens or left)
        assert said.finish_reason == "length"
        return
    error = error_of(reply, "messages" if path == CHAT else "prompt")
    assert error["code"] == "context_length_exceeded"
    assert f" {LENGTH} tokens" in error["message"]
    assert f" {length} tokens" in error["message"]
    assert "-" not in error["message"]


async def test_b36_the_length_that_is_told_is_the_one_that_holds(small) -> None:
    (card,) = (await small.client.get("/v1/models")).json()["data"]
    assert card["max_model_len"] == LENGTH
    assert (await small.client.get("/v1/models/bytes")).json()["max_model_len"] == LENGTH


# ── B37 ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "prompt", ["", [""], [], [[]], ["", "hi"], [[], [1]], None, "absent"], ids=str
)
async def test_b37_an_empty_prompt_is_refused(house, prompt, stream) -> None:
    """The tokenizer puts nothing before a prompt: there would be nothing to go on from."""
    body = {"max_tokens": 2, "stream": stream} | ({} if prompt == "absent" else {"prompt": prompt})
    error_of(await house.post(COMPLETIONS, body), "prompt")


async def test_b37_empty_messages_are_refused_and_an_empty_message_is_answered(house) -> None:
    error_of(await house.post(CHAT, asking(CHAT, messages=[])), "messages")
    for content in ("", [], [{"type": "text", "text": ""}]):
        body = asking(CHAT, messages=[{"role": "user", "content": content}], max_tokens=2)
        assert (await house.post(CHAT, body)).json()["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_b37_an_answer_has_a_token_at_least(house, path) -> None:
    for extra in ({}, {"echo": True}, {"echo": True, "logprobs": path == CHAT or 1}):
        for bad in (0, -1, -(2**70)):
            error_of(await house.post(path, asking(path, max_tokens=bad, **extra)), "max_tokens")
    whole = await house.post(path, asking(path, max_tokens=1))
    assert whole.json()["usage"]["completion_tokens"] == 1
    usual = await house.post(path, asking(path, max_tokens=None, ignore_eos=True))
    expected = 16 if path == COMPLETIONS else 512 - usual.json()["usage"]["prompt_tokens"]
    assert usual.json()["usage"]["completion_tokens"] == expected


# ── B38 ───────────────────────────────────────────────────────────────────────────────────────

OUT_OF_RANGE = [
    ("logit_bias", {str(VOCABULARY): 5}),
    ("logit_bias", {"-1": 5}),
    ("logit_bias", {"abc": 1}),
    ("logit_bias", {"1.5": 1}),
    ("logit_bias", {"٣": 1}),
    ("logit_bias", {"10": 1000}),
    ("logit_bias", {"10": -100.5}),
    ("logit_bias", {"10": None}),
    ("logit_bias", {"10": True}),
    ("stop_token_ids", [VOCABULARY]),
    ("stop_token_ids", [-1]),
    ("stop_token_ids", [True]),
    ("allowed_token_ids", [VOCABULARY]),
    ("prompt", [VOCABULARY]),
    ("prompt", [-1]),
    ("prompt", [1.5]),
    ("prompt", [True]),
    ("prompt", [[1], [VOCABULARY]]),
    ("prompt", [2**64]),
    ("seed", 2**63),
    ("seed", -(2**63) - 1),
    ("seed", 10**30),
    ("seed", 1.5),
    ("seed", "7"),
    ("seed", True),
]


async def test_b38_ids_and_seeds_out_of_range_are_refused_and_no_neighbour_notices(
    house, speaker, smollm2
) -> None:
    text = " one two three four five six seven eight nine ten" * 6
    speaker.ids = [*smollm2.encode(text), 2]
    body = asking(COMPLETIONS, max_tokens=200, stream=True)
    neighbour = asyncio.ensure_future(house.post(COMPLETIONS, body))
    for param, value in OUT_OF_RANGE:
        for stream in (True, False):
            body = asking(COMPLETIONS, **{"max_tokens": 2, "stream": stream, param: value})
            error_of(await house.post(COMPLETIONS, body), param)
    assert read(COMPLETIONS, await neighbour).text == text


async def test_b38_the_ends_of_the_ranges_are_in_them(house) -> None:
    last = VOCABULARY - 1
    for fields in (
        {"logit_bias": {"0": 100, str(last): -100}},
        {"stop_token_ids": [0, last]},
        {"prompt": [0, last]},
        {"seed": 2**63 - 1},
        {"seed": -(2**63)},
    ):
        body = asking(COMPLETIONS, max_tokens=2, **fields)
        assert (await house.post(COMPLETIONS, body)).status_code == 200


# ── B46 ───────────────────────────────────────────────────────────────────────────────────────

HI = {"role": "user", "content": "x"}
TOO_MUCH = [
    (COMPLETIONS, {"stop": ""}, "stop"),
    (COMPLETIONS, {"stop": [""]}, "stop"),
    (COMPLETIONS, {"stop": ["a", ""]}, "stop"),
    (COMPLETIONS, {"stop": ["abc"] * 17}, "stop"),
    (COMPLETIONS, {"stop": ["abc"] * 100_000}, "stop"),
    (COMPLETIONS, {"stop": "a" * 1_000_000}, "stop"),
    (COMPLETIONS, {"n": 100_000}, "n"),
    (COMPLETIONS, {"best_of": 100_000}, "best_of"),
    (COMPLETIONS, {"prompt": ["hi"] * 50_000}, "prompt"),
    (COMPLETIONS, {"prompt": [[1]] * 700_000}, None),
    (COMPLETIONS, {"logit_bias": {str(id): 1 for id in range(VOCABULARY)}}, "logit_bias"),
    (COMPLETIONS, {f"unknown{number}": 1 for number in range(100_000)}, None),
    (CHAT, {"messages": [HI] * 100_000}, None),
    (CHAT, {"messages": [HI] * 20_000}, "messages"),
    (CHAT, {"tools": [{}] * 300_000}, None),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def large(smollm2, speaker):
    """A house that reads bodies as large as servers usually do."""
    async with serving(
        tokenizer=smollm2, script=speaker, model_len=512, max_body_bytes=4 << 20
    ) as large:
        yield large
        await large.idle()


async def test_b46_what_is_too_much_is_refused_for_its_size_and_no_neighbour_notices(
    large, speaker, smollm2, monkeypatch
) -> None:
    house, text = large, " one two three four five six seven eight nine ten" * 6
    speaker.ids = [*smollm2.encode(text), 2]
    parsed = []
    loads = orjson.loads
    monkeypatch.setattr(orjson, "loads", lambda body: (parsed.append(len(body)), loads(body))[1])
    arrived = house.scheduler.counters.arrived
    body = asking(COMPLETIONS, max_tokens=200, stream=True)
    neighbour = asyncio.ensure_future(house.post(COMPLETIONS, body))
    for path, fields, param in TOO_MUCH:
        parsed.clear()
        error = error_of(await house.post(path, asking(path, **fields)), param)
        if param is None:
            assert error["code"] == "invalid_json"
            assert not [size for size in parsed if size > 1000], "nothing was made of it"
    assert read(COMPLETIONS, await neighbour).text == text
    assert house.scheduler.counters.arrived == arrived + 1


async def test_b46_no_stop_string_is_none(house, speaker) -> None:
    speaker.ids = [65]
    for stop in (None, [], ["a", "b", "c", "d"], ["abc"] * 16):
        body = asking(COMPLETIONS, stop=stop, max_tokens=3)
        assert (await house.post(COMPLETIONS, body)).json()["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("announced", [True, False])
async def test_b46_a_body_of_64_MB_is_refused_before_it_is_read(house, announced) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", house.port)
    size, piece = 64 << 20, b"x" * (1 << 16)
    length = f"content-length: {size}" if announced else "transfer-encoding: chunked"
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n{length}\r\n\r\n"
    writer.write(head.encode())
    answer = asyncio.ensure_future(reader.readuntil(b"\r\n\r\n"))
    sent = 0
    with contextlib.suppress(ConnectionError):
        while sent < size and not answer.done():
            writer.write(piece if announced else b"%x\r\n%b\r\n" % (len(piece), piece))
            await writer.drain()
            await asyncio.sleep(0)
            sent += len(piece)
    assert b" 413 " in await answer
    assert sent < size
    writer.close()


async def test_b46_a_long_answer_with_many_stops_is_as_it_is_without(house, speaker) -> None:
    """Each of them begins as the answer does, over and over."""
    speaker.ids = [65]
    stops = ["b" * 1000 + letter for letter in "cdefghijklmnopqr"]
    plain = await house.post(COMPLETIONS, asking(COMPLETIONS, max_tokens=400))
    for stream in (True, False):
        body = asking(COMPLETIONS, max_tokens=400, stop=stops, stream=stream)
        said = read(COMPLETIONS, await house.post(COMPLETIONS, body))
        assert said.text == plain.json()["choices"][0]["text"]
