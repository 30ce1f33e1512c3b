"""Logs: one line an event, and one canonical line a request.

structlog and the standard library's loggers (uvicorn's among them) end in the same handler. Neither
prompt nor answer is ever logged; tracebacks are written without local variables, which hold both.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, TextIO

import orjson
import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

_FROM_EVERYWHERE: Final[Sequence[Processor]] = (
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_logger_name,
    structlog.stdlib.add_log_level,
    structlog.stdlib.PositionalArgumentsFormatter(),
    structlog.processors.TimeStamper(fmt="iso", utc=True),
)
_UVICORN: Final = ("uvicorn", "uvicorn.error", "uvicorn.access")


def configure_logs(
    level: str = "info",
    format: Literal["auto", "json", "console"] = "auto",
    stream: TextIO | None = None,
) -> None:
    """Send every log line of the process to `stream` (default: stderr), in one format.

    `level` is debug, info, warning or error; format `auto` is console on a terminal, else json.
    Run uvicorn with `log_config=None`, or it replaces the handlers; its access log is silenced,
    since `log_request` says more. May be called again.
    """
    stream = stream if stream is not None else sys.stderr
    console = format == "console" or (format == "auto" and stream.isatty())
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=_FROM_EVERYWHERE,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *_renderers(console, colors=stream.isatty()),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    _take_over_uvicorn()
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *_FROM_EVERYWHERE,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
    )


def _renderers(console: bool, colors: bool) -> list[Processor]:
    if console:
        plain = structlog.dev.plain_traceback
        renderer = structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=plain)
        return [_drop_absent, renderer]
    return [structlog.processors.format_exc_info, _render_json]


def _drop_absent(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Fields that are None tell a person nothing."""
    return {name: value for name, value in event.items() if value is not None}


def _render_json(logger: WrappedLogger, method: str, event: EventDict) -> str:
    """One JSON object. What orjson refuses (lone surrogates, huge integers) is escaped instead."""
    try:
        return orjson.dumps(event, default=repr, option=orjson.OPT_NON_STR_KEYS).decode()
    except TypeError:
        return json.dumps(event, default=repr)


def _take_over_uvicorn() -> None:
    for name in _UVICORN:
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.setLevel(logging.NOTSET)
        logger.propagate = name != "uvicorn.access"
    logging.getLogger("uvicorn.access").disabled = True


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLine:
    """What is known of a request when it ends; times in seconds, None for what never happened."""

    request_id: str
    route: str
    status: int
    model: str | None = None
    stream: bool = False
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    finish_reason: str | None = None
    queue_s: float | None = None
    """From arrival to admission."""
    ttft_s: float | None = None
    """From arrival to the first token."""
    duration_s: float | None = None
    """From arrival to the last byte."""
    tenant: str | None = None
    slo_class: str | None = None
    """The class that it asked for; a policy may have put it into another."""
    client_disconnected: bool = False
    error: str | None = None
    """The error code that the client was given."""


_requests: Final = structlog.stdlib.get_logger("octavo.request")


PROBES: Final = frozenset(
    {
        "/health",
        "/health/live",
        "/health/ready",
        "/ping",
        "/load",
        "/metrics",
        "/admin/blocks",
        "/admin/live",
        "/admin/requests",
    }
)
"""Routes that machines ask every few seconds."""


def log_request(line: RequestLine) -> None:
    """Write the canonical line of a request: info, or error from status 500 on; probes debug."""
    fields: dict[str, Any] = {
        name: round(value, 6) if isinstance(value, float) else value
        for name, value in asdict(line).items()
    }
    _requests.log(_level(line), "request", **fields)


def _level(line: RequestLine) -> int:
    if line.route in PROBES and line.status != 500:  # 503 is the answer to /health, not a fault
        return logging.DEBUG
    return logging.ERROR if line.status >= 500 else logging.INFO
