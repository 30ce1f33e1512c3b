"""What a recording says of the engine that it is of: all that a replay is made from."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from app.recording.names import Names
from app.recording.rows import limits_of
from engine.allocation import ALLOCATIONS
from engine.cost import FittedCost, LearningCost
from engine.inbox import PolicyName
from engine.limits import Limits
from engine.loop import Engine
from engine.scheduler import Scheduler


def describe(engine: Engine, policy: PolicyName, names: Names) -> dict[str, Any]:
    """The engine before its first turn. Infinite numbers are null."""
    scheduler, backend = engine.scheduler, engine.backend
    return {
        "policy": [policy.name, names.params(policy.params)],
        "limits": _limits(scheduler.limits, names),
        "guard": _finite(asdict(scheduler.guard.settings)),
        "memory": _memory(scheduler),
        "backend": {
            "blocks": backend.total_blocks,
            "host_blocks": backend.host_blocks,
            "move_s": backend.move_seconds,
        },
        "cost": {
            "learns": isinstance(engine.cost, FittedCost),
            "coefficients": coefficients(engine.cost),
        },
        "guesses": scheduler.drafter is not None,
        "depth": engine.depth,
    }


def coefficients(cost: LearningCost) -> list[float]:
    """Seconds of a step, of each prompt token in it, and so on, as `LinearCost` has them."""
    known: Any = cost.coefficients if isinstance(cost, FittedCost) else cost
    return [known.base, known.prompt_token, known.decode, known.kv_read, known.chunk_context]


def _limits(limits: Limits, names: Names) -> dict[str, Any]:
    return {
        "step_tokens": limits.step_tokens,
        "prompt_step_tokens": limits.prompt_step_tokens,
        "rows": limits.rows,
        "model_len": limits.model_len,
        "classes": limits_of(limits.classes, names),
    }


def _memory(scheduler: Scheduler) -> dict[str, Any]:
    memory, relief = scheduler.memory, scheduler.relief
    offload = relief.offload
    return {
        "allocation": next(n for n, each in ALLOCATIONS.items() if each is memory.allocation),
        "prefix_cache": memory.cache,
        "offload": None if offload is None else [offload.blocks, offload.move_seconds],
        "recompute": relief.recompute,
    }


def _finite(settings: dict[str, Any]) -> dict[str, Any]:
    return {
        name: None if isinstance(value, float) and math.isinf(value) else value
        for name, value in settings.items()
    }
