"""What a viewer is shown: the engine between two steps, what each request waits for, and lately."""

from __future__ import annotations

import asyncio
import math
from typing import Any, Final

from pydantic_core import to_json

from app.live.cells import cells
from app.live.history import History
from app.routes.snapshots import brief, pool_counts
from app.service import SMALL_INPUT, Service
from engine.outputs import Explanations, Inspection

REQUESTS: Final = 100
"""Requests that are shown: those that run first, then those that wait, the oldest first."""

FRESH_S: Final = 0.5
"""Seconds for which everybody who looks is shown the same."""


class LiveView:
    """Makes the document of GET /admin/live: at most two a second, however many look.

    The engine is asked once for all viewers, as for any look inside it; it answers between two
    steps, and waits for nobody. Without viewers nothing is made.
    """

    def __init__(self, service: Service, history: History) -> None:
        self._service = service
        self._history = history
        self._making: asyncio.Task[bytes] | None = None
        self._body = b""
        self._made = -math.inf

    async def document(self) -> bytes:
        """As JSON, half a second old at most. Raises NotReady if the engine does not answer."""
        if self._service.clock.now() - self._made < FRESH_S:
            return self._body
        if self._making is None:
            self._making = asyncio.ensure_future(self._make())
            self._making.add_done_callback(self._done)
        return await asyncio.shield(self._making)  # who leaves does not take it from the others

    def _done(self, making: asyncio.Task[bytes]) -> None:
        self._making = None
        if not making.cancelled():
            making.exception()  # everybody who waited for it may have left

    async def _make(self) -> bytes:
        service = self._service
        seen, why = await asyncio.gather(
            service.bridge.inspect(REQUESTS), service.bridge.explain(None, REQUESTS)
        )
        document = self._document(seen, why)
        self._body = await service.off_loop(SMALL_INPUT + 1, _render, document, seen)
        self._made = service.clock.now()
        return self._body

    def _document(self, seen: Inspection, why: Explanations) -> dict[str, Any]:
        """All but the map, which takes longest; plain numbers, so that any thread may read it."""
        service, stats = self._service, why.stats
        current = service.policies.current
        return {
            "now": stats.now,
            "model": service.model_id,
            "policy": {
                "policy": current.policy,
                "params": current.params,
                "fallen_back": why.fallen_back,
                "last_fault": why.last_fault or None,
                "faults": stats.policy_faults,
                "forced_admissions": stats.forced_admissions,
            },
            "experiment": None if service.experiment is None else service.experiment.document(),
            "shadow": None if service.shadow is None else service.shadow.document(),
            "running": stats.running,
            "waiting": stats.waiting,
            "classes": sorted(service.tenancy.class_names),
            "running_by_class": dict(stats.running_by_class),
            "waiting_by_class": dict(stats.waiting_by_class),
            "preemptions": stats.counters.preemptions,
            "cached_tokens": stats.counters.cached_tokens,
            "looked_up_tokens": stats.counters.looked_up_tokens,
            "requests": [brief(each, why.stats.now, service.directory) for each in why.requests],
            "steps": self._history.steps(),
            "seconds": self._history.seconds(service.clock.now()),
        }


def _render(document: dict[str, Any], seen: Inspection) -> bytes:
    """Parameters of a policy may be anything: numbers beyond 64 bits, and what JSON has not."""
    document["blocks"] = _blocks(seen)
    return to_json(document, inf_nan_mode="null", fallback=repr)


def _blocks(seen: Inspection) -> dict[str, Any]:
    """Counts of the pool, and its map. owners: the engine's ids of the requests in the map."""
    return {
        **pool_counts(seen),
        "owners": [request.id for request in seen.requests],
        **cells(seen).render(),
    }
