"""Request bodies: JSON up to a limit, whatever a client calls it that cannot know better."""

from __future__ import annotations

from starlette.requests import ClientDisconnect, Request

from app.errors import ApiError, invalid

FORM = "application/x-www-form-urlencoded"
"""curl's word for a body unless told otherwise."""

HINT = "send JSON with the header content-type: application/json"


async def read_body(request: Request, limit: int) -> bytes:
    """The body's bytes, which claim to be JSON, or claim nothing, or to be a form that is JSON.

    Raises ApiError: 415 for another content type, and for a page of another site that does not say
    JSON; 400 for form fields; 413 as soon as the body is known to be longer than `limit` bytes,
    announced or not. Raises ClientDisconnect if it never came in full.
    """
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json" and not content_type.endswith("+json"):
        _refuse_unclear(request, content_type)
    body = await _read(request, limit)
    if content_type == FORM and not body.lstrip().startswith((b"{", b"[")):
        raise invalid(f"The body is form fields, not JSON; {HINT}.", code="invalid_json")
    return body


def _refuse_unclear(request: Request, content_type: str) -> None:
    """415 unless the body may be read as JSON although it does not say that it is.

    Browsers let any page send such a body here without asking first; what says JSON they only
    send if the server agrees, which it does for `server.cors_origins` only.
    """
    if content_type not in ("", FORM):
        raise ApiError(
            415, "The content type must be application/json.", code="unsupported_media_type"
        )
    origin = request.headers.get("origin")
    if origin is not None and origin.partition("://")[2] != request.headers.get("host"):
        message = f"A page of another origin must say what it sends: {HINT}."
        raise ApiError(415, message, code="unsupported_media_type")


async def _read(request: Request, limit: int) -> bytes:
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
