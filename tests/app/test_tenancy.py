"""Who a request is of."""

from __future__ import annotations

import math

import pytest
from starlette.datastructures import Headers

from app.config import Config
from app.errors import ApiError
from app.tenancy import Tenancy, Terms

GATEWAY = {"trust_proxy_headers": True}
TABLES = {
    "classes": {
        "interactive": {"ttft_s": 0.5, "tpot_s": 0.05, "priority": -1},
        "batch": {"queue_timeout_s": 60.0, "priority": 5},
    },
    "tenants": {
        "acme": {"keys": ["k1", "k2"], "weight": 2.0, "classes": ["batch", "interactive"]},
        "globex": {"keys": ["k3"]},
    },
}


def tenancy(**identity) -> Tenancy:
    return Tenancy(Config.model_validate({**TABLES, "identity": identity}))


def caller(headers=None, **identity):
    return tenancy(**identity).caller(Headers(headers or {}))


def key(text: str) -> dict[str, str]:
    return {"authorization": f"Bearer {text}"}


@pytest.mark.parametrize(
    ("headers", "name"),
    [
        ({}, "default"),
        (key("k1"), "acme"),
        (key("k2"), "acme"),
        (key("k3"), "globex"),
        (key("none"), "default"),
        ({"authorization": "Basic k1"}, "default"),
        ({"x-gateway-inference-fairness-id": "acme"}, "default"),
    ],
)
def test_the_key_tells_the_tenant_and_headers_of_strangers_do_not(headers, name) -> None:
    assert caller(headers).tenant.name == name


@pytest.mark.parametrize("headers", [{}, key("k4"), {"x-openwebui-user-id": "acme"}])
def test_without_a_tenants_key_nobody_enters_where_one_is_required(headers) -> None:
    with pytest.raises(ApiError) as caught:
        caller(headers, require_key=True, **GATEWAY)
    assert (caught.value.status, caught.value.code) == (401, "invalid_api_key")
    assert caught.value.headers == {"www-authenticate": "Bearer"}


def test_behind_a_gateway_the_first_header_that_names_a_tenant_counts() -> None:
    headers = {"x-gateway-inference-fairness-id": "nobody", "x-openwebui-user-id": "globex"}
    assert caller({**headers, **key("k1")}, **GATEWAY).tenant.name == "globex"
    assert caller({"x-gateway-inference-fairness-id": "x" * 9999}, **GATEWAY).tenant.name == (
        "default"
    )


def test_names_that_clients_make_up_become_no_tenants() -> None:
    strangers = {caller({"x-openwebui-user-id": f"u{i}"}, **GATEWAY).tenant for i in range(100)}
    assert {tenant.name for tenant in strangers} == {"default"}


@pytest.mark.parametrize(
    ("headers", "tier", "slo_class"),
    [
        ({}, None, "default"),
        ({}, "interactive", "interactive"),
        ({}, "auto", "default"),
        (key("k1"), None, "batch"),
        (key("k1"), "interactive", "interactive"),
        (key("k1"), "default", "batch"),
        ({"x-gateway-inference-objective": "batch"}, "interactive", "batch"),
        ({"x-gateway-inference-objective": "none"}, "interactive", "interactive"),
    ],
)
def test_the_class_is_the_gateways_else_the_clients_else_the_tenants(
    headers, tier, slo_class
) -> None:
    assert caller(headers, **GATEWAY).terms(tier).slo_class == slo_class


def test_the_objective_of_a_stranger_counts_for_nothing() -> None:
    assert caller({"x-gateway-inference-objective": "batch"}).terms(None).slo_class == "default"


def test_terms_are_those_of_the_class() -> None:
    terms = caller().terms
    assert terms("interactive") == Terms("interactive", -1, 0.5, 0.05, math.inf)
    assert terms("batch") == Terms("batch", 5, math.inf, math.inf, 60.0)
    assert terms(None) == Terms()


def test_the_default_tenant_can_be_configured() -> None:
    config = {"tenants": {"default": {"weight": 0.5, "classes": ["default"]}}}
    table = Tenancy(Config.model_validate(config))
    assert table.caller(Headers()).tenant.weight == 0.5


def test_another_configuration_holds_for_who_comes_later() -> None:
    table = tenancy()
    before = table.caller(Headers(key("k1")))
    table.adopt(Config.model_validate({"tenants": {"initech": {"keys": ["k1"]}}}))
    assert table.caller(Headers(key("k1"))).tenant.name == "initech"
    assert before.terms("interactive").ttft == 0.5
