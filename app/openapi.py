"""The OpenAPI document of the public routes, from the models that requests are read with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from app.schemas.chat import ChatRequest
from app.schemas.completion import CompletionRequest
from app.schemas.replies import (
    ChatCompletion,
    Completion,
    DetokenizeReply,
    Error,
    LoadReply,
    ModelCard,
    ModelList,
    ModelResponse,
    TokenizeReply,
    VersionReply,
)
from app.schemas.responses import ResponsesRequest
from app.schemas.tokens import DetokenizeRequest, TokenizeRequest

JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"
TEXT: Final = "text/plain"
SCHEMAS: Final = "#/components/schemas/"

RETRY_AFTER: Final = {
    "Retry-After": {
        "description": "seconds after which it is worth trying again",
        "schema": {"type": "integer", "minimum": 1, "maximum": 59},
    }
}

ERRORS: Final[Mapping[int, str]] = {
    400: "a field is missing, wrong, out of range, or not supported; `param` names it",
    401: "no key, or not the right one",
    404: "there is no such model",
    408: "the client sends or reads too slowly",
    413: "the body is too large",
    415: "the content type is not JSON",
    429: "the server, or the tenant's quota, is full",
    500: "the engine failed while computing this request",
    503: "the server starts, drains, or has broken down; or the request waited too long",
}

BODY_ERRORS: Final = (400, 401, 404, 413, 415)
GENERATION_ERRORS: Final = (*BODY_ERRORS, 408, 429, 500, 503)


@dataclass(frozen=True, slots=True)
class Operation:
    """One route and method. reply: what a 200 holds as JSON; None for nothing, or for `text`."""

    method: str
    path: str
    summary: str
    request: type[BaseModel] | None = None
    reply: type[BaseModel] | None = None
    streams: bool = False
    text: bool = False
    errors: Sequence[int] = ()

    @property
    def name(self) -> str:
        """For generated clients; unique."""
        words = self.path.replace("{", "").replace("}", "").replace("/v1", "").split("/")
        return "_".join([self.method, *filter(None, words)])


OPERATIONS: Final = (
    Operation(
        "post",
        "/v1/chat/completions",
        "Go on with a chat",
        ChatRequest,
        ChatCompletion,
        streams=True,
        errors=GENERATION_ERRORS,
    ),
    Operation(
        "post",
        "/v1/completions",
        "Go on with one text or several",
        CompletionRequest,
        Completion,
        streams=True,
        errors=GENERATION_ERRORS,
    ),
    Operation(
        "post",
        "/v1/responses",
        "Answer, and keep nothing",
        ResponsesRequest,
        ModelResponse,
        streams=True,
        errors=GENERATION_ERRORS,
    ),
    Operation("get", "/v1/models", "The served models", reply=ModelList, errors=(401,)),
    Operation("get", "/v1/models/{id}", "One model", reply=ModelCard, errors=(401, 404)),
    Operation(
        "post",
        "/tokenize",
        "Token ids of a text or a chat",
        TokenizeRequest,
        TokenizeReply,
        errors=BODY_ERRORS,
    ),
    Operation(
        "post",
        "/detokenize",
        "The text of token ids",
        DetokenizeRequest,
        DetokenizeReply,
        errors=BODY_ERRORS,
    ),
    Operation("get", "/health", "Whether requests are taken", errors=(503,)),
    Operation("get", "/health/live", "Whether a new process is needed", errors=(503,)),
    Operation("get", "/health/ready", "Whether a request would be taken now", errors=(503,)),
    Operation("get", "/ping", "As /health", errors=(503,)),
    Operation("post", "/ping", "As /health", errors=(503,)),
    Operation("get", "/load", "How many requests are open", reply=LoadReply, errors=(401,)),
    Operation("get", "/version", "The version", reply=VersionReply, errors=(401,)),
    Operation("get", "/metrics", "Metrics for Prometheus", text=True, errors=(401,)),
)


@cache
def openapi(version: str) -> dict[str, Any]:
    """The document, OpenAPI 3.1. version: of Octavo."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Octavo",
            "version": version,
            "description": "An LLM server with OpenAI's API. Optional fields may be null. "
            "Unknown fields are ignored unless api.strict_fields is set.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": _schemas(),
            "responses": {str(status): _error(status) for status in ERRORS},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _operation(operation: Operation) -> dict[str, Any]:
    document: dict[str, Any] = {"operationId": operation.name, "summary": operation.summary}
    if "{id}" in operation.path:
        document["parameters"] = [
            {
                "name": "id",
                "in": "path",
                "required": True,
                "description": "its name, which may hold slashes",
                "schema": {"type": "string", "minLength": 1},
            }
        ]
    if operation.request is not None:
        content = {JSON: {"schema": _reference(operation.request)}}
        document["requestBody"] = {"required": True, "content": content}
    errors = {str(s): {"$ref": f"#/components/responses/{s}"} for s in sorted(operation.errors)}
    document["responses"] = {"200": _success(operation), **errors}
    return document


def _success(operation: Operation) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if operation.reply is not None:
        content[JSON] = {"schema": _reference(operation.reply)}
    if operation.streams:
        content[EVENTS] = {}
    if operation.text:
        content[TEXT] = {"schema": {"type": "string"}}
    return {"description": "done", **({"content": content} if content else {})}


def _error(status: int) -> dict[str, Any]:
    headers = {"headers": RETRY_AFTER} if status in (429, 503) else {}
    content = {JSON: {"schema": _reference(Error)}}
    return {"description": ERRORS[status], **headers, "content": content}


def _reference(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": SCHEMAS + model.__name__}


def _schemas() -> dict[str, Any]:
    """The schemas of all models that operations name, and of those that these name."""
    models = {each.request for each in OPERATIONS} | {each.reply for each in OPERATIONS} | {Error}
    named = sorted((model for model in models if model), key=lambda model: model.__name__)
    _, document = models_json_schema(
        [(model, "validation") for model in named], ref_template=SCHEMAS + "{model}"
    )
    schemas: dict[str, Any] = document["$defs"]
    return schemas
