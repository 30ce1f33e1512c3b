"""GET /admin/requests and /admin/requests/{id}. Everything below /admin is behind `AdminDoor`."""

from __future__ import annotations

from typing import Any, Final

import orjson
from starlette.requests import Request
from starlette.responses import Response

from app.errors import ApiError
from app.routes.snapshots import brief, limit_of
from app.service import Service
from engine.outputs import Explanations, RequestExplanation

REQUESTS: Final = 100
"""Requests that are explained unless a client asks for fewer or more."""

MOST_REQUESTS: Final = 200
"""The engine explains them between two steps."""


async def list_requests(service: Service, request: Request) -> Response:
    """Those that run, then those that wait, the oldest first: where each is, and what it lacks."""
    limit = limit_of(request, "limit", REQUESTS, MOST_REQUESTS)
    seen = await service.bridge.explain(None, limit)
    return _json(
        {
            "running": seen.stats.running,
            "waiting": seen.stats.waiting,
            "requests": [brief(each, seen.stats.now, service.directory) for each in seen.requests],
        }
    )


async def get_request(service: Service, request: Request) -> Response:
    """All about one request, by the engine's id, the id in its reply, or its X-Request-Id."""
    name = request.path_params["id"]
    for id in (_number(name), service.directory.find(name)):
        if id is not None:
            seen = await service.bridge.explain(id, 0)
            if seen.requests:
                return _json(_full(service, seen.requests[0], seen))
    message = f"No request {name[:120]!r} waits or runs."
    raise ApiError(404, message, code="request_not_found", param="id")


def _number(name: str) -> int | None:
    """The engine's own id, if it is one."""
    return int(name) if name.isdecimal() and name.isascii() and len(name) < 16 else None


def _full(service: Service, why: RequestExplanation, seen: Explanations) -> dict[str, Any]:
    now = seen.stats.now
    if why.position is None:
        return brief(why, now, service.directory)
    overtakers = []
    for overtaker in why.overtakers:
        names = service.directory.names(overtaker.id)
        overtakers.append(
            {
                "id": overtaker.id,
                "reply_id": names.reply if names else None,
                "seconds_ago": now - overtaker.at,
                "why": overtaker.why,
            }
        )
    return {
        **brief(why, now, service.directory),
        "overtaken_by": overtakers,
        "overtaken": why.overtaken,
        "overtaken_complete": why.complete,
        "policy": "fcfs" if seen.fallen_back else service.policies.current.policy,
        "explanation": why.words,
    }


def _json(document: Any) -> Response:
    return Response(orjson.dumps(document), media_type="application/json")
