"""A queue with an end, and an event loop that never waits for work."""

from __future__ import annotations

import asyncio
import json
import threading

import orjson
import pytest
from support.answers import gauge
from support.serving import CHAT, COMPLETIONS, HELLO, chunks, serving, until
from support.sockets import held_at

from app.text.template import ChatTemplate

# ── B56 ───────────────────────────────────────────────────────────────────────────────────────

ROWS, QUEUE = 2, 8
ROOM = ROWS + QUEUE


async def test_b56_two_hundred_at_once_are_let_in_up_to_the_limit_and_the_others_told() -> None:
    """Streamed and not, some for four answers, which take four places."""
    gate, hooks = held_at(0)
    async with serving(rows=4, max_open=ROOM, hooks=hooks) as house:
        refused = 0
        most = 0

        async def client(number: int) -> tuple[int, int]:
            nonlocal refused, most
            n = 4 if number % 5 == 0 else 1
            body = {"prompt": "x", "max_tokens": 3, "n": n, "stream": number % 2 == 0}
            reply = await house.post(COMPLETIONS, body)
            if reply.status_code == 200:
                if number % 2 == 0:
                    assert b"event: error" not in reply.content
                    ends = [c["choices"][0]["finish_reason"] for c in chunks(reply.content)]
                    assert ends.count("length") == n
                return n, 200
            assert reply.status_code in (429, 503)
            assert reply.headers["content-type"] == "application/json"
            assert reply.json()["error"]["code"] == "queue_full"
            assert int(reply.headers["retry-after"]) > 0
            refused += 1
            most = max(most, house.bridge.open_requests)
            return n, reply.status_code

        clients = [asyncio.create_task(client(number)) for number in range(200)]
        await until(lambda: house.bridge.open_requests + refused == 200)
        # All that are refused know it while nobody has been served yet.
        assert refused >= 200 - ROOM
        assert most <= ROOM
        probes = [await house.client.get(path) for path in ("/health", "/health/live", "/load")]
        assert [probe.status_code for probe in probes] == [200] * 3
        assert (await house.client.get("/health/ready")).status_code == 503
        gate.set()
        results = await asyncio.gather(*clients)
        taken = sum(n for n, status in results if status == 200)
        assert ROOM - 3 <= taken <= ROOM, "sequences, not requests; no overshoot"
        await house.idle()
        assert house.scheduler.counters.arrived == 200 - refused
        page = (await house.client.get("/metrics")).text
        assert gauge(page, 'octavo_requests_rejected_total{reason="queue_full"}') == refused
        assert (await house.client.get("/health/ready")).status_code == 200
        await asyncio.gather(*(client(number) for number in range(1, ROOM) if number % 5))


async def test_b56_overload_that_goes_on_lets_in_whoever_finds_room_and_breaks_no_stream() -> None:
    """Twice as many clients as there is room for, each of whom comes again and again."""
    async with serving(rows=ROWS, max_open=ROOM, script=lambda row: 65) as house:
        served = 0

        async def client(number: int) -> None:
            nonlocal served
            for turn in range(10):
                body = {"prompt": "x", "max_tokens": 5, "stream": turn % 2 == 0}
                reply = await house.post(COMPLETIONS, body)
                assert house.bridge.open_requests <= ROOM
                assert reply.status_code in (200, 429)
                assert b"event: error" not in reply.content
                served += reply.status_code == 200

        await asyncio.gather(*(client(number) for number in range(2 * ROOM)))
        await house.idle()
        counters = house.scheduler.counters
        assert counters.finished == counters.arrived == served > 0
        await house.probe()


# ── B58 ───────────────────────────────────────────────────────────────────────────────────────

LARGE = "word " * 40_000
"""200 kB, in a context that takes it."""


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, "/tokenize"])
async def test_b58_while_large_prompts_are_tokenised_the_loop_is_free(path, monkeypatch) -> None:
    """Twenty at once, held in the tokenizer; a stream and the probes go on meanwhile."""
    gate = threading.Event()
    at_work: list[int] = []
    lock = threading.Lock()
    async with serving(
        model_len=1 << 20, blocks=1 << 16, max_body_bytes=8 << 20, workers=2, max_open=100
    ) as house:
        encode = house.tokenizer.encode

        def slow(text: str, **options: object) -> list[int]:
            if len(text) > 10_000:
                with lock:
                    at_work.append(threading.get_ident())
                assert gate.wait(60)
            return encode(text, **options)

        monkeypatch.setattr(house.tokenizer, "encode", slow)
        source = {"prompt": LARGE} if path != CHAT else talk(LARGE)
        body = json.dumps({**source, "max_tokens": 1}).encode()
        large = [asyncio.ensure_future(house.post(path, body)) for _ in range(20)]
        await until(lambda: len(at_work) == 2)
        for _ in range(5):
            assert (await house.client.get("/health")).status_code == 200
            assert (await house.client.get("/metrics")).status_code == 200
        stream = {"prompt": "x", "max_tokens": 50, "stream": True}
        said = chunks((await house.post(COMPLETIONS, stream)).content)
        assert "".join(chunk["choices"][0]["text"] for chunk in said) == "x" * 50
        assert len(at_work) == len(set(at_work)) == 2, "as many as there are workers"
        assert threading.get_ident() not in at_work
        for task in large:  # nobody needs them
            task.cancel()
        gate.set()
        await house.idle()


def talk(text: str) -> dict:
    return {"messages": [{"role": "user", "content": text}]}


async def test_b58_large_bodies_are_parsed_and_templated_off_the_loop(monkeypatch) -> None:
    threads: dict[str, set[int]] = {"parsed": set(), "rendered": set()}
    loads, render = orjson.loads, ChatTemplate.render

    def parsing(body: bytes) -> object:
        if len(body) > 100_000:
            threads["parsed"].add(threading.get_ident())
        return loads(body)

    def rendering(self, messages, **options):
        threads["rendered"].add(threading.get_ident())
        return render(self, messages, **options)

    monkeypatch.setattr(orjson, "loads", parsing)
    monkeypatch.setattr(ChatTemplate, "render", rendering)
    async with serving(max_body_bytes=8 << 20) as house:
        for path, body in (
            (CHAT, talk(LARGE)),
            (COMPLETIONS, {"prompt": LARGE}),
            (COMPLETIONS, {"prompt": [1] * 100_000}),
            ("/v1/responses", {"input": LARGE}),
            ("/tokenize", talk(LARGE)),
            ("/detokenize", {"tokens": [1] * 100_000}),
        ):
            reply = await house.post(path, body)
            assert reply.status_code == (200 if path == "/detokenize" else 400)
        await house.idle()
    assert threads["parsed"]
    assert threads["rendered"]
    assert threading.get_ident() not in threads["parsed"] | threads["rendered"]


async def test_b58_a_prompt_that_is_far_too_long_is_refused_without_being_tokenised(
    monkeypatch,
) -> None:
    def never(text: str, **options: object) -> list[int]:
        raise AssertionError("it was tokenised")

    async with serving(max_body_bytes=8 << 20) as house:
        with monkeypatch.context() as patch:
            patch.setattr(house.tokenizer, "encode", never)
            for path, body in (
                (COMPLETIONS, {"prompt": "x" * 5_000_000}),
                (CHAT, talk("x" * 5_000_000)),
                (CHAT, {"messages": HELLO * 500}),
                ("/tokenize", {"prompt": "x" * 5_000_000}),
            ):
                error = (await house.post(path, body)).json()["error"]
                assert error["code"] == "context_length_exceeded"
                assert len(error["message"]) < 300
        await house.probe()
