"""Errors as clients see them: a status and OpenAI's four-key body.

{"error": {"message": str, "type": str, "param": str | null, "code": str | null}}
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import orjson
from starlette.responses import Response

from engine.outputs import Failure, FailureKind

INVALID_REQUEST = "invalid_request_error"
SERVER_ERROR = "server_error"
OVERLOADED = "overloaded_error"
AUTHENTICATION = "authentication_error"
RATE_LIMIT = "rate_limit_error"

RETRY_AFTER_MIN_S, RETRY_AFTER_MAX_S = 1, 59
"""Some clients do not retry at all when they are told to wait for a minute or more."""


class ApiError(Exception):
    """A request that ends in an error; `param` is the path of the field to blame, if one is."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        param: str | None = None,
        type: str = INVALID_REQUEST,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.type = type
        self.headers = dict(headers or {})

    def body(self) -> bytes:
        """The JSON body; the same bytes are the data of an error event in a stream."""
        error = {
            "message": self.message,
            "type": self.type,
            "param": self.param,
            "code": self.code,
        }
        return orjson.dumps({"error": error})

    def response(self) -> Response:
        return Response(
            self.body(), self.status, headers=self.headers, media_type="application/json"
        )


def invalid(message: str, param: str | None = None, code: str = "invalid_value") -> ApiError:
    """400: the client has to change the request."""
    return ApiError(400, message, code=code, param=param)


def context_exceeded(limit: int, prompt: str, param: str, completion: int = 0) -> ApiError:
    """400 in the words that client libraries look for, LiteLLM at the beginning of the message and
    LangChain in "prompt is too long".

    `prompt` says how long the prompt is ("9000", "at least 9000"), in tokens.
    """
    asked = f", and {completion} more are asked for" if completion else ""
    answer = "these" if completion else "an answer"
    return ApiError(
        400,
        f"This model's maximum context length is {limit} tokens. "
        f"However, the prompt has {prompt} tokens{asked}; "
        f"the prompt is too long to leave room for {answer}.",
        code="context_length_exceeded",
        param=param,
    )


def unauthorized(message: str) -> ApiError:
    """401: no key, or not the right one."""
    return ApiError(
        401,
        message,
        code="invalid_api_key",
        type=AUTHENTICATION,
        headers={"www-authenticate": "Bearer"},
    )


def malformed() -> ApiError:
    """400: what came is no HTTP."""
    return invalid("This is no HTTP request.", code="invalid_http")


def head_too_large() -> ApiError:
    """431: more header lines, or longer ones, than are read."""
    return ApiError(431, "The head of the request is too large.", code="headers_too_large")


def too_slow() -> ApiError:
    """408: the client takes too long to send its request."""
    message = "The request did not come to an end in time."
    return ApiError(408, message, code="request_timeout")


def model_not_found(model: str) -> ApiError:
    return ApiError(
        404,
        f"The model {_shortened(model)!r} does not exist.",
        code="model_not_found",
        param="model",
    )


def overloaded(message: str, retry_after: float | None) -> ApiError:
    """429: as many requests are open as the server takes."""
    return _queue_full(429, OVERLOADED, message, retry_after)


def house_full(message: str, retry_after: float | None) -> ApiError:
    """503 for a probe that asks whether a request would be taken; the request would get a 429."""
    return _queue_full(503, SERVER_ERROR, message, retry_after)


def _queue_full(status: int, type: str, message: str, retry_after: float | None) -> ApiError:
    headers = retry_headers(retry_after)
    return ApiError(status, sentence(message), code="queue_full", type=type, headers=headers)


def quota_exceeded(message: str, retry_after: float | None) -> ApiError:
    """429: as many requests of one tenant are open as it may have."""
    return ApiError(
        429,
        sentence(message),
        code="rate_limit_exceeded",
        type=RATE_LIMIT,
        headers=retry_headers(retry_after),
    )


def grammars_busy() -> ApiError:
    """503: so many schemas and grammars are being compiled that the next one would wait long."""
    return ApiError(
        503,
        "Too many other schemas and grammars are being compiled.",
        code="grammars_busy",
        type=SERVER_ERROR,
        headers=retry_headers(1.0),
    )


def grammars_unavailable(param: str) -> ApiError:
    """501: this server cannot hold an answer to anything; trying again would not help."""
    return ApiError(
        501,
        "This server has no structured outputs: what compiles schemas and grammars is not "
        "installed, or does not start. Its log says more.",
        code="structured_outputs_unavailable",
        type=SERVER_ERROR,
        param=param,
        headers={"x-should-retry": "false"},
    )


def larger_than_budget(tenant: str, tokens: int, most: float) -> ApiError:
    """400: more tokens than the tenant may ever use at once, so waiting would not help."""
    return invalid(
        f"This request may need {tokens} tokens (its prompt, and max_tokens for each answer), and "
        f"tenant {tenant} may use {most:.0f} at once. Lower max_tokens, or shorten the prompt.",
        "max_tokens",
        code="larger_than_quota",
    )


def not_ready(failure: Failure) -> ApiError:
    """503: starting, draining, or the engine has stopped; nothing was tried."""
    draining = failure.kind is FailureKind.SHUTTING_DOWN
    return ApiError(
        503,
        sentence(failure.message),
        code="shutting_down" if draining else "not_ready",
        type=SERVER_ERROR,
        headers=retry_headers(failure.retry_after),
    )


def from_failure(failure: Failure) -> ApiError:
    """Translate the engine's verdict on a request."""
    kind, message = failure.kind, sentence(failure.message)
    if kind is FailureKind.NEVER_FITS:
        return invalid(message, code="context_length_exceeded")
    if kind is FailureKind.GRAMMAR:
        return invalid(message, code="grammar_failed")
    if kind is FailureKind.CLIENT_LAGGED:
        return ApiError(408, message, code="client_lagged")
    if kind is FailureKind.ENGINE_FAULT:
        return ApiError(500, message, code="internal_error", type=SERVER_ERROR)
    if kind is FailureKind.SHED:
        return overloaded(message, failure.retry_after)
    if kind in (FailureKind.SHUTTING_DOWN, FailureKind.NOT_READY):
        return not_ready(failure)
    retry = retry_headers(failure.retry_after)
    # Past its deadline in the queue: trying again at once would only lengthen the queue.
    headers = {**retry, "x-should-retry": "false"}
    return ApiError(503, message, code="deadline_exceeded", type=SERVER_ERROR, headers=headers)


def retry_headers(retry_after: float | None) -> dict[str, str]:
    """`retry-after` in whole seconds (RFC 9110) and in milliseconds, clamped to 1..59 s."""
    wanted = retry_after if retry_after is not None and math.isfinite(retry_after) else 0.0
    seconds = min(max(wanted, RETRY_AFTER_MIN_S), RETRY_AFTER_MAX_S)
    return {
        "retry-after": str(math.ceil(seconds)),
        "retry-after-ms": str(math.ceil(seconds * 1000)),
    }


def _shortened(text: str, limit: int = 120) -> str:
    return text if len(text) <= limit else text[:limit] + "…"


def sentence(text: str) -> str:
    """As it is shown to clients: a capital letter and a full stop."""
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")
