"""From a configuration to what a simulation of it needs: policy, machine, promises, shares.

What `octavo serve` would do with a request is done here with an arrival of a trace: its tenant's
weight, its class, the class's targets and limits, the policy with its parameters, the step's
budgets, how blocks are held and given back. Left out: what the front end refuses before a request
reaches the engine (limits.*, quotas), speculation, and text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from app.config import Config
from app.config.schema import DEFAULT, ClassConfig
from app.engine_settings import guard_settings, simulated_cost
from app.policy_loader import ConfiguredPolicy
from app.problems import BadConfiguration, Problem
from app.tenancy import Tenancy, class_limits
from engine.allocation import ALLOCATIONS
from engine.batch import BLOCK
from engine.decisions import DecisionSink, no_log
from engine.simulation import Machine, Simulation, Targets, simulate
from engine.simulation.residuals import Residuals
from engine.simulation.scatter import Scatter
from engine.simulation.usage import Usage
from loadtest.profiles import Profile
from loadtest.traces import Arrival


@dataclass(frozen=True, slots=True)
class House:
    """A configuration in virtual time. Can be sent to other processes.

    machine: what it runs on, with all that the configuration says of it.
    """

    config: Config
    machine: Machine

    @property
    def policy(self) -> ConfiguredPolicy:
        """Makes its policy."""
        return ConfiguredPolicy(self.config.scheduler)

    @property
    def targets(self) -> dict[str, Targets]:
        """What each class is promised."""
        return targets_of(self.config)

    @property
    def weights(self) -> dict[str, float]:
        """Each tenant's share; "default" stands for all others."""
        return {name: each.weight for name, each in self.config.tenants.items()}

    def received(self, arrivals: Sequence[Arrival]) -> list[Arrival]:
        """The arrivals in the classes that the front end would put them into.

        Tenants are known by their names; who is not in the configuration has the rights of
        "default" and keeps its name. An arrival of the class "default" asks for none.
        """
        tenancy = Tenancy(self.config)
        classes: dict[tuple[str, str], str] = {}
        for each in arrivals:
            who = each.tenant, each.slo_class
            if who not in classes:
                asked = None if each.slo_class == DEFAULT else each.slo_class
                classes[who] = tenancy.named(each.tenant).terms(asked).slo_class
        return [replace(a, slo_class=classes[a.tenant, a.slo_class]) for a in arrivals]

    def simulate(
        self,
        arrivals: Sequence[Arrival],
        *,
        seed: int = 0,
        log: DecisionSink = no_log,
        tick: Callable[[], None] = lambda: None,
        scatter: Scatter | None = None,
        usage: Usage | None = None,
    ) -> Simulation:
        """Let the requests of a trace run in it; see `engine.simulation.simulate`."""
        return simulate(
            self.policy,
            self.received(arrivals),
            self.machine,
            targets=self.targets,
            weights=self.weights,
            seed=seed,
            log=log,
            tick=tick,
            scatter=scatter,
            usage=usage,
        )


def house_of(
    config: Config,
    profile: Profile | None = None,
    *,
    pool_tokens: int | None = None,
    noise: float | Residuals = 0.0,
) -> House:
    """The house that a configuration describes, on the machine that a profile describes.

    profile: None takes the step times and the blocks of `engine.simulated`, if that is the backend.
    pool_tokens: what the KV cache holds; None: as much as the profile, or `engine.simulated`, says.
    Raises ConfigurationError where that is not enough to go by.
    """
    engine, simulated = config.engine, config.engine.simulated
    if profile is None and engine.backend != "simulated":
        message = "the backend is not simulated, so say what a step takes (octavo calibrate)"
        raise BadConfiguration(Problem("--profile", message))
    if profile is None:
        cost = simulated_cost(config)
        own_tokens: int | None = simulated.total_blocks * BLOCK
        host_blocks, move_seconds = simulated.host_blocks, simulated.move_s
    else:
        cost, own_tokens = profile.cost, profile.pool_tokens
        host_blocks, move_seconds = profile.host_blocks, profile.move_s
    own_length = profile.context_tokens if profile else None
    tokens = own_tokens if pool_tokens is None else pool_tokens
    if tokens is None:
        message = "the profile does not say how many tokens the KV cache holds"
        raise BadConfiguration(Problem("--pool-tokens", message))
    return House(
        config,
        Machine(
            cost,
            tokens,
            engine.step_tokens,
            engine.max_rows,
            classes=class_limits(config),
            guard=guard_settings(config),
            prefix_cache=engine.caches_prefixes,
            depth=engine.steps_in_flight,
            noise=noise,
            prompt_step_tokens=engine.prompt_step_tokens,
            model_len=config.model.max_model_len or own_length,
            allocation=ALLOCATIONS[engine.allocation],
            host_blocks=host_blocks if "offload" in engine.relief else 0,
            move_seconds=move_seconds,
            recompute="recompute" in engine.relief,
        ),
    )


def targets_of(config: Config) -> dict[str, Targets]:
    """What a configuration promises each class."""
    return {name: _targets(each) for name, each in config.classes.items()}


def _targets(config: ClassConfig) -> Targets:
    return Targets(
        ttft=config.ttft_s or math.inf,
        tpot=config.tpot_s or math.inf,
        queue=config.queue_timeout_s or math.inf,
        priority=config.priority,
    )
