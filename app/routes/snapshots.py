"""What the admin routes share: how many requests are asked for, and a request as JSON."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request

from app.directory import Directory
from app.errors import invalid
from engine.outputs import RequestSnapshot


def limit_of(request: Request, name: str, usual: int, most: int) -> int:
    """The number in the query parameter `name`, `usual` without it; ApiError (400) if it is none,
    or more than `most`."""
    text = request.query_params.get(name, str(usual))
    if not (text.isdecimal() and text.isascii() and len(text) < 6 and int(text) <= most):
        raise invalid(f"{name} is a number from 0 to {most}.", name)
    return int(text)


def request_snapshot(request: RequestSnapshot, directory: Directory) -> dict[str, Any]:
    """`id` is the engine's; the others are None for a request whose client has left."""
    names = directory.names(request.id)
    return {
        "id": request.id,
        "reply_id": names.reply if names else None,
        "request_id": names.http if names else None,
        "phase": request.phase,
        "tenant": request.tenant,
        "class": request.slo_class,
        "priority": request.priority,
        "prompt_tokens": request.prompt,
        "computed_tokens": request.computed,
        "generated_tokens": request.generated,
        "preemptions": request.preemptions,
        "blocks": [len(table) for table in request.blocks],
        "host_blocks": [len(table) for table in request.host_blocks],
    }
