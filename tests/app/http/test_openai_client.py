"""openai-python against the server: its calls, its exception classes."""

import asyncio
import threading
from contextlib import ExitStack

import openai
import pytest
from openai import AsyncOpenAI
from support.serving import HELLO, MODEL, saying, serving, until

from engine.controls import RowControls
from engine.inbox import Submission

TEXT = "Grüße, 🦙!"


@pytest.fixture
async def house():
    async with serving(script=saying(TEXT)) as house:
        yield house


@pytest.fixture
async def client(house):
    async with AsyncOpenAI(base_url=f"{house.url}/v1", api_key="none", max_retries=0) as client:
        yield client


async def test_create(client):
    reply = await client.chat.completions.create(model=MODEL, messages=HELLO)
    assert reply.choices[0].message.content == TEXT
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage.completion_tokens == len(TEXT.encode()) + 1
    assert reply._request_id.startswith("req-")


async def test_create_streamed(client):
    stream = await client.chat.completions.create(
        model=MODEL, messages=HELLO, stream=True, stream_options={"include_usage": True}
    )
    got = [chunk async for chunk in stream]
    text = "".join(choice.delta.content for chunk in got for choice in chunk.choices)
    assert text == TEXT
    assert got[-1].usage.total_tokens > 0


async def test_the_stream_helper(client):
    async with client.chat.completions.stream(model=MODEL, messages=HELLO) as stream:
        async for _ in stream:
            pass
        final = await stream.get_final_completion()
    assert final.choices[0].message.content == TEXT
    assert final.choices[0].message.role == "assistant"


async def test_logprobs_are_typed(client):
    reply = await client.chat.completions.create(
        model=MODEL, messages=HELLO, max_tokens=2, logprobs=True, top_logprobs=2
    )
    first = reply.choices[0].logprobs.content[0]
    assert (first.token, first.bytes, len(first.top_logprobs)) == ("G", [71], 2)


async def test_completions(client):
    reply = await client.completions.create(model=MODEL, prompt="x", max_tokens=3, logprobs=1)
    assert reply.choices[0].text == "Grü"[:2] + "\ufffd"
    assert reply.choices[0].logprobs.text_offset == [0, 1, 2]
    stream = await client.completions.create(model=MODEL, prompt=[1, 2], stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == TEXT


async def test_models(client):
    models = await client.models.list()
    assert [model.id for model in models.data] == [MODEL]
    assert (await client.models.retrieve(MODEL)).owned_by == "octavo"


async def test_a_bad_value_is_a_bad_request(client):
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(model=MODEL, messages=HELLO, temperature=9)
    assert (caught.value.param, caught.value.code) == ("temperature", "invalid_value")


async def test_an_unknown_model_is_not_found(client):
    with pytest.raises(openai.NotFoundError) as caught:
        await client.chat.completions.create(model="nope", messages=HELLO)
    assert caught.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("some/nope")


async def test_a_full_house_is_a_rate_limit_error():
    async with (
        serving(max_open=1) as house,
        AsyncOpenAI(base_url=f"{house.url}/v1", api_key="x", max_retries=0) as client,
    ):
        guest = Submission(house.bridge.next_id(), [1], 1, RowControls(), house.clock.now())
        with house.bridge.open(guest), pytest.raises(openai.RateLimitError) as caught:
            await client.chat.completions.create(model=MODEL, messages=HELLO)
        assert caught.value.code == "queue_full"
        assert caught.value.response.headers["retry-after"] == "1"


async def test_an_engine_that_breaks_is_an_internal_server_error(house, client):
    accepted = threading.Event()

    def broken(now):
        accepted.wait(60)
        raise RuntimeError("the scheduler is broken")

    house.scheduler.schedule = broken
    for status in (500, 503):  # the request that meets it, and the one after
        chat = asyncio.ensure_future(client.chat.completions.create(model=MODEL, messages=HELLO))
        await until(lambda: house.bridge.open_requests == 1 or accepted.is_set())
        accepted.set()
        with pytest.raises(openai.InternalServerError) as caught:
            await chat
        assert caught.value.status_code == status
    health = await house.client.get("/health")
    assert health.status_code == 503
    assert health.json()["error"]["code"] == "not_ready"


@pytest.mark.parametrize("mode", ["comment", "chunk"])
async def test_keepalives_do_not_disturb_the_client(mode):
    gate = threading.Event()
    async with (
        serving(
            script=saying(TEXT),
            hooks={0: lambda batch: gate.wait(60)},
            sse={"keepalive_interval_s": 0.01, "keepalive_mode": mode},
        ) as house,
        AsyncOpenAI(base_url=f"{house.url}/v1", api_key="x", max_retries=0) as client,
    ):
        # The head comes with the first keep-alive, while the first step is still held.
        stream = await client.chat.completions.create(model=MODEL, messages=HELLO, stream=True)
        gate.set()
        deltas = [chunk.choices[0].delta async for chunk in stream]
        assert "".join(delta.content or "" for delta in deltas) == TEXT


async def test_an_error_inside_a_stream_is_an_api_error():
    async with (
        serving(script=saying(TEXT), nan_rows={3: [0]}) as house,
        AsyncOpenAI(base_url=f"{house.url}/v1", api_key="x", max_retries=0) as client,
    ):
        stream = await client.chat.completions.create(model=MODEL, messages=HELLO, stream=True)
        with pytest.raises(openai.APIError) as caught:
            [chunk async for chunk in stream]
        assert caught.value.code == "internal_error"


# -------------------------------------------------------------------- several answers


async def test_several_answers_streamed_by_the_helper(client):
    async with client.chat.completions.stream(model=MODEL, messages=HELLO, n=3) as stream:
        async for _ in stream:
            pass
        final = await stream.get_final_completion()
    assert [choice.message.content for choice in final.choices] == [TEXT] * 3
    assert [choice.index for choice in final.choices] == [0, 1, 2]


async def test_several_prompts_and_an_echo(client):
    reply = await client.completions.create(
        model=MODEL, prompt=["a", "bc"], n=2, max_tokens=2, echo=True, logprobs=1
    )
    assert [choice.text[:-2] for choice in reply.choices] == ["a", "a", "bc", "bc"]
    assert [len(choice.logprobs.tokens) for choice in reply.choices] == [3, 3, 4, 4]
    assert reply.choices[0].logprobs.token_logprobs[0] is None


async def test_fields_of_other_servers_go_into_the_extra_body(client):
    reply = await client.chat.completions.create(
        model=MODEL,
        messages=HELLO,
        stop=["r"],
        extra_body={"include_stop_str_in_output": True, "return_token_ids": True},
    )
    assert reply.choices[0].message.content == "Gr"
    assert reply.choices[0].token_ids == list(b"Gr")


def test_the_client_that_blocks():
    """It runs on a thread beside the event loop of the server."""

    async def both() -> str:
        async with serving(script=saying(TEXT)) as house:
            return await asyncio.to_thread(ask, house.url)

    def ask(url: str) -> str:
        with openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client:
            stream = client.chat.completions.create(model=MODEL, messages=HELLO, stream=True)
            return "".join(chunk.choices[0].delta.content or "" for chunk in stream)

    assert asyncio.run(both()) == TEXT


# -------------------------------------------------------------------- retries


class Retries:
    """Stands between two tries of a client: what it would wait, and what happens meanwhile."""

    def __init__(self, client, monkeypatch, then=lambda: None) -> None:
        self.seconds = []
        usual = client._calculate_retry_timeout

        def told(*arguments, **named):
            self.seconds.append(usual(*arguments, **named))
            then()
            return 0.0

        monkeypatch.setattr(client, "_calculate_retry_timeout", told)


async def test_a_full_house_is_tried_again_when_it_says(monkeypatch):
    async with (
        serving(script=saying(TEXT), max_open=1) as house,
        AsyncOpenAI(base_url=f"{house.url}/v1", api_key="x", max_retries=2) as client,
    ):
        guest = Submission(house.bridge.next_id(), [1], 1, RowControls(), house.clock.now())
        room = ExitStack()
        room.enter_context(house.bridge.open(guest))
        retries = Retries(client, monkeypatch, then=room.close)
        reply = await client.chat.completions.create(model=MODEL, messages=HELLO)
        assert reply.choices[0].message.content == TEXT
        assert retries.seconds == [1.0]


async def test_who_waited_too_long_is_told_not_to_try_again(monkeypatch):
    gate = threading.Event()
    config = {"classes": {"default": {"queue_timeout_s": 0.05}, "patient": {}}}
    async with (
        serving(rows=1, hooks={0: lambda batch: gate.wait(60)}, config=config) as house,
        AsyncOpenAI(base_url=f"{house.url}/v1", api_key="x", max_retries=2) as client,
    ):
        retries = Retries(client, monkeypatch)
        first = {"prompt": "x", "service_tier": "patient"}
        runs = asyncio.ensure_future(house.post("/v1/completions", first))
        await until(lambda: house.backend.batches)  # it runs, and its first step is held
        late = asyncio.ensure_future(client.chat.completions.create(model=MODEL, messages=HELLO))
        await until(lambda: house.bridge.open_requests == 2)
        sent = house.clock.now()
        await until(lambda: house.clock.now() > sent + 0.06)
        gate.set()
        with pytest.raises(openai.InternalServerError) as caught:
            await late
        assert caught.value.code == "deadline_exceeded"
        assert retries.seconds == []
        assert (await runs).status_code == 200
