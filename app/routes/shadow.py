"""GET /admin/shadow. Everything below /admin is behind `AdminDoor`."""

from __future__ import annotations

from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response

from app.errors import ApiError
from app.service import Service


async def get_shadow(service: Service, request: Request) -> Response:
    """What other policies would have done, and whether that is to be trusted."""
    if service.shadow is None:
        message = "No shadows are configured; shadow.policies has none."
        raise ApiError(404, message, code="not_found")
    body = to_json(service.shadow.document(), inf_nan_mode="null", fallback=repr)
    headers = {"cache-control": "no-store"}
    return Response(body, media_type="application/json", headers=headers)
