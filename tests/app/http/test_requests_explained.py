"""GET /admin/requests: who waits for what, by any of its names."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager

import pytest
from support.serving import COMPLETIONS, serving, until

BEARER = {"authorization": "Bearer k"}
PATH = "/admin/requests"


async def get(house, path: str = PATH, **params):
    reply = await house.client.get(path, params=params, headers=BEARER)
    assert reply.status_code == 200, reply.text
    return reply.json()


@asynccontextmanager
async def crowd():
    """A house for one request at a time: one runs, two wait. Steps are taken when asked for."""
    turn = threading.Semaphore(0)
    hooks = {step: lambda batch: turn.acquire(timeout=60) for step in range(200)}
    async with serving(admin_key="k", rows=1, hooks=hooks, script=lambda row: 65) as house:
        replies = []
        for number in (1, 2, 3):
            body = {"prompt": "x" * 20, "max_tokens": 8, "priority": number}
            headers = {"x-request-id": f"mine-{number}"}
            replies.append(asyncio.ensure_future(house.post(COMPLETIONS, body, headers=headers)))
            await until(lambda number=number: house.bridge.open_requests == number)

        async def look(path=PATH, **params):
            asking = asyncio.ensure_future(get(house, path, **params))
            await until(lambda: house.thread._inbox.qsize() > 0 or asking.done())
            turn.release()
            return await asking

        turn.release()
        await until(lambda: len(house.backend.batches) == 2)
        yield house, look
        turn.release(1000)
        assert [(await reply).status_code for reply in replies] == [200] * 3
        await house.idle()


async def test_the_list_says_where_each_is_and_what_it_lacks() -> None:
    async with crowd() as (_, look):
        seen = await look()
        assert (seen["running"], seen["waiting"]) == (1, 2)
        first, second, third = seen["requests"]
        assert (first["phase"], first["position"], first["blocked_by"]) == ("decode", None, None)
        assert second["position"] == {
            "flow": "all",
            "place": 1,
            "of": 2,
            "exact": True,
            "lines": 1,
        }
        assert second["blocked_by"] == [{"by": "rows", "needs": 1, "left": 0}]
        assert third["blocked_by"][-1] == {"by": "order", "needs": 1, "left": 0}
        assert [r["request_id"] for r in seen["requests"]] == ["mine-1", "mine-2", "mine-3"]
        assert len((await look(limit=1))["requests"]) == 1


async def test_a_request_is_found_by_each_of_its_names() -> None:
    async with crowd() as (_, look):
        third = (await look())["requests"][2]
        for name in (third["id"], third["reply_id"], "mine-3"):
            seen = await look(f"{PATH}/{name}")
            assert seen["id"] == third["id"]
            assert (seen["policy"], seen["overtaken_by"], seen["overtaken"]) == ("fcfs", [], 0)
            assert seen["explanation"].startswith("requests start in order of arrival")
            assert (seen["lost_tokens"], seen["overtaken_complete"]) == (0, True)
            assert seen["age_s"] > 0


async def test_an_estimate_has_its_interval() -> None:
    async with crowd() as (house, look):
        while house.scheduler.counters.admitted < 2:
            await look()
        start = (await look(f"{PATH}/mine-3"))["start_in_s"]
        assert 0 <= start["low"] <= start["estimate"] <= start["high"]


@pytest.mark.parametrize("name", ["99", "nobody", "chatcmpl-0", "9" * 30, "٣", "x" * 300])
async def test_who_is_not_there_is_a_404(name) -> None:
    async with serving(admin_key="k") as house:
        reply = await house.client.get(f"{PATH}/{name}", headers=BEARER)
        assert (reply.status_code, reply.json()["error"]["code"]) == (404, "request_not_found")


async def test_limits_that_make_no_sense_and_strangers_are_refused() -> None:
    async with serving(admin_key="k") as house:
        for text in ("-1", "201", "x", ""):
            reply = await house.client.get(PATH, params={"limit": text}, headers=BEARER)
            assert (reply.status_code, reply.json()["error"]["param"]) == (400, "limit")
        assert (await house.client.get(PATH)).status_code == 401
        assert (await house.client.get(f"{PATH}/1")).status_code == 401
