"""Who may enter /admin: whoever shows the key of `server.admin_key`."""

from __future__ import annotations

import hmac

from pydantic import SecretStr
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from app.errors import unauthorized
from app.keys import bearer, digest


class AdminDoor:
    """Pure ASGI, around everything below /admin: no route there can forget to ask.

    Wants exactly one `Authorization: Bearer KEY`. Digests are compared, so that the time it takes
    tells neither the key nor its length. Raises ApiError (401) before anything is read.
    """

    def __init__(self, app: ASGIApp, key: SecretStr) -> None:
        self._app = app
        self._digest = digest(key.get_secret_value().encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._opens_for(Headers(scope=scope)):
            raise unauthorized("The admin routes need the admin key: Authorization: Bearer KEY.")
        await self._app(scope, receive, send)

    def _opens_for(self, headers: Headers) -> bool:
        return hmac.compare_digest(digest(bearer(headers)), self._digest)
