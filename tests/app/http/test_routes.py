"""The small routes, and what goes around every request: ids, logs, metrics, overload."""

import asyncio
import logging

import pytest
import structlog
from prometheus_client.parser import text_string_to_metric_families
from support.serving import CHAT, COMPLETIONS, HELLO, MODEL, saying, serving, until

from engine.controls import RowControls
from engine.inbox import Submission


@pytest.fixture
async def house():
    async with serving(script=saying("Secret answer")) as house:
        yield house


async def test_models(house):
    listed = (await house.client.get("/v1/models")).json()
    assert listed["object"] == "list"
    assert (await house.client.get(f"/v1/models/{MODEL}")).json() == listed["data"][0]
    assert (await house.client.get("/v1/models/")).json() == listed
    assert listed["data"][0]["object"] == "model"


async def test_health_is_empty_and_version_is_the_packages(house):
    health = await house.client.get("/health")
    assert (health.status_code, health.content) == (200, b"")
    assert (await house.client.get("/version")).json() == {"version": "0.0.0"}


async def test_health_says_when_the_house_drains(house):
    house.bridge.drain()
    health = await house.client.get("/health")
    assert (health.status_code, health.json()["error"]["code"]) == (503, "shutting_down")
    refused = await house.post(CHAT, {"messages": HELLO})
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) >= 1


PROBES = ["/health", "/health/live", "/health/ready"]


async def statuses(house) -> list[int]:
    return [(await house.client.get(path)).status_code for path in PROBES]


async def test_probes_of_a_house_that_takes_requests(house):
    assert await statuses(house) == [200, 200, 200]
    assert (await house.client.get("/ping")).status_code == 200
    assert (await house.client.post("/ping")).status_code == 200


async def test_a_full_house_is_healthy_and_not_ready():
    async with serving(max_open=1) as house:
        guest = Submission(house.bridge.next_id(), [1], 1, RowControls(), house.clock.now())
        with house.bridge.open(guest):
            assert await statuses(house) == [200, 200, 503]
            reply = await house.client.get("/health/ready")
            assert reply.json()["error"]["code"] == "queue_full"
            assert int(reply.headers["retry-after"]) >= 1
            assert (await house.client.get("/load")).json() == {"server_load": 1}
        assert await statuses(house) == [200, 200, 200]
        assert (await house.client.get("/load")).json() == {"server_load": 0}


async def test_a_draining_house_is_alive_and_not_ready(house):
    house.bridge.drain()
    assert await statuses(house) == [503, 200, 503]
    assert (await house.client.get("/ping")).status_code == 503


async def test_a_house_whose_engine_has_ended_is_not_alive(house):
    def broken(now):
        raise RuntimeError("the scheduler is broken")

    house.scheduler.schedule = broken
    await house.post(COMPLETIONS, {"prompt": "x"})
    assert await statuses(house) == [503, 503, 503]


async def test_the_document_is_served(house):
    document = (await house.client.get("/openapi.json")).json()
    assert document["openapi"] == "3.1.0"
    assert CHAT in document["paths"]


async def test_tokenize_and_detokenize_are_inverse(house):
    text = "Grüße, 🦙 <|im_end|>"
    reply = (await house.post("/tokenize", {"prompt": text, "return_token_strs": True})).json()
    assert reply["count"] == len(reply["tokens"]) == len(reply["token_strs"])
    assert reply["max_model_len"] == 256
    back = await house.post("/detokenize", {"tokens": reply["tokens"]})
    assert back.json() == {"prompt": text}


async def test_tokenize_counts_what_a_chat_will_count(house):
    counted = (await house.post("/tokenize", {"messages": HELLO})).json()["count"]
    used = (await house.post(CHAT, {"messages": HELLO})).json()["usage"]["prompt_tokens"]
    assert counted == used


@pytest.mark.parametrize(
    "body", [{}, {"prompt": None}, {"prompt": "a", "messages": HELLO}, {"prompt": 5}]
)
async def test_tokenize_refuses_what_is_neither_prompt_nor_chat(house, body):
    assert (await house.post("/tokenize", body)).status_code == 400


@pytest.mark.parametrize("tokens", [[-1], [258], ["a"], None, 5])
async def test_detokenize_refuses_ids_outside_the_vocabulary(house, tokens):
    assert (await house.post("/detokenize", {"tokens": tokens})).status_code == 400


# -------------------------------------------------------------------- request ids


@pytest.mark.parametrize("given", ["abc", "A.b_c:d-9", "x" * 128])
async def test_a_valid_request_id_is_echoed(house, given):
    for path in ("/health", "/nope"):
        reply = await house.client.get(path, headers={"x-request-id": given})
        assert reply.headers["x-request-id"] == given


@pytest.mark.parametrize("given", ["", "x" * 129, "with space", "semi;colon", "x" * 30_000])
async def test_another_request_id_is_replaced(house, given):
    reply = await house.client.get("/health", headers={"x-request-id": given})
    assert reply.status_code == 200
    assert reply.headers["x-request-id"].startswith("req-")
    assert len(reply.headers["x-request-id"]) == 36


# -------------------------------------------------------------------- logs


async def test_one_line_a_request_and_no_text(house):
    with structlog.testing.capture_logs() as lines:
        await house.post(
            CHAT,
            {"messages": [{"role": "user", "content": "Secret question"}], "stream": True},
            headers={"x-request-id": "r1"},
        )
        await until(lambda: len(lines) == 1)
        await house.post(COMPLETIONS, {"prompt": "x", "max_tokens": 0})
        await until(lambda: len(lines) == 2)
    served, refused = lines
    assert served["request_id"] == "r1"
    assert served["route"] == CHAT
    assert (served["status"], served["stream"], served["finish_reason"]) == (200, True, "stop")
    assert served["completion_tokens"] == len("Secret answer") + 1
    assert served["ttft_s"] >= served["queue_s"] >= 0
    assert not served["client_disconnected"]
    assert (refused["status"], refused["error"]) == (400, "invalid_value")
    assert "Secret" not in repr(lines)


async def test_no_answer_is_logged_even_at_debug_level(house, caplog):
    with caplog.at_level(logging.DEBUG):
        await house.post(CHAT, {"messages": HELLO, "stream": True, "oddity": "Secret"})
    assert "ignored fields: ['oddity']" in caplog.text
    assert "Secret" not in caplog.text
    assert "delta" not in caplog.text


async def test_a_bug_is_a_500_in_the_usual_shape(house, monkeypatch, caplog):
    def broken():
        raise KeyError("oops")

    monkeypatch.setattr(house.metrics, "render", broken)
    reply = await house.client.get("/metrics")
    assert reply.status_code == 500
    assert reply.json()["error"] == {
        "message": "Internal error.",
        "type": "server_error",
        "param": None,
        "code": "internal_error",
    }
    assert "oops" in caplog.text


# -------------------------------------------------------------------- metrics


def series(text: str) -> set[tuple]:
    return {
        (sample.name, *sorted(sample.labels.items()))
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_metrics_show_what_happened(house):
    reply = await house.post(CHAT, {"messages": HELLO})
    tokens = reply.json()["usage"]["completion_tokens"]
    text = (await house.client.get("/metrics")).text
    assert f"octavo_generated_tokens_total {float(tokens)}" in text
    assert "octavo_time_to_first_token_seconds_count 1.0" in text
    assert f"octavo_inter_token_latency_seconds_count {float(tokens - 1)}" in text
    assert "octavo_queue_time_seconds_count 1.0" in text
    assert "octavo_request_seconds_count 1.0" in text
    assert f'route="{CHAT}",status="200"' in text
    assert 'octavo_kv_blocks{state="total"} 64.0' in text


async def test_clients_cannot_make_the_metrics_grow(house):
    async def noise(number: int) -> None:
        await house.client.get(f"/scan/{number}")
        await house.client.get(f"/v1/models/typo-{number}")
        await house.post(CHAT, {"messages": HELLO, "model": f"m{number}", "user": f"u{number}"})
        await house.client.request(
            ("PROPFIND", "LOCK", "REPORT")[number % 3],
            "/health",
            headers={"x-request-id": f"id-{number}"},
        )

    for number in range(3):
        await noise(number)
    before = series((await house.client.get("/metrics")).text)
    for start in range(100, 200, 10):
        await asyncio.gather(*(noise(number) for number in range(start, start + 10)))
    text = (await house.client.get("/metrics")).text
    assert len(series(text) - before) <= 1  # /metrics itself
    for leak in ("scan", "typo", "u100", "m100", "id-100", "PROPFIND"):
        assert leak not in text


# -------------------------------------------------------------------- overload


@pytest.mark.parametrize("stream", [True, False])
async def test_a_full_house_answers_429_at_once_and_recovers(stream):
    async with serving(max_open=2) as house:
        guests = [
            Submission(house.bridge.next_id(), [1], 1, RowControls(), house.clock.now())
            for _ in range(2)
        ]
        with house.bridge.open(guests[0]), house.bridge.open(guests[1]):
            reply = await house.post(CHAT, {"messages": HELLO, "stream": stream})
            assert reply.status_code == 429
            assert reply.json()["error"]["code"] == "queue_full"
            assert reply.json()["error"]["type"] == "overloaded_error"
            assert 1 <= int(reply.headers["retry-after"]) <= 59
            assert int(reply.headers["retry-after-ms"]) >= 1000
            assert (await house.client.get("/health")).status_code == 200
        await house.probe()


class Flood:
    """A client that announces a large body and sends none of it until it has been answered."""

    def __init__(self, house) -> None:
        self.house = house

    async def answer(self) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.house.port)
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            b"content-length: 1000000\r\n\r\n"
        )
        answer = await asyncio.wait_for(reader.readuntil(b"}}"), 60)
        writer.transport.abort()
        return answer


async def test_a_full_or_draining_house_says_so_before_it_reads_a_body():
    async with serving(max_open=1) as house:
        guest = Submission(house.bridge.next_id(), [1], 1, RowControls(), house.clock.now())
        with house.bridge.open(guest):
            answer = await Flood(house).answer()
            assert b" 429 " in answer
            assert b'"queue_full"' in answer
        house.bridge.drain()
        answer = await Flood(house).answer()
        assert b" 503 " in answer
        assert b'"shutting_down"' in answer


async def test_a_crowd_is_admitted_up_to_the_limit_and_no_further():
    async with serving(max_open=5, rows=2) as house:
        body = {"prompt": "x", "max_tokens": 8}
        replies = await asyncio.gather(*(house.post(COMPLETIONS, body) for _ in range(40)))
        statuses = [reply.status_code for reply in replies]
        assert set(statuses) <= {200, 429}
        assert statuses.count(200) >= 5
        assert house.scheduler.counters.arrived == statuses.count(200)
        await house.probe()
        await house.idle()


async def test_large_prompts_are_read_off_the_event_loop(house, monkeypatch):
    loop_thread = asyncio.get_running_loop()
    seen = []
    encode = house.tokenizer.encode

    def watched(text):
        try:
            seen.append(asyncio.get_running_loop() is loop_thread)
        except RuntimeError:
            seen.append(False)
        return encode(text)

    monkeypatch.setattr(house.tokenizer, "encode", watched)
    filler = {"metadata": {"filler": "x" * 5000}}
    await house.post(COMPLETIONS, {"prompt": "small", "max_tokens": 1})
    await house.post(COMPLETIONS, {"prompt": "large", "max_tokens": 1, **filler})
    await house.post("/tokenize", {"prompt": "large", **filler})
    assert seen == [True, False, False]
