"""Tenants and classes over HTTP: what crosses to the engine, and what is refused."""

from __future__ import annotations

import asyncio
import math
import threading

import pytest
import structlog
from support.serving import CHAT, COMPLETIONS, HELLO, serving, until

CONFIG = {
    "classes": {
        "interactive": {"ttft_s": 0.5, "tpot_s": 0.05, "priority": -3},
        "batch": {"queue_timeout_s": 60.0, "max_waiting": 1, "max_running": 1},
    },
    "tenants": {
        "acme": {"keys": ["k1"], "weight": 2.0, "classes": ["interactive"]},
        "small": {"keys": ["k2"], "max_open_requests": 2},
    },
}
K1, K2 = {"authorization": "Bearer k1"}, {"authorization": "Bearer k2"}


class Seen(list):
    """Submissions, as they cross to the engine."""

    def __init__(self, house) -> None:
        post = house.thread.post
        house.thread.post = lambda message: (self.append(message), post(message))


async def submission(body=None, headers=None, **options):
    """What the engine is told of one request."""
    async with serving(config=CONFIG, **options) as house:
        seen = Seen(house)
        body = {"messages": HELLO, "max_tokens": 2, **(body or {})}
        reply = await house.post(CHAT, body, headers=headers or {})
        assert reply.status_code == 200, reply.text
        await house.idle()
        return seen[0]


async def test_a_request_crosses_with_its_tenants_weight_and_its_classs_targets() -> None:
    sent = await submission(headers=K1)
    assert (sent.tenant, sent.weight, sent.slo_class, sent.priority) == (
        "acme",
        2.0,
        "interactive",
        -3,
    )
    assert sent.ttft_deadline == pytest.approx(sent.arrival + 0.5)
    assert (sent.tpot_target, sent.queue_deadline) == (0.05, math.inf)


async def test_a_request_of_nobody_is_the_defaults() -> None:
    sent = await submission()
    assert (sent.tenant, sent.weight, sent.slo_class, sent.priority) == (
        "default",
        1.0,
        "default",
        0,
    )
    assert sent.ttft_deadline == sent.queue_deadline == sent.tpot_target == math.inf


async def test_service_tier_asks_for_a_class_and_a_priority_of_its_own_holds() -> None:
    sent = await submission({"service_tier": "batch", "priority": 7})
    assert (sent.slo_class, sent.priority) == ("batch", 7)
    assert sent.queue_deadline == pytest.approx(sent.arrival + 60)
    assert (await submission({"service_tier": "flex"})).slo_class == "default"


async def test_a_service_tier_that_is_no_word_is_refused() -> None:
    async with serving() as house:
        reply = await house.post(CHAT, {"messages": HELLO, "service_tier": 1})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "service_tier")


async def test_where_a_key_is_required_a_stranger_is_refused_before_the_body_is_read() -> None:
    config = {**CONFIG, "identity": {"require_key": True}}
    async with serving(config=config) as house:
        for path in (CHAT, COMPLETIONS):
            reply = await house.post(path, b"{no json")
            assert (reply.status_code, reply.json()["error"]["code"]) == (401, "invalid_api_key")
            assert reply.headers["www-authenticate"] == "Bearer"
        reply = await house.post(COMPLETIONS, {"prompt": "x", "max_tokens": 1}, headers=K1)
        assert reply.status_code == 200
        await house.idle()


async def test_a_tenant_at_its_quota_is_told_so_and_others_are_served() -> None:
    gate = threading.Event()
    async with serving(config=CONFIG, hooks={0: lambda batch: gate.wait(60)}) as house:
        body = {"prompt": "x", "max_tokens": 4, "ignore_eos": True}
        pair = asyncio.ensure_future(house.post(COMPLETIONS, {**body, "n": 2}, headers=K2))
        await until(lambda: house.bridge.open_requests == 1)
        refused = await house.post(COMPLETIONS, body, headers=K2)
        assert refused.status_code == 429
        assert refused.json()["error"] == {
            "message": "Tenant small holds 2 sequences and takes 2 at most; try again later.",
            "type": "rate_limit_error",
            "param": None,
            "code": "rate_limit_exceeded",
        }
        assert int(refused.headers["retry-after"]) >= 1
        other = asyncio.ensure_future(house.post(COMPLETIONS, body, headers=K1))
        await until(lambda: house.bridge.open_requests == 2)
        gate.set()
        assert (await pair).status_code == (await other).status_code == 200
        again = await house.post(COMPLETIONS, body, headers=K2)
        assert again.status_code == 200
        await house.idle()


async def test_more_answers_than_a_tenant_may_ever_have_open_are_a_bad_request() -> None:
    async with serving(config=CONFIG) as house:
        body = {"prompt": "x", "max_tokens": 1, "n": 3}
        reply = await house.post(COMPLETIONS, body, headers=K2)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "n")


async def test_a_class_takes_as_many_waiting_requests_as_it_may_and_refuses_the_next() -> None:
    gate = threading.Event()
    async with serving(config=CONFIG, hooks={0: lambda batch: gate.wait(60)}) as house:
        body = {"prompt": "x", "max_tokens": 4, "ignore_eos": True, "service_tier": "batch"}
        replies = [asyncio.ensure_future(house.post(COMPLETIONS, body))]
        await until(lambda: len(house.backend.batches) == 1)
        for open_requests in (2, 3):
            replies.append(asyncio.ensure_future(house.post(COMPLETIONS, body)))
            await until(
                lambda open_requests=open_requests: house.bridge.open_requests == open_requests
            )
        gate.set()
        codes = [(await reply).status_code for reply in replies]
        assert codes == [200, 200, 429]
        refused = replies[-1].result()
        assert refused.json()["error"]["code"] == "queue_full"
        await house.idle()


async def cached_tokens(**options) -> int:
    """Prompt tokens of one tenant that were found cached after another sent the same."""
    async with serving(config=CONFIG, **options) as house:
        body = {"prompt": "x" * 40, "max_tokens": 1}
        for headers in (K1, K2):
            reply = await house.post(COMPLETIONS, body, headers=headers)
        await house.idle()
        return reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


async def test_tenants_share_cached_prefixes_unless_they_are_isolated() -> None:
    assert await cached_tokens() == 32
    assert await cached_tokens(isolate_tenants=True) == 0


async def test_the_log_line_names_tenant_and_class_and_no_key() -> None:
    async with serving(config=CONFIG) as house:
        with structlog.testing.capture_logs() as lines:
            await house.post(COMPLETIONS, {"prompt": "x", "max_tokens": 1}, headers=K1)
            await until(lambda: lines)
        (line,) = lines
        assert (line["tenant"], line["slo_class"]) == ("acme", "interactive")
        assert "k1" not in repr(lines)
        await house.idle()
