"""What simulations of a server run on: its own engine, as it is configured and as it was timed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from app.config import Config
from app.engine_settings import guard_settings
from engine.allocation import ALLOCATIONS
from engine.batch import BLOCK
from engine.cost import FittedCost, LearningCost, LinearCost
from engine.loop import Engine
from engine.simulation import Machine

MachineMaker: TypeAlias = Callable[[], Machine]
"""Makes what simulations run on now, on which steps do not scatter."""


def machine_of(engine: Engine, config: Config) -> Machine:
    """The machine that an engine runs on, with what its cost model knows by now.

    Asked from another thread than the engine's: all that is read is exchanged whole.
    """
    scheduler, backend, settings = engine.scheduler, engine.backend, config.engine
    limits = scheduler.limits
    return Machine(
        known_cost(engine.cost),
        backend.total_blocks * BLOCK,
        limits.step_tokens,
        limits.rows,
        classes=limits.classes,
        guard=guard_settings(config),
        prefix_cache=settings.caches_prefixes,
        depth=engine.depth,
        prompt_step_tokens=limits.prompt_step_tokens,
        model_len=limits.model_len,
        allocation=ALLOCATIONS[settings.allocation],
        host_blocks=backend.host_blocks if "offload" in settings.relief else 0,
        move_seconds=backend.move_seconds,
        recompute="recompute" in settings.relief,
    )


def known_cost(cost: LearningCost) -> LinearCost:
    """What a cost model knows by now, frozen. Raises TypeError for one that is no linear model."""
    if isinstance(cost, FittedCost):
        return cost.coefficients
    if isinstance(cost, LinearCost):
        return cost
    raise TypeError(f"{type(cost).__name__} has no coefficients")
