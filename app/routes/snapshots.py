"""What the admin routes share: how many requests are asked for, and a request as JSON."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request

from app.directory import Directory
from app.errors import invalid
from engine.batch import BLOCK
from engine.outputs import (
    Blocker,
    Inspection,
    Position,
    RequestExplanation,
    RequestSnapshot,
    StartEstimate,
)


def limit_of(request: Request, name: str, usual: int, most: int) -> int:
    """The number in the query parameter `name`, `usual` without it; ApiError (400) if it is none,
    or more than `most`."""
    text = request.query_params.get(name, str(usual))
    if not (text.isdecimal() and text.isascii() and len(text) < 6 and int(text) <= most):
        raise invalid(f"{name} is a number from 0 to {most}.", name)
    return int(text)


def pool_counts(seen: Inspection) -> dict[str, Any]:
    """How many blocks of the pool are owned, shared, cached and free, and how many the host has."""
    pool, stats = seen.pool, seen.stats
    owned = sum(count > 0 for count in pool.owners)
    return {
        "total": len(pool.owners),
        "block_size": BLOCK,
        "free": len(pool.owners) - owned - len(pool.cached),
        "cached": len(pool.cached),
        "owned": owned,
        "shared": sum(count > 1 for count in pool.owners),
        "host": {"total": stats.host_blocks_total, "free": stats.host_blocks_free},
    }


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


def brief(why: RequestExplanation, now: float, directory: Directory) -> dict[str, Any]:
    """A request, where it stands at engine time `now`, and what it waits for if it does."""
    waits = why.request.phase in ("waiting", "preempted")
    return {
        **request_snapshot(why.request, directory),
        "age_s": now - why.request.arrival,
        "lost_tokens": why.lost,
        "position": _position(why.position),
        "blocked_by": list(map(_blocker, why.blockers)) if waits else None,
        "start_in_s": _start(why.start),
    }


def _position(position: Position | None) -> dict[str, Any] | None:
    if position is None:
        return None
    return {
        "flow": position.flow[:120],
        "place": position.place,
        "of": position.of,
        "exact": position.exact,
        "lines": position.lines,
    }


def _blocker(blocker: Blocker) -> dict[str, Any]:
    return {"by": blocker.by, "needs": blocker.needs, "left": blocker.left}


def _start(start: StartEstimate | None) -> dict[str, float] | None:
    if start is None:
        return None
    return {"estimate": start.seconds, "low": start.low, "high": start.high}
