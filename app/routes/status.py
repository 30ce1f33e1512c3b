"""GET /health, /version and /metrics."""

from __future__ import annotations

import orjson
from starlette.requests import Request
from starlette.responses import Response

from app.errors import not_ready
from app.metrics import CONTENT_TYPE
from app.service import Service


async def health(service: Service, request: Request) -> Response:
    """200 with an empty body while requests are taken, 503 and the reason when they are not."""
    failure = service.bridge.failure
    return Response() if failure is None else not_ready(failure).response()


async def version(service: Service, request: Request) -> Response:
    body = orjson.dumps({"version": service.version})
    return Response(body, media_type="application/json")


async def metrics(service: Service, request: Request) -> Response:
    """Rendered from numbers on this side; the engine is not asked."""
    return Response(service.metrics.render(), headers={"content-type": CONTENT_TYPE})
