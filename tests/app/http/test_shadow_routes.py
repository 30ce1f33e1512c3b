"""Shadows as admins and dashboards see them, of an engine in real time."""

import asyncio

from support.serving import COMPLETIONS, saying, serving, until

from engine.cost import FittedCost

ADMIN = {"authorization": "Bearer admin"}
POLICIES = {"shortest": {"policy": "shortest-first"}, "shares": {"policy": "fair-share"}}
PATH = "/admin/shadow"


def config(**shadow):
    return {"shadow": {"policies": POLICIES, "least_requests": 3, "seeds": 1} | shadow}


async def test_a_window_is_scored_beside_live_traffic():
    async with serving(
        script=saying("hello"), admin_key="admin", config=config(), cost=FittedCost()
    ) as house:
        body = {"model": "bytes", "prompt": "x", "max_tokens": 6}
        replies = await asyncio.gather(*(house.post(COMPLETIONS, body) for _ in range(8)))
        assert {reply.status_code for reply in replies} == {200}
        await until(lambda: house.bridge.open_requests == 0)
        house.shadow.cut()
        assert house.shadow.skipped is None
        assert (await house.client.get(PATH, headers=ADMIN)).json()["scoring"]
        await house.shadow.scored()
        told = (await house.client.get(PATH, headers=ADMIN)).json()
        assert told["windows"] == 1
        assert told["latest"]["requests"] == 8
        assert told["latest"]["real"]["ttft_s"] > 0
        assert told["latest"]["predicted"]["ttft_s"] > 0
        assert [each["name"] for each in told["policies"]] == ["shortest", "shares"]
        assert [each["fault"] for each in told["policies"]] == [None, None]
        assert (await house.client.get(PATH)).status_code == 401
        live = (await house.client.get("/admin/live", headers=ADMIN)).json()
        assert live["shadow"]["windows"] == 1
        page = (await house.client.get("/metrics")).text
        assert "octavo_shadow_windows 1.0" in page
        assert 'octavo_shadow_score{measure="ttft_s",policy="shortest"}' in page


async def test_without_any_there_is_nothing():
    async with serving(script=saying("hi"), admin_key="admin") as house:
        reply = await house.client.get(PATH, headers=ADMIN)
        assert reply.status_code == 404
        assert "shadow.policies" in reply.json()["error"]["message"]
        live = (await house.client.get("/admin/live", headers=ADMIN)).json()
        assert live["shadow"] is None
        assert "octavo_shadow_windows 0.0" in (await house.client.get("/metrics")).text


async def test_a_server_ends_while_a_window_is_being_scored():
    async with serving(script=saying("hi"), config=config(), cost=FittedCost()) as house:
        body = {"model": "bytes", "prompt": "x", "max_tokens": 6}
        for _ in range(4):
            assert (await house.post(COMPLETIONS, body)).status_code == 200
        house.shadow.cut()
        await until(lambda: house.shadow._scorer.child.pid is not None)
    assert house.shadow._scorer.child.pid is None
