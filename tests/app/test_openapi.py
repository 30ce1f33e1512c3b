"""The OpenAPI document says what the routes are and what they read."""

import json

import pytest
from support.serving import House

from app.openapi import OPERATIONS, openapi
from app.routes.page import PAGE
from app.schemas.chat import ChatRequest
from app.schemas.completion import CompletionRequest
from app.schemas.parsing import parse
from app.schemas.responses import ResponsesRequest

DOCUMENT = openapi("1.2.3")


def test_every_public_route_is_in_it_and_no_other():
    house = House()
    house.executor.shutdown()
    routed = {
        (method.lower(), route.path.replace(":path", ""))
        for route in house.application.routes
        for method in route.methods - {"HEAD"}
    }
    told = {(method, path) for path, item in DOCUMENT["paths"].items() for method in item}
    others = {("get", "/openapi.json"), *(("get", file.path) for file in PAGE)}
    assert told == routed - others


def test_every_operation_has_a_name_of_its_own():
    assert len({operation.name for operation in OPERATIONS}) == len(OPERATIONS)


def references(node) -> set[str]:
    """Every reference in a part of the document."""
    if isinstance(node, list):
        return set().union(*map(references, node))
    if not isinstance(node, dict):
        return set()
    own = {node["$ref"]} if isinstance(node.get("$ref"), str) else set()
    return own.union(*map(references, node.values()))


def test_every_reference_leads_somewhere_and_every_part_is_used():
    named = {
        f"#/components/{kind}/{name}"
        for kind in ("schemas", "responses")
        for name in DOCUMENT["components"][kind]
    }
    assert references(DOCUMENT) == named


def test_it_is_json_and_says_which_version_it_is_of():
    assert json.loads(json.dumps(DOCUMENT))["info"]["version"] == "1.2.3"


@pytest.mark.parametrize("model", [ChatRequest, CompletionRequest, ResponsesRequest])
def test_every_field_that_is_read_is_in_it(model):
    told = DOCUMENT["components"]["schemas"][model.__name__]["properties"]
    assert told.keys() == model.model_fields.keys()


@pytest.mark.parametrize(
    ("model", "field", "value"),
    [
        (CompletionRequest, "prompt", "a"),
        (CompletionRequest, "prompt", ["a", "b"]),
        (CompletionRequest, "prompt", [1, 2]),
        (CompletionRequest, "prompt", [[1], [2, 3]]),
        (CompletionRequest, "stop", "x"),
        (CompletionRequest, "stop", ["x", "y"]),
        (ChatRequest, "tool_choice", "auto"),
        (ChatRequest, "response_format", {"type": "text"}),
        (ResponsesRequest, "input", "hi"),
        (ResponsesRequest, "input", [{"role": "user", "content": "hi"}]),
    ],
)
def test_shapes_that_it_offers_are_read(model, field, value):
    shape = DOCUMENT["components"]["schemas"][model.__name__]["properties"][field]
    kind = {str: "string", list: "array", dict: "object"}[type(value)]
    offered = shape.get("anyOf", [shape])
    assert any(one.get("type") == kind or value in one.get("enum", ()) for one in offered)
    required = {
        ChatRequest: {"messages": [{"role": "user", "content": "hi"}]},
        CompletionRequest: {"prompt": "hi"},
        ResponsesRequest: {"input": "hi"},
    }[model]
    body = json.dumps({**required, field: value}).encode()
    parse(model, body, strict_fields=True)
