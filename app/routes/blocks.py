"""GET /admin/blocks. Everything below /admin is behind `AdminDoor`."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

import orjson
from starlette.requests import Request
from starlette.responses import Response

from app.directory import Directory
from app.routes.snapshots import limit_of, pool_counts, request_snapshot
from app.service import Service
from engine.outputs import Inspection

REQUESTS: Final = 100
"""Requests that are listed unless a client asks for fewer or more: those that run first."""

MOST_REQUESTS: Final = 1000

BLOCK_BYTES: Final = 64
"""Of the reply, roughly, for each block."""


async def blocks(service: Service, request: Request) -> Response:
    """Which request owns which block of the KV cache, as the engine saw it between two steps."""
    limit = limit_of(request, "requests", REQUESTS, MOST_REQUESTS)
    seen = await service.bridge.inspect(limit)
    size = BLOCK_BYTES * len(seen.pool.owners)
    body = await service.off_loop(size, _blocks, seen, service.directory)
    return Response(body, media_type="application/json")


def _blocks(seen: Inspection, directory: Directory) -> bytes:
    return orjson.dumps(
        {
            **pool_counts(seen),
            "running": seen.stats.running,
            "waiting": seen.stats.waiting,
            "blocks": _each_block(seen),
            "requests": [request_snapshot(request, directory) for request in seen.requests],
        }
    )


def _each_block(seen: Inspection) -> list[dict[str, Any]]:
    """One entry a block, in order. `sequences`: [request, index] of the owners that are listed.

    A block that a step in flight may still write has an owner and no sequence, and so have the
    blocks of requests that are not listed.
    """
    owners = seen.pool.owners
    free, cached = {"state": "free"}, {"state": "cached"}
    entries: list[dict[str, Any]] = [free] * len(owners)
    for block in seen.pool.cached:
        entries[block] = cached
    several: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for request in seen.requests:
        for index, table in enumerate(request.blocks):
            alone = _owned(1, [(request.id, index)])  # one object for all: pools are large
            for block in table:
                if owners[block] == 1:
                    entries[block] = alone
                else:
                    several[block].append((request.id, index))
    for block, count in enumerate(owners):
        if count and entries[block] is free:
            entries[block] = _owned(count, several.get(block, []))
    return entries


def _owned(owners: int, sequences: list[tuple[int, int]]) -> dict[str, Any]:
    return {"state": "owned", "owners": owners, "sequences": sequences}
