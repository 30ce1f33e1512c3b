"""Who may enter at all: whoever shows a tenant's key, where `identity.require_key` asks for one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from app.errors import ApiError
from app.record import record_of
from app.routes.page import PAGE
from app.tenancy import Tenancy

PROBES: Final = frozenset({"/health", "/health/live", "/health/ready", "/ping"})

OPEN: Final = PROBES | {file.path for file in PAGE}
"""Paths that anybody may ask. Who probes a server has no key, and learns of nobody; the page is
where a key is typed in, and the same for everybody."""


class TenantDoor:
    """Pure ASGI, around the router: no route, and no path that is none, answers without a key.

    elsewhere: beginnings of paths that have a door of their own. A refusal comes before the route
    is looked for and before anything of a body is read.
    """

    def __init__(self, app: ASGIApp, tenancy: Tenancy, elsewhere: Sequence[str] = ()) -> None:
        self._app = app
        self._tenancy = tenancy
        self._elsewhere = tuple(elsewhere)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._guards(scope["path"]):
            try:
                self._tenancy.admit(Headers(scope=scope))
            except ApiError as refusal:
                record_of(scope).error = refusal.code
                await refusal.response()(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _guards(self, path: str) -> bool:
        return path not in OPEN and not path.startswith(self._elsewhere)
