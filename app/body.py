"""Request bodies: read up to a limit, and only if they claim to be JSON."""

from __future__ import annotations

from starlette.requests import ClientDisconnect, Request

from app.errors import ApiError

JSON_TYPES = frozenset({"", "application/json", "application/x-www-form-urlencoded"})
"""curl sends the last one unless told otherwise; the body is read as JSON all the same."""


async def read_body(request: Request, limit: int) -> bytes:
    """The body's bytes.

    Raises ApiError: 415 for another content type, 413 as soon as the body is known to be longer
    than `limit` bytes, announced or not. Raises ClientDisconnect if it never came in full.
    """
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type not in JSON_TYPES and not content_type.endswith("+json"):
        raise ApiError(
            415, "The content type must be application/json.", code="unsupported_media_type"
        )
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and int(announced) > limit:
        raise _too_large(limit)
    body = bytearray()
    more = True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        body += message.get("body", b"")
        if len(body) > limit:
            raise _too_large(limit)
        more = message.get("more_body", False)
    return bytes(body)


def _too_large(limit: int) -> ApiError:
    return ApiError(413, f"The body is larger than {limit} bytes.", code="request_too_large")
