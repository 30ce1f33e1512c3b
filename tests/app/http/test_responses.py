"""/v1/responses: one answer as an object, or as typed events, as OpenAI's client reads them."""

import json
import threading

import openai
import pytest
from openai import AsyncOpenAI
from support.serving import HELLO, MODEL, events, saying, serving

RESPONSES = "/v1/responses"
TEXT = "Grüße, 🦙!"
TOKENS = len(TEXT.encode()) + 1


@pytest.fixture
async def house():
    async with serving(script=saying(TEXT)) as house:
        yield house
        await house.idle()


@pytest.fixture
async def client(house):
    async with AsyncOpenAI(base_url=f"{house.url}/v1", api_key="none", max_retries=0) as client:
        yield client


async def test_a_response_at_once(client):
    reply = await client.responses.create(model=MODEL, input="Hello", metadata={"a": "b"})
    assert reply.output_text == TEXT
    assert (reply.status, reply.object, reply.metadata) == ("completed", "response", {"a": "b"})
    assert reply.id.startswith("resp_")
    assert reply.output[0].status == "completed"
    assert reply.usage.output_tokens == TOKENS
    assert reply.usage.total_tokens == reply.usage.input_tokens + TOKENS
    assert reply.usage.input_tokens_details.cached_tokens == 0


async def test_a_response_streamed(client):
    stream = await client.responses.create(model=MODEL, input="Hello", stream=True)
    got = [event async for event in stream]
    assert [event.sequence_number for event in got] == list(range(len(got)))
    kinds = [event.type.removeprefix("response.") for event in got]
    assert kinds == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        *["output_text.delta"] * TOKENS,
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    deltas = [event.delta for event in got if event.type == "response.output_text.delta"]
    assert "".join(deltas) == got[-1].response.output_text == got[-4].text == TEXT
    assert got[0].response.id == got[-1].response.id
    assert got[0].response.status == "in_progress"
    assert got[-1].response.usage.output_tokens == TOKENS


async def test_the_stream_helper(client):
    async with client.responses.stream(model=MODEL, input="Hello") as stream:
        async for _ in stream:
            pass
        final = await stream.get_final_response()
    assert final.output_text == TEXT


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_that_is_cut_is_incomplete(client, stream):
    reply = await client.responses.create(
        model=MODEL, input="Hello", max_output_tokens=2, stream=stream
    )
    if stream:
        *_, last = [event async for event in reply]
        assert last.type == "response.incomplete"
        reply = last.response
    assert reply.status == "incomplete"
    assert reply.incomplete_details.reason == "max_output_tokens"
    assert reply.output[0].status == "incomplete"


@pytest.mark.parametrize("stream", [True, False])
async def test_logprobs_stand_with_the_text(client, stream):
    reply = await client.responses.create(
        model=MODEL,
        input="Hello",
        max_output_tokens=2,
        top_logprobs=2,
        include=["message.output_text.logprobs"],
        stream=stream,
    )
    if stream:
        got = [event async for event in reply]
        pieces = [e.logprobs for e in got if e.type == "response.output_text.delta"]
        assert [len(piece) for piece in pieces] == [1, 1]
        reply = got[-1].response
    first, _ = reply.output[0].content[0].logprobs
    assert (first.token, first.bytes, len(first.top_logprobs)) == ("G", [71], 2)


def message(role, content, **fields):
    return {"role": role, "content": content, **fields}


PARTS = [{"type": "input_text", "text": "Hel"}, {"type": "output_text", "text": "lo"}]


@pytest.mark.parametrize(
    ("fields", "messages"),
    [
        ({"input": "Hello"}, HELLO),
        ({"input": "Hello", "instructions": "Obey."}, [message("system", "Obey."), *HELLO]),
        ({"input": [message("user", "Hello", type="message")]}, HELLO),
        ({"input": [message("user", PARTS)]}, [message("user", "Hel\nlo")]),
        (
            {"input": [message("developer", "x"), message("assistant", PARTS), *HELLO]},
            [message("system", "x"), message("assistant", "Hel\nlo"), *HELLO],
        ),
    ],
)
async def test_it_computes_the_same_prompt_as_a_chat(house, fields, messages):
    reply = await house.post(RESPONSES, {**fields, "max_output_tokens": 1})
    counted = (await house.post("/tokenize", {"messages": messages})).json()["count"]
    assert reply.json()["usage"]["input_tokens"] == counted


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"input": None}, "input", "invalid_value"),
        ({"input": []}, "input", "invalid_value"),
        ({"input": ["x"]}, "input", "invalid_value"),
        ({"input": [{"type": "reasoning"}]}, "input", "unsupported_value"),
        ({"input": [message("user", [{"type": "input_image"}])]}, "input", "unsupported_value"),
        ({"input": [message("user", [{"type": {}}])]}, "input", "unsupported_value"),
        ({"input": [message("narrator", "x")]}, "input.0.role", "invalid_value"),
        ({"input": [message("user", None)]}, "input.0.content", "invalid_value"),
        ({"input": "y" * 2000}, "input", "context_length_exceeded"),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "unsupported_value"),
        ({"conversation": "c"}, "conversation", "unsupported_value"),
        ({"background": True}, "background", "unsupported_value"),
        ({"n": 2}, "n", "unsupported_value"),
        ({"max_output_tokens": 0}, "max_output_tokens", "invalid_value"),
        ({"text": {"format": {"type": "xml"}}}, "text.format", "unsupported_value"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format", "invalid_value"),
        ({"model": "nope"}, "model", "model_not_found"),
    ],
)
async def test_what_is_not_supported_is_refused_by_name(house, fields, param, code):
    reply = await house.post(RESPONSES, {"input": "x", **fields})
    error = reply.json()["error"]
    assert reply.status_code == (404 if code == "model_not_found" else 400)
    assert (error["param"], error["code"]) == (param, code)


async def test_what_changes_nothing_is_accepted(client):
    reply = await client.responses.create(
        model=MODEL,
        input="Hello",
        store=True,
        background=False,
        truncation="auto",
        reasoning={"effort": "low"},
        tools=[{"type": "function", "name": "f", "parameters": {}, "strict": False}],
        tool_choice="none",
        text={"format": {"type": "text"}, "verbosity": "low"},
        user="u",
    )
    assert reply.output_text == TEXT
    assert reply.store is False


async def test_nothing_is_kept(client):
    reply = await client.responses.create(model=MODEL, input="Hello")
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(reply.id)


async def test_an_error_inside_a_stream_is_an_event_that_clients_raise():
    async with (
        serving(script=saying(TEXT), nan_rows={3: [0]}) as house,
        AsyncOpenAI(base_url=f"{house.url}/v1", api_key="x", max_retries=0) as client,
    ):
        raw = await house.post(RESPONSES, {"input": "Hello", "stream": True})
        name, data = events(raw.content)[-1].split(b"\n")
        assert name == b"event: error"
        told = json.loads(data.removeprefix(b"data: "))
        assert (told["type"], told["code"]) == ("error", "internal_error")

    async with (
        serving(script=saying(TEXT), nan_rows={3: [0]}) as house,
        AsyncOpenAI(base_url=f"{house.url}/v1", api_key="x", max_retries=0) as client,
    ):
        stream = await client.responses.create(model=MODEL, input="Hello", stream=True)
        with pytest.raises(openai.APIError) as caught:
            [event async for event in stream]
        assert caught.value.code == "internal_error"


async def test_keepalive_events_do_not_disturb_the_client():
    gate = threading.Event()
    async with (
        serving(
            script=saying(TEXT),
            hooks={0: lambda batch: gate.wait(60)},
            sse={"keepalive_interval_s": 0.01, "keepalive_mode": "chunk"},
        ) as house,
        AsyncOpenAI(base_url=f"{house.url}/v1", api_key="x", max_retries=0) as client,
        client.responses.stream(model=MODEL, input="Hello") as stream,
    ):
        # The head comes with the first keep-alive, while the first step is still held.
        gate.set()
        async for _ in stream:
            pass
        assert (await stream.get_final_response()).output_text == TEXT
