"""GET /health and its kin, /load, /version, /metrics and /openapi.json."""

from __future__ import annotations

import orjson
from starlette.requests import Request
from starlette.responses import Response

from app.bridge import NotReady
from app.errors import house_full, not_ready
from app.metrics import CONTENT_TYPE
from app.openapi import openapi
from app.room import ANY_TERMS, Overloaded
from app.service import Service


async def health(service: Service, request: Request) -> Response:
    """200 with an empty body while requests are taken, 503 and the reason when they are not."""
    failure = service.bridge.failure
    return Response() if failure is None else not_ready(failure).response()


async def live(service: Service, request: Request) -> Response:
    """503 only if a new process is needed: the engine has ended unasked, or is stuck in a step."""
    broken = service.bridge.broken
    return Response() if broken is None else not_ready(broken).response()


async def ready(service: Service, request: Request) -> Response:
    """503 while a request that came now would be refused: draining, broken, stuck, full."""
    try:
        service.bridge.require_room(terms=ANY_TERMS)
    except Overloaded as full:
        raise house_full(str(full), full.retry_after) from None
    except NotReady as refusal:
        raise not_ready(refusal.failure) from None
    return Response()


async def load(service: Service, request: Request) -> Response:
    """How many requests are open, running and waiting ones together."""
    return _json({"server_load": service.bridge.open_requests})


async def version(service: Service, request: Request) -> Response:
    return _json({"version": service.version})


async def openapi_document(service: Service, request: Request) -> Response:
    """What the public routes take and answer."""
    return _json(openapi(service.version))


async def metrics(service: Service, request: Request) -> Response:
    """Rendered from numbers on this side; the engine is not asked."""
    return Response(service.metrics.render(), headers={"content-type": CONTENT_TYPE})


def _json(document: object) -> Response:
    return Response(orjson.dumps(document), media_type="application/json")
