"""The ASGI application: routes, error shapes, and what goes around each request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from pydantic import SecretStr
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.types import Lifespan

from app.admin_door import AdminDoor
from app.bridge import NotReady
from app.errors import ApiError, not_ready, overloaded, quota_exceeded
from app.generation import prepare_chat, prepare_completion, prepare_response
from app.live.history import History
from app.live.view import LiveView
from app.middleware import AB_ARM, REQUEST_ID, FrontDoor
from app.problems import nearest
from app.quota import REQUESTS, TOKENS
from app.record import record_of
from app.room import Overloaded, QuotaExceeded
from app.routes.blocks import blocks
from app.routes.experiment import end_experiment, get_experiment
from app.routes.generate import generate
from app.routes.models import get_model, list_models
from app.routes.page import PAGE
from app.routes.policy import get_policy, post_policy
from app.routes.requests import get_request, list_requests
from app.routes.shadow import get_shadow
from app.routes.status import health, live, load, metrics, openapi_document, ready, version
from app.routes.tokens import detokenize, tokenize
from app.routes.view import live_view
from app.service import Service
from app.stream import tame_sse_starlette
from app.tenant_door import TenantDoor
from app.tracing.spans import Spans

SIMILAR_PATH = 0.78
"""How much of a wrong path must agree with a right one for that to be what was meant."""

ADMIN = "/admin"

EXPOSED = (
    REQUEST_ID,
    AB_ARM,
    "retry-after",
    "retry-after-ms",
    "x-should-retry",
    *(
        f"x-ratelimit-{of}-{what}"
        for of in ("limit", "remaining", "reset")
        for what in (REQUESTS, TOKENS)
    ),
)
"""Headers of replies that scripts of other origins may read."""


def create_application(
    service: Service,
    lifespan: Lifespan[Starlette] | None = None,
    admin_key: SecretStr | None = None,
    cors_origins: Sequence[str] = (),
    spans: Spans | None = None,
) -> Starlette:
    """Put the HTTP side together.

    `lifespan` starts and stops what `service` needs (engine thread, bridge, executor); the
    application itself holds nothing. Metrics listen to the bridge from here on. Without an
    `admin_key` there is nothing below /admin. cors_origins: whose pages may ask from a browser.
    spans: where those of requests go, if anywhere.
    """
    tame_sse_starlette()
    service.bridge.add_observer(service.metrics.observe)
    routes = _routes(service)
    paths = [route.path for route in routes if "{" not in route.path]
    page = [Route(file.path, file.answer, methods=["GET"]) for file in PAGE]
    admin = [] if admin_key is None else [_admin(service, admin_key)]
    application = Starlette(
        routes=[*routes, *page, *admin],
        middleware=_doors(service, [f"{ADMIN}/"] if admin else [], cors_origins, spans),
        exception_handlers={
            ApiError: _api_error,
            HTTPException: partial(_http_error, paths),
            Overloaded: _overloaded,
            QuotaExceeded: _quota_exceeded,
            NotReady: _not_ready,
        },
        lifespan=lifespan,
    )
    application.router.redirect_slashes = False
    return application


def _doors(
    service: Service, elsewhere: Sequence[str], cors_origins: Sequence[str], spans: Spans | None
) -> list[Middleware]:
    """What goes around the routes, outermost first. Browsers ask without a key what they may ask.

    elsewhere: paths below these have a door of their own.
    """
    cors = Middleware(
        CORSMiddleware,
        allow_origins=cors_origins,
        allow_methods=["GET", "POST"],
        allow_headers=["*"],
        expose_headers=EXPOSED,
    )
    return [
        Middleware(FrontDoor, metrics=service.metrics, spans=spans),
        *([cors] if cors_origins else []),
        Middleware(TenantDoor, tenancy=service.tenancy, elsewhere=elsewhere),
    ]


def _routes(service: Service) -> list[Route]:
    def get(path: str, endpoint: Callable[[Service, Request], Awaitable[Response]]) -> Route:
        return Route(path, partial(endpoint, service), methods=["GET"])

    def post(path: str, endpoint: Callable[..., Awaitable[Any]], *arguments: Any) -> Route:
        return Route(path, partial(endpoint, service, *arguments), methods=["POST"])

    return [
        post("/v1/chat/completions", generate, prepare_chat),
        post("/v1/completions", generate, prepare_completion),
        post("/v1/responses", generate, prepare_response),
        get("/v1/models", list_models),
        get("/v1/models/{id:path}", get_model),
        post("/tokenize", tokenize),
        post("/detokenize", detokenize),
        get("/health", health),
        get("/health/live", live),
        get("/health/ready", ready),
        Route("/ping", partial(health, service), methods=["GET", "POST"]),
        get("/load", load),
        get("/version", version),
        get("/metrics", metrics),
        get("/openapi.json", openapi_document),
    ]


def _admin(service: Service, key: SecretStr) -> Mount:
    """The routes below /admin, all of them behind the door; without them nobody keeps a history."""
    history = History(service.bridge.stats, *service.metrics.latencies)
    service.bridge.add_observer(history.observe)
    view = LiveView(service, history)
    return Mount(
        ADMIN,
        routes=[
            Route("/blocks", partial(blocks, service), methods=["GET"]),
            Route("/requests", partial(list_requests, service), methods=["GET"]),
            Route("/requests/{id}", partial(get_request, service), methods=["GET"]),
            Route("/live", partial(live_view, view), methods=["GET"]),
            Route("/policy", partial(get_policy, service), methods=["GET"]),
            Route("/policy", partial(post_policy, service), methods=["POST"]),
            Route("/experiment", partial(get_experiment, service), methods=["GET"]),
            Route("/experiment", partial(end_experiment, service), methods=["DELETE"]),
            Route("/shadow", partial(get_shadow, service), methods=["GET"]),
        ],
        middleware=[Middleware(AdminDoor, key=key)],
    )


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    record_of(request.scope).error = error.code
    return error.response()


async def _overloaded(request: Request, error: Exception) -> Response:
    assert isinstance(error, Overloaded)
    record_of(request.scope).limit = error.limit
    return await _api_error(request, overloaded(str(error), error.retry_after))


async def _quota_exceeded(request: Request, error: Exception) -> Response:
    assert isinstance(error, QuotaExceeded)
    record_of(request.scope).limit = error.limit
    return await _api_error(request, quota_exceeded(str(error), error.retry_after))


async def _not_ready(request: Request, error: Exception) -> Response:
    assert isinstance(error, NotReady)
    return await _api_error(request, not_ready(error.failure))


async def _http_error(paths: Sequence[str], request: Request, error: Exception) -> Response:
    """What the router itself has to say: no such path (404), not this method (405)."""
    assert isinstance(error, HTTPException)
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "invalid_request")
    path = request.url.path[:120]
    message = f"{request.method} {path}: {error.detail}."
    if error.status_code == 404 and (meant := nearest(path, paths, SIMILAR_PATH)):
        message += f" Did you mean {meant}?"
    headers = dict(error.headers or {})
    return await _api_error(
        request, ApiError(error.status_code, message, code=code, headers=headers)
    )
