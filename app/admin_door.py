"""Who may enter /admin: whoever shows the key of `server.admin_key`."""

from __future__ import annotations

from pydantic import SecretStr
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from app.errors import unauthorized
from app.keys import KeyRing


class AdminDoor:
    """Pure ASGI, around everything below /admin: no route there can forget to ask.

    Wants exactly one `Authorization: Bearer KEY`; a tenant's key does not open. Raises ApiError
    (401) before anything is read.
    """

    def __init__(self, app: ASGIApp, key: SecretStr) -> None:
        self._app = app
        self._keys = KeyRing([(key, "admin")])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._keys.owner(Headers(scope=scope)) is None:
            raise unauthorized("The admin routes need the admin key: Authorization: Bearer KEY.")
        await self._app(scope, receive, send)
