"""GET /admin/requests and /admin/requests/{id}. Everything below /admin is behind `AdminDoor`."""

from __future__ import annotations

from typing import Any, Final

import orjson
from starlette.requests import Request
from starlette.responses import Response

from app.errors import ApiError
from app.routes.snapshots import limit_of, request_snapshot
from app.service import Service
from engine.outputs import Blocker, Explanations, Position, RequestExplanation, StartEstimate

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
            "requests": [_brief(service, each, seen) for each in seen.requests],
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


def _brief(service: Service, why: RequestExplanation, seen: Explanations) -> dict[str, Any]:
    waits = why.request.phase in ("waiting", "preempted")
    return {
        **request_snapshot(why.request, service.directory),
        "age_s": seen.stats.now - why.request.arrival,
        "lost_tokens": why.lost,
        "position": _position(why.position),
        "blocked_by": list(map(_blocker, why.blockers)) if waits else None,
        "start_in_s": _start(why.start),
    }


def _full(service: Service, why: RequestExplanation, seen: Explanations) -> dict[str, Any]:
    if why.position is None:
        return _brief(service, why, seen)
    now = seen.stats.now
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
        **_brief(service, why, seen),
        "overtaken_by": overtakers,
        "overtaken": why.overtaken,
        "overtaken_complete": why.complete,
        "policy": "fcfs" if seen.fallen_back else service.policies.current.policy,
        "explanation": why.words,
    }


def _position(position: Position | None) -> dict[str, Any] | None:
    if position is None:
        return None
    return {
        "flow": position.flow[:120],
        "place": position.place,
        "of": position.of,
        "exact": position.exact,
        "lines": position.lines,
    }


def _blocker(blocker: Blocker) -> dict[str, Any]:
    return {"by": blocker.by, "needs": blocker.needs, "left": blocker.left}


def _start(start: StartEstimate | None) -> dict[str, float] | None:
    if start is None:
        return None
    return {"estimate": start.seconds, "low": start.low, "high": start.high}


def _json(document: Any) -> Response:
    return Response(orjson.dumps(document), media_type="application/json")
