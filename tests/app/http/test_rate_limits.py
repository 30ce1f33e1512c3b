"""What a tenant may use in a minute: told in headers, refused with a time, refunded at the end."""

import asyncio
import threading

import pytest
from support.serving import CHAT, COMPLETIONS, HELLO, saying, serving, until

from engine.clock import VirtualClock
from engine.errors import RowFault

ACME = {"authorization": "Bearer acme-key"}


def config(**rate):
    return {"tenants": {"acme": {"keys": ["acme-key"], **rate}}}


def prompt(tokens: int, **fields):
    return {"prompt": "x" * tokens, **fields}


async def left(house) -> tuple[float, float]:
    """Requests and tokens that are left of the budget, once nobody is open."""
    await until(lambda: house.bridge.open_requests == 0)
    budget = house.tenancy._budgets["acme"]
    return tuple(bucket.level(house.clock.now()) for _, bucket in sorted(budget._buckets.items()))


def limited(rpm: int = 60, tpm: int = 600, **options):
    rate = {"requests_per_minute": rpm, "tokens_per_minute": tpm}
    return serving(clock=VirtualClock(), config=config(**rate), **options)


@pytest.mark.parametrize("stream", [True, False])
async def test_headers_tell_what_is_left_and_the_end_gives_the_rest_back(stream) -> None:
    async with limited(script=saying("abc")) as house:
        body = prompt(10, max_tokens=100, stream=stream)
        reply = await house.post(COMPLETIONS, body, headers=ACME)
        assert reply.status_code == 200
        told = {
            name.removeprefix("x-ratelimit-"): value
            for name, value in reply.headers.items()
            if name.startswith("x-ratelimit-")
        }
        assert told == {
            "limit-requests": "60",
            "remaining-requests": "59",
            "reset-requests": "1s",
            "limit-tokens": "600",
            "remaining-tokens": "490",
            "reset-tokens": "11s",
        }
        assert await left(house) == (59, 600 - 10 - 4)  # three letters and the end
        other = await house.post(COMPLETIONS, body)
        assert not [name for name in other.headers if name.startswith("x-ratelimit-")]


async def test_who_has_used_it_up_is_told_when_it_fits_and_then_it_does() -> None:
    async with limited(script=lambda row: 97) as house:
        body = prompt(100, max_tokens=100)
        for _ in range(3):
            assert (await house.post(COMPLETIONS, body, headers=ACME)).status_code == 200
        assert await left(house) == (57, 0)
        refused = await house.post(COMPLETIONS, body, headers=ACME)
        error = refused.json()["error"]
        assert refused.status_code == 429
        assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
        assert "0 tokens left of 600 and this needs 200; try again in 20s" in error["message"]
        assert refused.headers["retry-after"] == "20"
        assert refused.headers["x-ratelimit-remaining-tokens"] == "0"
        assert refused.headers["x-ratelimit-reset-tokens"] == "1m0s"
        assert (await house.post(COMPLETIONS, body)).status_code == 200, "another tenant"
        house.clock.advance(20)
        assert (await house.post(COMPLETIONS, body, headers=ACME)).status_code == 200
        page = (await house.client.get("/metrics")).text
        key = 'octavo_requests_turned_away_total{limit="tenants.tokens_per_minute"}'
        assert f"{key} 1.0" in page


async def test_requests_are_counted_too_and_refused_before_a_body_is_read() -> None:
    async with limited(rpm=2) as house:
        body = prompt(1, max_tokens=1)
        for _ in range(2):
            assert (await house.post(COMPLETIONS, body, headers=ACME)).status_code == 200
        refused = await house.post(COMPLETIONS, b"this is no JSON", headers=ACME)
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "30"
        assert (await house.client.get("/v1/models", headers=ACME)).status_code == 200


async def test_what_never_fits_is_the_clients_fault_and_costs_nothing() -> None:
    async with limited(tpm=200) as house:
        for body in (prompt(100, max_tokens=101), prompt(10, max_tokens=64, n=3)):
            refused = await house.post(COMPLETIONS, body, headers=ACME)
            error = refused.json()["error"]
            assert (refused.status_code, error["code"]) == (400, "larger_than_quota")
            assert error["param"] == "max_tokens"
            assert "retry-after" not in refused.headers
        assert await left(house) == (60, 200)


async def test_an_answer_without_a_limit_is_charged_as_assumed_and_settled_as_it_was() -> None:
    rate = {"tokens_per_minute": 600, "assumed_tokens": 8}
    answer = "a" * 50
    async with serving(clock=VirtualClock(), config=config(**rate), script=saying(answer)) as house:
        reply = await house.post(CHAT, {"messages": HELLO}, headers=ACME)
        usage = reply.json()["usage"]
        assert usage["completion_tokens"] == 51
        remaining = 600 - usage["prompt_tokens"] - 8
        assert reply.headers["x-ratelimit-remaining-tokens"] == str(remaining)
        assert await left(house) == (600 - usage["total_tokens"],)


async def test_several_answers_are_charged_each_and_a_stop_string_ends_the_bill() -> None:
    async with limited(script=saying("one. two. three.")) as house:
        body = prompt(10, max_tokens=50, n=3, stop=". t")
        reply = await house.post(COMPLETIONS, body, headers=ACME)
        assert reply.headers["x-ratelimit-remaining-tokens"] == str(600 - 10 - 150)
        assert await left(house) == (59, 600 - reply.json()["usage"]["total_tokens"])


async def test_who_leaves_in_the_queue_gets_its_tokens_back_and_midway_what_is_left() -> None:
    gate = threading.Event()
    hooks = {4: lambda batch: gate.wait(60)}
    async with limited(rows=1, hooks=hooks, script=lambda row: 97) as house:
        body = prompt(10, max_tokens=200, stream=True)
        async with house.client.stream("POST", COMPLETIONS, json=body, headers=ACME) as reply:
            lines = reply.aiter_lines()
            for _ in range(7):  # an empty line behind each event: four tokens
                await anext(lines)
            queued = asyncio.create_task(house.post(COMPLETIONS, body, headers=ACME))
            await until(lambda: house.bridge.open_requests == 2)
            queued.cancel()
            await until(lambda: house.bridge.open_requests == 1)
            budget = house.tenancy._budgets["acme"]
            assert dict(budget.headers())["x-ratelimit-remaining-tokens"] == str(600 - 210)
        await until(lambda: house.bridge.open_requests == 0)
        gate.set()
        assert await left(house) == (58, 600 - 10 - 4)
        await house.idle()


async def test_who_is_refused_later_or_fails_at_once_gets_all_of_it_back() -> None:
    def fault(batch) -> None:
        raise RowFault([0], "broken")

    settings = config(requests_per_minute=60, tokens_per_minute=600)
    settings["classes"] = {"default": {"queue_timeout_s": 1.0}}
    gate = threading.Event()
    hooks = {0: fault, 1: lambda batch: gate.wait(60)}
    async with serving(clock=VirtualClock(), config=settings, rows=1, hooks=hooks) as house:
        body = prompt(10, max_tokens=100)
        assert (await house.post(COMPLETIONS, body, headers=ACME)).status_code == 500
        assert await left(house) == (60, 600)
        running = asyncio.create_task(house.post(COMPLETIONS, body))
        await until(lambda: house.bridge.open_requests == 1)
        late = asyncio.create_task(house.post(COMPLETIONS, body, headers=ACME))
        await until(lambda: house.bridge.open_requests == 2)
        house.clock.advance(2)
        gate.set()
        assert (await late).status_code == 503
        assert (await running).status_code == 200
        assert await left(house) == (60, 600)


async def test_a_full_house_charges_nothing() -> None:
    gate = threading.Event()
    hooks = {0: lambda batch: gate.wait(60)}
    async with limited(hooks=hooks, max_waiting=1) as house:
        body = prompt(10, max_tokens=10)
        running = asyncio.create_task(house.post(COMPLETIONS, body))
        await until(lambda: house.bridge.open_requests == 1)
        refused = await house.post(COMPLETIONS, body, headers=ACME)
        assert refused.json()["error"]["code"] == "queue_full"
        assert refused.headers["x-ratelimit-remaining-tokens"] == "600"
        gate.set()
        assert (await running).status_code == 200


async def test_a_reload_keeps_what_is_left() -> None:
    async with limited(script=lambda row: 97) as house:
        body = prompt(100, max_tokens=100)
        assert (await house.post(COMPLETIONS, body, headers=ACME)).status_code == 200
        assert await left(house) == (59, 400)
        more = config(requests_per_minute=60, tokens_per_minute=6000)
        house.tenancy.adopt(house.config.model_validate(more))
        reply = await house.post(COMPLETIONS, body, headers=ACME)
        assert reply.headers["x-ratelimit-limit-tokens"] == "6000"
        assert reply.headers["x-ratelimit-remaining-tokens"] == "200"
