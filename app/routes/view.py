"""GET /admin/live. Everything below /admin is behind `AdminDoor`."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from app.live.view import LiveView


async def live_view(view: LiveView, request: Request) -> Response:
    """The engine as the page shows it: blocks, requests, steps, and the last two minutes."""
    headers = {"cache-control": "no-store"}
    return Response(await view.document(), media_type="application/json", headers=headers)
