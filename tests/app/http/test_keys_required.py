"""identity.require_key: nothing but the probes and the page answers without a tenant's key."""

from __future__ import annotations

import pytest
from starlette.datastructures import Headers
from starlette.routing import Mount
from support.serving import CHAT, COMPLETIONS, HELLO, House, serving

from app.config import Config
from app.tenant_door import OPEN

ADMIN = "the-admins"
CONFIG = {
    "tenants": {"acme": {"keys": ["k1"]}, "odd": {"keys": ["Bearer"]}},
    "identity": {"require_key": True},
}
K1 = {"authorization": "Bearer k1"}
METHODS = ("GET", "HEAD", "POST", "OPTIONS", "DELETE", "PROPFIND")


@pytest.fixture
async def house():
    async with serving(config=CONFIG, admin_key=ADMIN) as house:
        yield house


def paths(house: House) -> list[str]:
    """Every path that there is, with an id where one belongs."""
    found = []
    for route in house.application.routes:
        inner = route.routes if isinstance(route, Mount) else [None]
        found += [route.path + (each.path if each else "") for each in inner]
    return [path.replace("{id:path}", "x").replace("{id}", "x") for path in found]


def refused(reply, method: str) -> bool:
    assert reply.status_code == 401, (reply.request.url, method, reply.status_code)
    assert reply.headers["www-authenticate"] == "Bearer"
    assert reply.headers["x-request-id"]
    if method != "HEAD":
        error = reply.json()["error"]
        assert error.keys() == {"message", "type", "param", "code"}
        assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")
    return True


@pytest.mark.parametrize("method", METHODS)
async def test_every_route_but_those_that_are_open_is_closed_and_so_is_what_is_no_route(
    house, method
):
    odd = (
        "/nothing",
        "/page",
        "/page/",
        "/page/page.css/",
        "//v1/models",
        "/V1/models",
        "/v1/models/",
        "/health/",
        "/docs",
        "/admin",
    )
    closed = [path for path in (*paths(house), *odd) if path not in OPEN]
    assert {CHAT, "/tokenize", "/metrics", "/openapi.json", "/admin/policy"} <= set(closed)
    for path in closed:
        assert refused(await house.client.request(method, house.url + path), method)
        assert refused(await house.client.request(method, f"{house.url}{path}?key=k1"), method)


async def test_the_probes_and_the_page_answer_anybody(house) -> None:
    assert set(paths(house)) > OPEN
    for path in OPEN:
        assert (await house.client.get(path)).status_code == 200


@pytest.mark.parametrize(
    "values",
    [
        [""],
        ["Bearer"],
        ["k1"],
        ["Bearerk1"],
        ["Basic k1"],
        ["Bearer k1x"],
        ["Bearer k\xe9"],
        ["Bearer Bearer k1"],
        ["Bearer k1, Bearer k1"],
        ["Bearer k1", "Bearer k1"],
        ["Bearer k1", "Basic k1"],
        [f"Bearer {ADMIN}"],
    ],
)
async def test_a_header_that_shows_no_tenants_key_is_refused(house, values) -> None:
    headers = [("authorization", value.encode("latin-1")) for value in values]
    for path in (CHAT, "/metrics"):
        reply = await house.client.request("POST", path, headers=headers, content=b"{no json")
        assert refused(reply, "POST")


@pytest.mark.parametrize("value", ["Bearer k1", "bearer k1", "BEARER  k1", "Bearer Bearer"])
async def test_a_header_that_shows_one_opens(house, value) -> None:
    headers = {"authorization": value}
    reply = await house.post(CHAT, {"messages": HELLO, "max_tokens": 1}, headers=headers)
    assert reply.status_code == 200
    assert (await house.client.get("/metrics", headers=headers)).status_code == 200
    assert (await house.client.get("/nothing", headers=headers)).status_code == 404
    assert (await house.client.get("/admin/policy", headers=headers)).status_code == 401
    await house.idle()


async def test_the_admin_key_opens_the_admin_routes_and_no_others(house) -> None:
    headers = {"authorization": f"Bearer {ADMIN}"}
    assert (await house.client.get("/admin/policy", headers=headers)).status_code == 200
    assert refused(await house.client.get("/admin", headers=headers), "GET")


async def test_without_an_admin_key_what_is_below_admin_wants_a_tenants() -> None:
    async with serving(config=CONFIG) as house:
        assert refused(await house.client.get("/admin/policy"), "GET")
        assert (await house.client.get("/admin/policy", headers=K1)).status_code == 404


async def test_old_and_new_keys_overlap_and_the_old_one_is_then_taken_back(house) -> None:
    async def opens(key: str) -> bool:
        headers = {"authorization": f"Bearer {key}"}
        return (await house.client.get("/v1/models", headers=headers)).status_code == 200

    assert [await opens(key) for key in ("k1", "k2")] == [True, False]
    for keys, open_to in ((["k1", "k2"], [True, True]), (["k2"], [False, True])):
        tables = {**CONFIG, "tenants": {"acme": {"keys": keys}}}
        house.service.tenancy.adopt(Config.model_validate(tables))
        assert [await opens(key) for key in ("k1", "k2")] == open_to
    assert (
        house.service.tenancy.caller(Headers({"authorization": "Bearer k2"})).tenant.name == "acme"
    )


async def test_where_no_key_is_required_any_is_taken() -> None:
    async with serving() as house:
        for headers in (K1, {"authorization": "Bearer k\xe9".encode("latin-1")}, {}):
            body = {"prompt": "x", "max_tokens": 1}
            assert (await house.post(COMPLETIONS, body, headers=headers)).status_code == 200
        await house.idle()
