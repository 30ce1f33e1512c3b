"""The policies that a configuration names, each under its key."""

from __future__ import annotations

from collections.abc import Mapping

from app.config.experiment_schema import ArmConfig
from app.config.schema import Config, SchedulerConfig
from app.config.shadow_schema import ShadowPolicyConfig


def arms(config: Config) -> dict[str, SchedulerConfig]:
    """An experiment's arms."""
    return _under("experiment.arms", config.experiment.arms, config.scheduler)


def named_policies(config: Config) -> dict[str, SchedulerConfig]:
    """What is in charge first, an experiment's arms, and shadows."""
    shadows = _under("shadow.policies", config.shadow.policies, config.scheduler)
    return {"scheduler": config.scheduler} | arms(config) | shadows


def _under(
    section: str,
    policies: Mapping[str, ArmConfig] | Mapping[str, ShadowPolicyConfig],
    scheduler: SchedulerConfig,
) -> dict[str, SchedulerConfig]:
    return {
        f"{section}.{name}": scheduler.model_copy(update=dict(each))
        for name, each in policies.items()
    }
