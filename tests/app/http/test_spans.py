"""A collector sees one span a request for tokens, however the request ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading

import pytest
from support.serving import CHAT, COMPLETIONS, HELLO, saying, serving, until

from app.config.tracing_schema import TracingConfig
from app.tracing.spans import open_spans

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="install the extra `otel`")

from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from support.collector import attributes, collecting

MODEL = "bytes"
TEXT, KEY = "Zebra-prompt", "zebra-key"
TENANTS = {"tenants": {"acme": {"keys": [KEY], "classes": ["fast"]}}, "classes": {"fast": {}}}
LATENCIES = {
    f"gen_ai.latency.{name}"
    for name in (
        "e2e",
        "time_in_queue",
        "time_to_first_token",
        "time_in_model_prefill",
        "time_in_model_decode",
    )
}
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@contextlib.asynccontextmanager
async def traced(tracing=None, **options):
    """A served house, and a collector that has all its spans once `house.spans()` returns."""
    with collecting() as collector:
        config = TracingConfig(enabled=True, endpoint=collector.url, **(tracing or {}))
        spans = open_spans(config, MODEL, "0.0.0")
        async with serving(spans=spans, **options) as house:

            async def ended() -> list[Span]:
                await house.idle()
                await spans.end()
                return collector.spans

            house.spans, house.end_spans, house.collector = ended, spans.end, collector
            yield house
            await spans.end()


async def only(house) -> tuple[Span, dict]:
    [span] = await house.spans()
    return span, attributes(span)


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_makes_one_span(stream):
    async with traced(script=saying("Hi"), config=TENANTS) as house:
        body = {"messages": HELLO, "stream": stream, "temperature": 0.5, "top_k": 7, "seed": 3}
        head = {"authorization": f"Bearer {KEY}", "x-request-id": "r-1"}
        reply = await house.post(CHAT, {**body, "session_id": "s-1", "stop": "|"}, headers=head)
        span, found = await only(house)
    data = reply.text.removeprefix("data: ").partition("\n")[0] if stream else reply.text
    assert (span.name, span.kind) == (f"chat {MODEL}", Span.SPAN_KIND_SERVER)
    assert span.status.code == Status.STATUS_CODE_UNSET
    assert not span.parent_span_id
    latencies = {name: found.pop(name) for name in LATENCIES}
    assert min(latencies.values()) >= 0
    parts = ("queue", "model_prefill", "model_decode")
    told = sum(latencies[f"gen_ai.latency.time_in_{part}"] for part in parts)
    assert told <= latencies["gen_ai.latency.e2e"] + 1e-6
    took = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9
    assert took == pytest.approx(latencies["gen_ai.latency.e2e"], abs=1e-6)
    first = found.pop("gen_ai.response.time_to_first_chunk", None)
    assert first == (latencies["gen_ai.latency.time_to_first_token"] if stream else None)
    length = found.pop("gen_ai.usage.input_tokens")
    assert length > len("Hello")
    assert found == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "octavo",
        "gen_ai.request.model": MODEL,
        "gen_ai.request.id": "r-1",
        "gen_ai.request.max_tokens": 256 - length,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.top_k": 7,
        "gen_ai.request.seed": 3,
        "gen_ai.request.choice.count": 1,
        "gen_ai.request.stream": stream,
        "gen_ai.conversation.id": "s-1",
        "gen_ai.response.id": json.loads(data)["id"],
        "gen_ai.response.model": MODEL,
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "http.response.status_code": 200,
        "octavo.tenant": "acme",
        "octavo.class": "fast",
    }


@pytest.mark.parametrize(
    ("path", "body", "name"),
    [
        (COMPLETIONS, {"prompt": "x", "max_tokens": 2}, "text_completion"),
        ("/v1/responses", {"input": "x", "max_output_tokens": 2}, "chat"),
    ],
)
async def test_each_endpoint_has_its_operation(path, body, name):
    async with traced() as house:
        assert (await house.post(path, body)).status_code == 200
        span, found = await only(house)
    assert span.name == f"{name} {MODEL}"
    assert found["gen_ai.operation.name"] == name
    assert found["gen_ai.response.finish_reasons"] == ["length"]


async def test_several_answers_and_prompts_make_one_span():
    async with traced() as house:
        body = {"prompt": ["xy", "z"], "n": 2, "max_tokens": 3, "ignore_eos": True}
        assert (await house.post(COMPLETIONS, body)).status_code == 200
        _, found = await only(house)
    assert found["gen_ai.request.choice.count"] == 2
    assert found["gen_ai.response.finish_reasons"] == ["length"] * 4
    assert found["gen_ai.usage.input_tokens"] == 3
    assert found["gen_ai.usage.output_tokens"] == 12


async def test_cached_tokens_are_told():
    async with traced() as house:
        body = {"prompt": "x" * 40, "max_tokens": 1}
        for _ in range(2):
            assert (await house.post(COMPLETIONS, body)).status_code == 200
        spans = await house.spans()
    assert [attributes(s)["gen_ai.usage.cache_read.input_tokens"] for s in spans] == [0, 32]


@pytest.mark.parametrize("stream", [True, False])
async def test_who_leaves_makes_no_error(stream):
    gate = threading.Event()
    async with traced(model_len=1024, hooks={5: lambda batch: gate.wait(60)}) as house:
        body = {"prompt": "x", "max_tokens": 900, "ignore_eos": True, "stream": stream}
        asked = asyncio.create_task(house.post(COMPLETIONS, body))
        await until(lambda: len(house.backend.batches) == 6)
        asked.cancel()
        await until(lambda: house.bridge.open_requests == 0)
        gate.set()
        span, found = await only(house)
    assert span.status.code == Status.STATUS_CODE_UNSET
    assert found["gen_ai.response.finish_reasons"] == ["abort"]
    assert found["http.response.status_code"] == (200 if stream else 499)
    assert 0 < found["gen_ai.usage.output_tokens"] < 900
    assert "error.type" not in found


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"prompt": "x", "temperature": 9}, 400, "invalid_value"),
        ({"prompt": "x" * 1000}, 400, "context_length_exceeded"),
        ({"prompt": "x", "model": "gpt-9"}, 404, "model_not_found"),
    ],
)
async def test_who_is_refused_makes_an_error(body, status, code):
    async with traced() as house:
        assert (await house.post(COMPLETIONS, body)).status_code == status
        span, found = await only(house)
    assert (span.name, span.status.code) == (f"text_completion {MODEL}", Status.STATUS_CODE_ERROR)
    assert not span.status.message
    assert (found["error.type"], found["http.response.status_code"]) == (code, status)
    assert ("gen_ai.request.model" in found) == (code != "model_not_found")
    assert "gpt-9" not in str(found)
    assert "gen_ai.response.id" not in found


async def test_who_finds_no_room_or_shows_no_key_makes_an_error():
    gate = threading.Event()
    config = {**TENANTS, "identity": {"require_key": True}}
    head = {"authorization": f"Bearer {KEY}"}
    async with traced(max_open=1, config=config, hooks={0: lambda batch: gate.wait(60)}) as house:
        body = {"prompt": "x", "max_tokens": 2}
        first = asyncio.create_task(house.post(COMPLETIONS, body, headers=head))
        await until(lambda: house.bridge.open_requests == 1)
        assert (await house.post(COMPLETIONS, body, headers=head)).status_code == 429
        assert (await house.post(COMPLETIONS, body)).status_code == 401
        gate.set()
        assert (await first).status_code == 200
        spans = await house.spans()
    refusals = ["queue_full", "invalid_api_key", None]
    assert [attributes(span).get("error.type") for span in spans] == refusals
    assert [attributes(span).get("octavo.tenant") for span in spans] == ["acme", None, "acme"]


async def test_an_engine_that_breaks_makes_errors_of_all_that_were_open():
    gate = threading.Event()

    def broken(now):
        raise RuntimeError("planted")

    async with traced(rows=2, hooks={3: lambda batch: gate.wait(60)}) as house:
        body = {"prompt": "x", "max_tokens": 200, "ignore_eos": True}
        clients = [
            asyncio.create_task(house.post(COMPLETIONS, {**body, "stream": number == 0}))
            for number in range(3)
        ]
        await until(lambda: house.bridge.open_requests == 3)
        await until(lambda: len(house.backend.batches) > 3)
        house.scheduler.schedule = broken
        gate.set()
        await asyncio.gather(*clients)
        await until(lambda: not house.server.server_state.tasks)
        await house.service.bridge.ended()
        await house.end_spans()
        spans = house.collector.spans
    assert len(spans) == 3
    for span in spans:
        found = attributes(span)
        assert (span.status.code, found["error.type"]) == (
            Status.STATUS_CODE_ERROR,
            "internal_error",
        )
        assert found["gen_ai.response.finish_reasons"] == ["error"]


async def test_the_parent_is_the_one_that_the_client_names():
    async with traced({"sample_ratio": 0.0}) as house:
        body = {"prompt": "x", "max_tokens": 1}
        for head in (
            {"traceparent": PARENT, "tracestate": "a=b"},
            {"traceparent": PARENT[:-1] + "0"},  # the client takes no sample
            {"traceparent": "nonsense"},
            {},
        ):
            reply = await house.post(COMPLETIONS, body, headers=head)
            assert reply.status_code == 200
        span, _ = await only(house)
    assert span.trace_id.hex() == PARENT.split("-")[1]
    assert span.parent_span_id.hex() == PARENT.split("-")[2]
    assert span.trace_state == "a=b"


async def test_other_routes_make_no_span():
    async with traced() as house:
        for path in ("/health", "/metrics", "/v1/models", COMPLETIONS, "/nothing"):
            await house.client.get(path)
        await house.post("/tokenize", {"prompt": "x"})
        assert await house.spans() == []


async def test_a_collector_is_told_who_we_are_and_what_it_wants_to_know(monkeypatch):
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=mine,zone=a")
    async with traced({"headers": {"Authorization": "Basic x"}}) as house:
        await house.probe()
        await house.spans()
        collector = house.collector
    assert collector.headers["authorization"] == "Basic x"
    assert collector.resource["service.name"] == "mine"
    assert collector.resource["zone"] == "a"
    assert collector.resource["service.version"] == "0.0.0"


async def test_spans_hold_no_text_and_no_key():
    async with traced(script=saying("Zebra-answer"), config=TENANTS) as house:
        head = {"authorization": f"Bearer {KEY}"}
        message = [{"role": "user", "content": TEXT}]
        for stream in (True, False):
            body = {"messages": message, "stream": stream, "stop": TEXT, "user": TEXT}
            body |= {"session_id": f"a {TEXT}", "cache_salt": TEXT, "metadata": {"a": TEXT}}
            assert (await house.post(CHAT, body, headers=head)).status_code == 200
        wrong = {"messages": TEXT, "model": TEXT}
        assert (await house.post(CHAT, wrong, headers=head)).status_code == 400
        assert len(await house.spans()) == 3
    assert b"zebra" not in house.collector.raw.lower()


async def test_stop_strings_are_told_to_who_asks_for_them():
    async with traced({"stop_strings": True}) as house:
        body = {"prompt": "x", "max_tokens": 1, "stop": ["a", "b"]}
        assert (await house.post(COMPLETIONS, body)).status_code == 200
        _, found = await only(house)
    assert found["gen_ai.request.stop_sequences"] == ["a", "b"]


async def test_a_dead_collector_takes_no_memory_and_keeps_nobody_waiting():
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections, says nothing
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/v1/traces"
        config = TracingConfig(enabled=True, endpoint=url, max_queued=10, timeout_s=0.1)
        spans = open_spans(config, MODEL, "0.0.0")
        async with serving(spans=spans) as house:
            for _ in range(50):
                await house.probe()
            await house.idle()
            [processor] = spans._provider._active_span_processor._span_processors
            assert len(processor._batch_processor._queue) <= 10
            await spans.end()
            await house.probe()
