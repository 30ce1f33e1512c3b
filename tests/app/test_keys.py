"""Keys: how they are read from a head, and which of them is known."""

from __future__ import annotations

import hashlib
import hmac

import pytest
from pydantic import SecretStr
from starlette.datastructures import Headers

from app.keys import KeyRing, bearer


def headers(*values: str) -> Headers:
    return Headers(raw=[(b"authorization", value.encode("latin-1")) for value in values])


@pytest.mark.parametrize(
    ("values", "key"),
    [
        (["Bearer K"], b"K"),
        (["bearer K"], b"K"),
        (["BEARER K"], b"K"),
        (["Bearer  K"], b"K"),
        (["Bearer k\xe9"], b"k\xe9"),
        (["Bearer Bearer K"], b"Bearer K"),
        ([], b""),
        ([""], b""),
        (["Bearer"], b""),
        (["Bearer "], b""),
        (["K"], b""),
        (["BearerK"], b""),
        (["Basic K"], b""),
        (["Bearer K", "Bearer K"], b""),
    ],
)
def test_a_key_stands_behind_bearer_in_one_header(values, key) -> None:
    assert bearer(headers(*values)) == key


def test_a_key_opens_written_plain_or_hashed() -> None:
    digest = hashlib.sha256(b"new").hexdigest()
    ring = KeyRing([(SecretStr("old"), "acme"), (SecretStr(f"sha256:{digest}"), "globex")])
    assert ring.owner(headers("Bearer old")) == "acme"
    assert ring.owner(headers("Bearer new")) == "globex"
    for wrong in ("old ", "Old", "ol", "newx", f"sha256:{digest}", digest):
        assert ring.owner(headers(f"Bearer {wrong}x")) is None


def test_all_keys_are_compared_whichever_it_is(monkeypatch) -> None:
    compared = []
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append(len(a)) or a == b)
    ring = KeyRing([(SecretStr(f"k{i}"), i) for i in range(5)])
    for shown, owner in (("k0", 0), ("k4", 4), ("none", None)):
        compared.clear()
        assert ring.owner(headers(f"Bearer {shown}")) == owner
        assert compared == [32] * 5


def test_no_plain_key_is_kept() -> None:
    ring = KeyRing([(SecretStr("plain-key"), "acme")])
    assert "plain-key" not in repr(vars(ring))
