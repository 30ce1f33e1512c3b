"""The admin routes: closed without the key, and what they show with it."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager

import pytest
import structlog
from support.serving import COMPLETIONS, serving, until

from app import bridge
from app.bridge import NotReady
from engine.backends.scripted import stall_until

KEY = "k3y-with_all.of~it+/=="
BLOCKS = "/admin/blocks"
BEARER = {"authorization": f"Bearer {KEY}"}


@pytest.fixture
async def house():
    async with serving(admin_key=KEY) as house:
        yield house


# -------------------------------------------------------------------- the door


@pytest.mark.parametrize("path", [BLOCKS, "/admin", "/admin/", "/admin/nothing"])
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
async def test_without_a_key_in_the_configuration_there_is_no_admin_route(path, method) -> None:
    async with serving() as house:
        reply = await house.client.request(method, path, headers=BEARER)
        assert reply.status_code == 404
        assert reply.json()["error"] == {
            "message": f"{method} {path}: Not Found.",
            "type": "invalid_request_error",
            "param": None,
            "code": "not_found",
        }


@pytest.mark.parametrize("path", [BLOCKS, "/admin/", "/admin/nothing"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "OPTIONS", "DELETE"])
async def test_nothing_below_admin_answers_without_the_key(house, path, method) -> None:
    reply = await house.client.request(method, path)
    assert reply.status_code == 401
    assert reply.headers["www-authenticate"] == "Bearer"
    if method != "HEAD":
        error = reply.json()["error"]
        assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")


@pytest.mark.parametrize(
    "value",
    [
        "",
        "Bearer",
        KEY,
        f"Bearer{KEY}",
        f"Basic {KEY}",
        f"Bearer {KEY}x",
        f"Bearer {KEY[:-1]}",
        f"Bearer Bearer {KEY}",
        "Bearer k\xe9",
    ],
)
async def test_a_wrong_key_is_refused(house, value) -> None:
    headers = {"authorization": value.encode("latin-1")}
    assert (await house.client.get(BLOCKS, headers=headers)).status_code == 401


async def test_the_key_counts_in_one_header_only(house) -> None:
    twice = [("authorization", f"Bearer {KEY}"), ("authorization", f"Bearer {KEY}")]
    assert (await house.client.get(BLOCKS, headers=twice)).status_code == 401
    assert (await house.client.get(f"{BLOCKS}?key={KEY}")).status_code == 401


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "Bearer "])
async def test_the_right_key_opens_whatever_the_case_of_the_scheme(house, scheme) -> None:
    headers = {"authorization": f"{scheme} {KEY}"}
    assert (await house.client.get(BLOCKS, headers=headers)).status_code == 200


async def test_behind_the_door_errors_have_the_usual_shape(house) -> None:
    nothing = await house.client.get("/admin/nothing", headers=BEARER)
    assert (nothing.status_code, nothing.json()["error"]["code"]) == (404, "not_found")
    wrong = await house.client.post(BLOCKS, headers=BEARER)
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")
    for text in ("-1", "1001", "x", "", "٣"):
        reply = await house.client.get(BLOCKS, params={"requests": text}, headers=BEARER)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "requests")


async def test_the_ordinary_routes_want_no_admin_key_and_do_not_suggest_its_routes(house) -> None:
    await house.probe()
    reply = await house.client.get("/admin_blocks")
    assert "admin/" not in reply.json()["error"]["message"]


async def test_logs_and_metrics_tell_the_whole_route_and_never_the_key(house) -> None:
    with structlog.testing.capture_logs() as lines:
        await house.client.get(BLOCKS, headers=BEARER)
        await house.client.get(BLOCKS, headers={"authorization": f"Bearer {KEY}x"})
        await until(lambda: len(lines) == 2)
    assert [line["route"] for line in lines] == [BLOCKS, "/admin"]
    assert [line["log_level"] for line in lines] == ["debug", "info"]
    text = (await house.client.get("/metrics")).text
    assert f'"{BLOCKS}"' in text
    assert KEY not in text + repr(lines)


# -------------------------------------------------------------------- blocks


async def blocks(house, **params):
    reply = await house.client.get(BLOCKS, params=params, headers=BEARER)
    assert reply.status_code == 200, reply.text
    return reply.json()


async def test_an_empty_pool_is_free(house) -> None:
    seen = await blocks(house)
    assert (seen["total"], seen["block_size"], seen["free"]) == (64, 16, 64)
    assert seen["blocks"] == [{"state": "free"}] * 64
    assert seen["requests"] == []


async def test_what_a_prompt_left_behind_is_cached(house) -> None:
    await house.post(COMPLETIONS, {"prompt": "x" * 40, "max_tokens": 1})
    await house.idle()
    seen = await blocks(house)
    assert (seen["free"], seen["cached"], seen["owned"]) == (62, 2, 0)
    assert [b["state"] for b in seen["blocks"]].count("cached") == 2


@asynccontextmanager
async def running(**body):
    """A house with one request, held in its third step until somebody has asked for a look."""
    gate = threading.Event()
    hooks = {2: stall_until(lambda: gate.wait(60))}
    async with serving(admin_key=KEY, hooks=hooks) as house:

        async def look(**params):
            await until(lambda: len(house.backend.batches) == 3)
            asking = asyncio.ensure_future(blocks(house, **params))
            await until(lambda: house.thread._inbox.qsize() > 0)
            gate.set()
            return await asking

        body = {"stream": True, "max_tokens": 8, **body}
        headers = {"x-request-id": "mine"}
        async with house.client.stream("POST", COMPLETIONS, json=body, headers=headers) as reply:
            assert reply.status_code == 200
            yield look
        await house.idle()


async def test_owners_are_named_by_request_and_sequence() -> None:
    """Two answers to one prompt: they share its full blocks, and own their tails."""
    async with running(prompt="x" * 40, n=2) as look:
        seen = await look()
    (request,) = seen["requests"]
    assert request["request_id"] == "mine"
    assert request["reply_id"].startswith("cmpl-")
    assert (request["tenant"], request["class"]) == ("default", "default")
    assert (request["prompt_tokens"], request["phase"]) == (40, "decode")
    assert request["generated_tokens"] >= 1
    owned = [block for block in seen["blocks"] if block["state"] == "owned"]
    first, second = [request["id"], 0], [request["id"], 1]
    assert sorted(block["sequences"] for block in owned) == [
        [first],
        [first, second],
        [first, second],
        [second],
    ]
    assert (seen["owned"], seen["shared"], seen["free"], seen["cached"]) == (4, 2, 60, 0)
    assert request["blocks"] == [3, 3]


async def test_blocks_of_requests_that_are_not_listed_are_still_owned() -> None:
    async with running(prompt="x" * 20) as look:
        seen = await look(requests=0)
    assert (seen["requests"], seen["running"]) == ([], 1)
    owned = [block for block in seen["blocks"] if block["state"] == "owned"]
    assert owned == [{"state": "owned", "owners": 1, "sequences": []}] * 2


# -------------------------------------------------------------------- an engine that is silent


async def test_an_engine_that_does_not_answer_in_time_is_a_503(monkeypatch) -> None:
    monkeypatch.setattr(bridge, "INSPECTION_S", 0.05)
    gate = threading.Event()
    async with serving(admin_key=KEY, hooks={1: stall_until(lambda: gate.wait(60))}) as house:
        body = {"prompt": "x", "max_tokens": 4, "stream": True}
        async with house.client.stream("POST", COMPLETIONS, json=body):
            await until(lambda: len(house.backend.batches) == 2)
            reply = await house.client.get(BLOCKS, headers=BEARER)
            gate.set()
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "not_ready")
        assert int(reply.headers["retry-after"]) >= 1
        await house.idle()


async def test_while_the_house_drains_it_can_still_be_looked_into_and_not_after() -> None:
    async with serving(admin_key=KEY) as house:
        house.bridge.drain()
        assert (await blocks(house))["total"] == 64
        await house.bridge.stop(grace=0)
        reply = await house.client.get(BLOCKS, headers=BEARER)
        assert reply.status_code == 503
        with pytest.raises(NotReady):
            await house.bridge.inspect(1)
