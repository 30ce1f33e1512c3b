"""GET /admin/live: what the page shows of the engine, made once for all who look."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager

import pytest
from support.serving import COMPLETIONS, serving, until

from app import bridge
from app.live import view
from engine.backends.scripted import stall_until
from engine.inbox import Explain, Inspect

KEY = "k"
BEARER = {"authorization": f"Bearer {KEY}"}
PATH = "/admin/live"
SECRET = "the-words-of-a-prompt "


async def live(house):
    reply = await house.client.get(PATH, headers=BEARER)
    assert reply.status_code == 200, reply.text
    return reply.json()


def asks(house) -> list:
    """Notes what the engine is asked from now on."""
    asked, post = [], house.thread.post

    def noted(message) -> None:
        asked.append(message)
        post(message)

    house.thread.post = noted
    return asked


@asynccontextmanager
async def crowded(looked: threading.Event | None = None, **options):
    """A house with one row, which a request holds in its third step, and others wait for it.

    looked: what its fourth step waits for.
    """
    gate = threading.Event()
    hooks = {2: stall_until(lambda: gate.wait(60))}
    if looked is not None:
        hooks[3] = stall_until(lambda: looked.wait(60))
    async with serving(admin_key=KEY, rows=1, hooks=hooks, **options) as house:
        body = {"prompt": SECRET * 2, "max_tokens": 8}
        running = asyncio.ensure_future(house.post(COMPLETIONS, body))
        await until(lambda: len(house.backend.batches) == 3)
        headers = {"x-request-id": "mine"}
        waiting = [
            asyncio.ensure_future(house.post(COMPLETIONS, body, headers=headers)) for _ in range(2)
        ]
        await until(lambda: house.bridge.open_requests == 3)
        try:
            yield house, gate
        finally:
            gate.set()
            await asyncio.gather(running, *waiting)
            await house.idle()


async def test_it_needs_the_admin_key() -> None:
    async with serving(admin_key=KEY) as house:
        assert (await house.client.get(PATH)).status_code == 401
        reply = await house.client.get(PATH, headers=BEARER)
        assert reply.headers["cache-control"] == "no-store"
    async with serving() as house:
        assert (await house.client.get(PATH, headers=BEARER)).status_code == 404


async def test_who_runs_who_waits_and_what_for_without_what_was_asked() -> None:
    looked = threading.Event()
    async with crowded(looked) as (house, gate):
        asking = asyncio.ensure_future(house.client.get(PATH, headers=BEARER))
        await until(lambda: house.thread._inbox.qsize() >= 4)
        gate.set()
        reply = await asking
        looked.set()  # not before: who has been answered has no name any more
    assert SECRET.strip() not in reply.text
    seen = reply.json()
    running, *waiting = seen["requests"]
    assert (seen["running"], seen["waiting"], len(waiting)) == (1, 2, 2)
    assert running["blocked_by"] is None
    assert {each["request_id"] for each in waiting} == {"mine"}
    assert waiting[0]["blocked_by"][0]["by"] == "rows"
    assert waiting[1]["blocked_by"][1] == {"by": "order", "needs": 1, "left": 0}
    assert seen["policy"]["policy"] == "fcfs"
    blocks = seen["blocks"]
    assert blocks["owners"] == [each["id"] for each in seen["requests"]]
    assert sum(blocks["cells"][1::2]) == blocks["total"] == 64
    assert blocks["cells"][:2] == [4, sum(running["blocks"])]
    assert seen["steps"]["prompt_tokens"][0] == len(SECRET * 2)
    assert seen["steps"]["decode_tokens"][1] == 1


async def test_however_many_look_the_engine_is_asked_once() -> None:
    async with serving(admin_key=KEY) as house:
        asked = asks(house)
        replies = await asyncio.gather(*(house.client.get(PATH, headers=BEARER) for _ in range(40)))
        assert len({reply.content for reply in replies}) == 1
        assert [type(message) for message in asked] == [Inspect, Explain]


async def test_half_a_second_later_it_is_asked_again(monkeypatch) -> None:
    async with serving(admin_key=KEY) as house:
        asked = asks(house)
        monkeypatch.setattr(view, "FRESH_S", 600)
        await live(house)
        await live(house)
        assert len(asked) == 2
        monkeypatch.setattr(view, "FRESH_S", 0)
        await live(house)
        assert len(asked) == 4


async def test_without_viewers_the_engine_is_asked_nothing() -> None:
    async with serving(admin_key=KEY) as house:
        asked = asks(house)
        await house.probe()
        assert not [message for message in asked if isinstance(message, Inspect | Explain)]
        assert (await live(house))["steps"]["last"] > 0


async def test_no_more_than_the_first_hundred_requests_are_shown(monkeypatch) -> None:
    monkeypatch.setattr(view, "REQUESTS", 2)
    async with crowded() as (house, gate):
        asking = asyncio.ensure_future(live(house))
        await until(lambda: house.thread._inbox.qsize() >= 4)
        gate.set()
        seen = await asking
        assert (seen["running"] + seen["waiting"], len(seen["requests"])) == (3, 2)


async def test_an_engine_that_does_not_answer_is_a_503_for_everybody_who_looks(monkeypatch) -> None:
    monkeypatch.setattr(bridge, "INSPECTION_S", 0.05)
    async with crowded() as (house, gate):
        looks = (house.client.get(PATH, headers=BEARER) for _ in range(3))
        replies = await asyncio.gather(*looks)
        assert [reply.status_code for reply in replies] == [503] * 3
        monkeypatch.setattr(bridge, "INSPECTION_S", 60.0)
        gate.set()
        await live(house)


async def test_a_viewer_that_leaves_takes_nothing_from_the_others() -> None:
    async with crowded() as (house, gate):
        leaves = asyncio.ensure_future(house.client.get(PATH, headers=BEARER))
        await until(lambda: house.thread._inbox.qsize() >= 4)
        stays = asyncio.ensure_future(live(house))
        leaves.cancel()
        gate.set()
        assert (await stays)["model"] == house.service.model_id


@pytest.mark.parametrize("params", [{"tokens_per_s": 12.5}, {}])
async def test_it_says_which_policy_is_in_charge(params) -> None:
    async with serving(admin_key=KEY) as house:
        wanted = {"policy": "shortest-first", "params": params}
        assert (await house.post("/admin/policy", wanted, headers=BEARER)).status_code == 200
        seen = (await live(house))["policy"]
        assert (seen["policy"], seen["params"]) == ("shortest-first", params)
