"""Pages of other origins: none may ask, but those of server.cors_origins."""

from __future__ import annotations

import pytest
from support.serving import CHAT, HELLO, serving

PAGE, OTHER = "https://chat.example.com", "https://evil.example.com"
KEYS = {"tenants": {"acme": {"keys": ["k1"]}}, "identity": {"require_key": True}}
ASKS = {
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type,x-stainless-os",
}


def config(*origins: str):
    return {**KEYS, "server": {"cors_origins": list(origins)}}


async def ask(house, origin: str):
    return await house.client.options(CHAT, headers={"origin": origin, **ASKS})


async def test_by_default_no_page_may_ask() -> None:
    async with serving() as house:
        refused = await ask(house, PAGE)
        assert refused.status_code == 405
        reply = await house.post(CHAT, {"messages": HELLO}, headers={"origin": PAGE})
        for each in (refused, reply):
            assert not [name for name in each.headers if name.startswith("access-control")]
        await house.idle()


@pytest.mark.parametrize("origins", [[PAGE], ["*"]])
async def test_a_page_that_may_asks_without_a_key_and_posts_with_one(origins) -> None:
    async with serving(config=config(*origins)) as house:
        asked = await ask(house, PAGE)
        assert asked.status_code == 200
        assert asked.headers["access-control-allow-origin"] in (PAGE, "*")
        assert "x-stainless-os" in asked.headers["access-control-allow-headers"]
        assert "access-control-allow-credentials" not in asked.headers
        headers = {"origin": PAGE, "authorization": "Bearer k1"}
        body = {"messages": HELLO, "max_tokens": 1}
        for given, status in ((headers, 200), ({"origin": PAGE}, 401)):
            reply = await house.post(CHAT, body, headers=given)
            assert reply.status_code == status
            assert reply.headers["access-control-allow-origin"] in (PAGE, "*")
            assert "retry-after" in reply.headers["access-control-expose-headers"]
        await house.idle()


async def test_other_pages_are_not_let_in() -> None:
    async with serving(config=config(PAGE)) as house:
        asked = await ask(house, OTHER)
        assert asked.status_code == 400
        assert "access-control-allow-origin" not in asked.headers
