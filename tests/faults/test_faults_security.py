"""Routes that forget to ask for a key, and headers that look like one."""

from __future__ import annotations

import asyncio
import hmac
import json

import pytest
import pytest_asyncio
import structlog
from starlette.routing import Mount
from support.serving import CHAT, COMPLETIONS, House, serving

from app.tenant_door import OPEN

pytestmark = pytest.mark.asyncio(loop_scope="module")

ADMIN = "the-admins"
KEYS = ["key-of-acme", "Bearer", "BearerBearer", "a" * 200]
CONFIG = {
    "tenants": {f"tenant{number}": {"keys": [key]} for number, key in enumerate(KEYS)},
    "identity": {"require_key": True},
}
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "PROPFIND")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def guarded():
    async with serving(config=CONFIG, admin_key=ADMIN) as guarded:
        yield guarded
        await guarded.idle()


async def asked(
    house: House, method: str, target: str, *headers: bytes, body: bytes = b""
) -> tuple[int, bytes]:
    """Status and whole reply to a request that is sent as it stands here."""
    reader, writer = await asyncio.open_connection("127.0.0.1", house.port)
    lines = [f"{method} {target} HTTP/1.1".encode(), b"host: x", b"connection: close", *headers]
    writer.write(b"\r\n".join(lines) + b"\r\n\r\n" + body)
    reply = await asyncio.wait_for(reader.read(), 60)
    writer.close()
    return int(reply.split()[1]), reply


def paths(house: House) -> set[str]:
    """Every route, and ways in which people have reached one behind somebody's back."""
    found = set()
    for route in house.application.routes:
        inner = route.routes if isinstance(route, Mount) else [None]
        found |= {route.path + (each.path if each else "") for each in inner}
    found = {path.replace("{id:path}", "x").replace("{id}", "x") for path in found} - OPEN
    assert {CHAT, COMPLETIONS, "/tokenize", "/metrics", "/openapi.json", "/load"} <= found
    odd = {"/docs", "/redoc", "/nothing", "/health/../metrics", "/health/", "/ping/x", "*"}
    for path in (CHAT, "/v1/models", "/metrics", "/admin/policy"):
        odd |= {
            f"/{path}",
            f"{path}/",
            path.upper(),
            f"{path}%20",
            f"{path};x",
            f"{path}?a=/health",
        }
        odd |= {path.replace("/", "/./"), f"/health/..{path}", f"{path}%2f", f"/%2e{path}"}
        odd |= {f"http://x{path}", path.replace("m", "%6d")}
    return found | odd


async def test_b52_nothing_but_what_is_open_answers_without_a_key(guarded) -> None:
    for target in sorted(paths(guarded)):
        for method in METHODS:
            status, reply = await asked(guarded, method, target)
            if target == "*" and status == 400:
                continue  # no target for that method: not even HTTP
            assert status == 401, (method, target, reply[:200])
            assert b"\r\nwww-authenticate: Bearer\r\n" in reply
            if method != "HEAD":
                error = json.loads(reply.partition(b"\r\n\r\n")[2])["error"]
                assert error["code"] == "invalid_api_key"


async def test_b52_what_is_open_is_a_short_list_that_tells_nothing(guarded) -> None:
    assert {"/health", "/health/live", "/health/ready", "/ping"} <= OPEN
    for path in OPEN:
        status, reply = await asked(guarded, "GET", path)
        assert status == 200
        assert not [key for key in [*KEYS[:1], ADMIN, "tenant0"] if key.encode() in reply]


NO_KEYS = [
    [],
    [b"authorization:"],
    [b"authorization: Bearer"],
    [b"authorization: Bearer "],
    [b"authorization: Basic key-of-acme"],
    [b"authorization: key-of-acme"],
    [b"authorization: Bearerkey-of-acme"],
    [b"authorization: Bearer k\xe9"],
    [b"authorization: Bearer k\xc3\xa9"],
    [b"authorization: Bearer key-of-acme x"],
    [b"authorization: Bearer key-of-acm"],
    [b"authorization: Bearer key-of-acmee"],
    [b"authorization: Bearer KEY-OF-ACME"],
    [b"authorization: Bearer Bearer key-of-acme"],
    [b"authorization: Bearer key-of-acme", b"authorization: Bearer key-of-acme"],
    [b"authorization: Bearer wrong", b"authorization: Bearer key-of-acme"],
    [b"authorization: Bearer key-of-acme, Bearer key-of-acme"],
    [b"x-api-key: key-of-acme"],
    [b"cookie: authorization=Bearer key-of-acme"],
    [b"proxy-authorization: Bearer key-of-acme"],
    [b"authorization: Bearer " + ADMIN.encode()],
]


@pytest.mark.parametrize("headers", NO_KEYS, ids=str)
async def test_b52_what_only_looks_like_a_key_is_refused(guarded, headers) -> None:
    for method, path in (("POST", CHAT), ("GET", "/metrics")):
        status, reply = await asked(guarded, method, path, *headers)
        assert status == 401
        assert b"key-of-acme" not in reply
    status, _ = await asked(guarded, "GET", "/metrics?key=key-of-acme&api_key=key-of-acme")
    assert status == 401


@pytest.mark.parametrize("scheme", [b"Bearer ", b"bearer ", b"BEARER ", b"Bearer  ", b"bEaReR   "])
@pytest.mark.parametrize("key", KEYS, ids=lambda key: key[:12])
async def test_b52_the_scheme_is_read_in_any_case_and_the_key_as_it_is(guarded, scheme, key):
    header = b"authorization: " + scheme + key.encode()
    status, _ = await asked(guarded, "GET", "/v1/models", header)
    assert status == 200
    assert (await asked(guarded, "GET", "/admin/policy", header))[0] == 401


async def test_b52_who_is_refused_sends_no_body_and_takes_no_place(guarded) -> None:
    """The announced body never comes; the refusal does not wait for it."""
    arrived = guarded.scheduler.counters.arrived
    for length in (b"content-length: 4000000000", b"transfer-encoding: chunked"):
        reader, writer = await asyncio.open_connection("127.0.0.1", guarded.port)
        writer.write(b"POST " + CHAT.encode() + b" HTTP/1.1\r\nhost: x\r\n" + length + b"\r\n\r\n")
        assert b" 401 " in await asyncio.wait_for(reader.readline(), 60)
        writer.close()
    assert guarded.scheduler.counters.arrived == arrived


async def test_b52_keys_are_compared_with_all_there_are_in_constant_time(
    guarded, monkeypatch
) -> None:
    """Hashes, in `hmac.compare_digest`, as often whichever key matches and if none does."""
    compared: list[int] = []
    digest = hmac.compare_digest

    def counting(one, other):
        compared.append(1)
        assert len(one) == len(other), "keys are hashed first"
        return digest(one, other)

    monkeypatch.setattr(hmac, "compare_digest", counting)
    counts = []
    for key in (*KEYS, "nobody"):
        compared.clear()
        await asked(guarded, "GET", "/v1/models", b"authorization: Bearer " + key.encode())
        counts.append(len(compared))
    assert counts == [len(KEYS)] * (len(KEYS) + 1)


async def test_b52_keys_stand_in_no_log_and_on_no_page(guarded) -> None:
    with structlog.testing.capture_logs() as lines:
        for key in (KEYS[0], "some-other-key"):
            header = b"authorization: Bearer " + key.encode()
            await asked(guarded, "GET", "/v1/models", header)
        _, page = await asked(
            guarded, "GET", "/metrics", b"authorization: Bearer " + KEYS[0].encode()
        )
    told = repr(lines).encode() + page
    assert lines
    assert b"key-of-acme" not in told
    assert b"some-other-key" not in told
