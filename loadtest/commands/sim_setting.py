"""What `octavo sim` simulates: what its options say, or a configuration."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import click

from app.commands.options import policy_option
from app.config import LoadedConfig
from app.config.schema import SchedulerConfig
from app.policy_loader import ConfiguredPolicy
from app.problems import BadConfiguration, Problem
from engine.simulation import Machine, Simulation, Targets, simulate
from engine.simulation.residuals import Residuals
from loadtest.houses import house_of
from loadtest.profiles import Profile, find_profile
from loadtest.traces import Arrival

USUAL_PROFILE: Final = "vtc_a10g"
USUAL_POOL_TOKENS: Final = 10_000
"""Where neither an option nor the profile says."""

MEASURED: Final = "measured"
"""The noise that a profile has residuals for."""

IN_CONFIG: Final = {
    "policy": "scheduler.policy",
    "params": "scheduler.params.NAME",
    "step_tokens": "engine.max_step_tokens",
    "rows": "engine.max_rows",
    "ttft": "classes.NAME.ttft_s",
    "tpot": "classes.NAME.tpot_s",
    "e2e": "",
}
"""The options that a configuration takes the place of, and its keys."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What is simulated: in words for JSON, and as a function of the arrivals, seed and tick."""

    facts: dict[str, Any]
    run: Callable[[list[Arrival], int, Callable[[], None]], Simulation]


def own_setting(
    *,
    policy: str,
    params: tuple[str, ...],
    profile: str | None,
    noise: float | str,
    pool_tokens: int | None,
    step_tokens: int,
    rows: int,
    ttft: float | None,
    tpot: float | None,
    e2e: float | None,
) -> Setting:
    """What the options say."""
    scheduler = policy_option(policy, params)
    costs = find_profile(profile or USUAL_PROFILE)
    tokens = pool_tokens or costs.pool_tokens or USUAL_POOL_TOKENS
    machine = _machine(costs, tokens, step_tokens, rows, noise_of(noise, costs))
    promised = Targets(ttft or math.inf, tpot or math.inf, e2e or math.inf)

    def run(arrivals: list[Arrival], seed: int, tick: Callable[[], None]) -> Simulation:
        targets = {arrival.slo_class: promised for arrival in arrivals}
        maker = ConfiguredPolicy(scheduler)
        return simulate(maker, arrivals, machine, targets=targets, seed=seed, tick=tick)

    return Setting(_facts(scheduler, costs, machine, None), run)


def configured_setting(
    context: click.Context,
    loaded: LoadedConfig,
    *,
    profile: str | None,
    noise: float | str,
    pool_tokens: int | None,
    **replaced: Any,
) -> Setting:
    """What a configuration says."""
    for option in replaced:
        if context.get_parameter_source(option) is click.core.ParameterSource.COMMANDLINE:
            raise _said_in_config(option)
    costs = find_profile(profile) if profile else None
    house = house_of(loaded.config, costs, pool_tokens=pool_tokens, noise=noise_of(noise, costs))

    def run(arrivals: list[Arrival], seed: int, tick: Callable[[], None]) -> Simulation:
        return house.simulate(arrivals, seed=seed, tick=tick)

    config = loaded.config
    return Setting(_facts(config.scheduler, costs, house.machine, loaded), run)


def _said_in_config(option: str) -> BadConfiguration:
    name = f"--{option.replace('_', '-')}"
    key = IN_CONFIG[option]
    instead = f"use --set {key}=VALUE" if key else "there is no key for it"
    return BadConfiguration(Problem(name, f"the configuration says that; {instead}"))


def noise_of(noise: float | str, profile: Profile | None) -> float | Residuals:
    """How steps scatter: as is said, or MEASURED. Raises BadConfiguration where nobody measured."""
    if not isinstance(noise, str):
        return noise
    if profile is None or not profile.residuals:
        raise BadConfiguration(Problem("--noise", "the profile has no residuals"))
    return profile.residuals


def _machine(
    profile: Profile, pool_tokens: int, step_tokens: int, rows: int, noise: float | Residuals
) -> Machine:
    """What is simulated. Raises BadConfiguration where some request would starve (E13)."""
    machine = Machine(profile.cost, pool_tokens, step_tokens, rows, noise=noise)
    window = machine.guard.window
    if rows + window > window * step_tokens:
        message = f"{rows} + {window} is more than {window} steps of {step_tokens} tokens compute"
        raise BadConfiguration(Problem("--rows", f"{message}, so some request would starve"))
    return machine


def _facts(
    scheduler: SchedulerConfig,
    profile: Profile | None,
    machine: Machine,
    loaded: LoadedConfig | None,
) -> dict[str, Any]:
    """What ran on what, for JSON."""
    return {
        "policy": scheduler.policy,
        "params": scheduler.params,
        "config": str(loaded.file) if loaded and loaded.file else None,
        "profile": profile.name if profile else "engine.simulated",
        "estimate": bool(profile and profile.estimate),
        "pool_tokens": machine.pool_tokens,
        "noise": MEASURED if isinstance(machine.noise, Residuals) else machine.noise,
        "step_tokens": machine.step_tokens,
        "rows": machine.rows,
    }
