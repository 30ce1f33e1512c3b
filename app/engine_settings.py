"""What the engine is told by a configuration, as far as no model has to be loaded for it."""

from __future__ import annotations

from app.config.schema import Config
from app.tenancy import class_limits
from engine.cost import LinearCost
from engine.guard import GuardSettings
from engine.limits import Limits


def step_limits(config: Config, model_len: int) -> Limits:
    """What steps, classes and requests of at most `model_len` tokens are kept to."""
    return Limits(
        step_tokens=config.engine.step_tokens,
        prompt_step_tokens=config.engine.prompt_step_tokens,
        rows=config.engine.max_rows,
        model_len=model_len,
        classes=class_limits(config),
    )


def guard_settings(config: Config) -> GuardSettings:
    """What no policy may do."""
    guard = config.guard
    return GuardSettings(
        enabled=guard.enabled,
        every=guard.every,
        window=guard.window,
        max_hold_s=guard.max_hold_s,
        max_step_cpu_s=guard.max_step_cpu_s,
    )


def simulated_cost(config: Config) -> LinearCost:
    """The step times of the simulated backend."""
    simulated = config.engine.simulated
    return LinearCost(
        base=simulated.base_s,
        prompt_token=simulated.prompt_token_s,
        decode=simulated.decode_s,
        kv_read=simulated.kv_read_s,
        chunk_context=simulated.chunk_context_s,
    )
