"""What happens around every HTTP request: its id, log line, metrics and span, its last resort."""

from __future__ import annotations

import logging
import re
import uuid
from time import perf_counter

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.connection import REJECTED
from app.errors import SERVER_ERROR, ApiError
from app.logs import log_request
from app.metrics import UNMATCHED, Metrics
from app.metrics.labels import OTHER
from app.record import CLIENT_CLOSED_REQUEST, KEY, Record
from app.tracing.spans import Spans

REQUEST_ID = "x-request-id"
AB_ARM = "x-ab-arm"
_VALID_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")

log = logging.getLogger("octavo.http")


class FrontDoor:
    """Pure ASGI, so that streaming and cancellation pass through untouched.

    A request id from outside is for logs and the reply's header only; the engine has its own ids,
    so it does not matter if a client sends one twice.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, spans: Spans | None = None) -> None:
        self._app = app
        self._metrics = metrics
        self._spans = spans

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = perf_counter()
        record = scope[KEY] = Record(_request_id(scope))
        send = _labelled(send, record)
        try:
            await self._app(scope, receive, send)
        except ClientDisconnect:
            record.client_disconnected = True
        except Exception:
            await self._apologise(scope, receive, send, record)
        finally:
            self._close(scope, record, perf_counter() - started)

    async def _apologise(self, scope: Scope, receive: Receive, send: Send, record: Record) -> None:
        """A bug: say so, if it is not too late; a reply that has begun can only be cut short."""
        log.exception("request %s failed", record.request_id)
        record.error = "internal_error"
        if record.status:
            raise
        error = ApiError(500, "Internal error.", code="internal_error", type=SERVER_ERROR)
        await error.response()(scope, receive, send)

    def _close(self, scope: Scope, record: Record, duration: float) -> None:
        route = _template(scope)
        rejected: ApiError | None = scope.get(REJECTED)
        if rejected is not None and not record.status:
            record.status, record.error = rejected.status, rejected.code
        if not record.status:
            record.status = CLIENT_CLOSED_REQUEST
            record.client_disconnected = True
        self._metrics.count_http(
            route,
            scope["method"],
            record.status,
            error=record.error,
            left=record.client_disconnected,
            limit=record.limit,
        )
        log_request(record.line(route, duration))
        if self._spans is not None:
            self._spans.close(scope, record, duration)


def count_rejected(metrics: Metrics, error: ApiError) -> None:
    """Count and log what was answered although no request was made out."""
    metrics.count_http(UNMATCHED, OTHER, error.status, error=error.code)
    log_request(Record(_new_id(), error.status, error=error.code).line(UNMATCHED, 0.0))


def _template(scope: Scope) -> str:
    """The path of the route that was found; below a mount it is told from there."""
    route = scope.get("route")
    if isinstance(route, Route):
        return f"{scope['root_path']}{route.path}"
    return getattr(route, "path", UNMATCHED)


def _request_id(scope: Scope) -> str:
    given = Headers(scope=scope).get(REQUEST_ID, "")
    return given if _VALID_ID.fullmatch(given) else _new_id()


def _new_id() -> str:
    return f"req-{uuid.uuid4().hex}"


def _labelled(send: Send, record: Record) -> Send:
    """Put the request id into the reply's head, what is left of the tenant's budget, and the arm of
    an experiment; remember the status."""

    async def labelled(message: Message) -> None:
        if message["type"] == "http.response.start":
            record.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers[REQUEST_ID] = record.request_id
            if record.budget is not None:
                headers.update(dict(record.budget.headers()))
            if record.ab_arm is not None:
                headers[AB_ARM] = record.ab_arm
        await send(message)

    return labelled
