"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from app.service import Service


async def list_models(service: Service, request: Request) -> Response:
    return _json({"object": "list", "data": [_card(service)]})


async def get_model(service: Service, request: Request) -> Response:
    """The card of one model; without an id (`/v1/models/`) the list."""
    if not request.path_params["id"]:
        return await list_models(service, request)
    service.require_model(request.path_params["id"])
    return _json(_card(service))


def _card(service: Service) -> dict[str, Any]:
    """The served model. `max_model_len` and `context_length` are two clients' names for one."""
    return {
        "id": service.model_id,
        "object": "model",
        "created": service.created,
        "owned_by": "octavo",
        "root": None,
        "parent": None,
        "max_model_len": service.max_model_len,
        "context_length": service.max_model_len,
    }


def _json(document: Any) -> Response:
    return Response(orjson.dumps(document), media_type="application/json")
