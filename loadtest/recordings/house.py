"""The engine that a recording is of, surrounded by what was recorded."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from app.config.schema import SchedulerConfig
from app.policy_loader import load_policy
from engine.allocation import ALLOCATIONS
from engine.blocks import BlockPool
from engine.cost import FittedCost, LearningCost, LinearCost
from engine.decisions import DecisionSink
from engine.guard import GuardSettings
from engine.inbox import Message, PolicyName, Reconfigure
from engine.limits import Limits
from engine.loop import Emit, Engine
from engine.outputs import Look
from engine.recorder import Turn
from engine.relief import Offload, ReliefSettings
from engine.scheduler import Scheduler
from loadtest.recordings.outside import Recorded
from loadtest.recordings.turns import limits_of
from policies.base import Policy, Services

MakePolicy = Callable[[PolicyName], Policy]


@dataclass(frozen=True, slots=True)
class RecordedHouse:
    """An engine to which what is recorded happens again.

    make_policy: what a recorded swap puts in charge.
    """

    engine: Engine
    recorded: Recorded
    make_policy: MakePolicy

    def play(self, turn: Turn) -> None:
        """One turn. Raises Diverged where it asks for other things than it did then."""
        self.recorded.begin(turn)
        self.engine.step([self._with_policy(message) for message in turn.mail])
        self.recorded.end()

    def _with_policy(self, message: Message) -> Message:
        if not isinstance(message, Reconfigure) or message.named is None:
            return message
        return replace(message, policy=self.make_policy(message.named))


def build(header: Mapping[str, Any], log: DecisionSink, emit: Emit | None = None) -> RecordedHouse:
    """The house that a recording's header describes, before its first turn.

    Raises ConfigurationError for a policy that there is not here, and KeyError, TypeError or
    ValueError for a header that says something else.
    """
    cost = _cost(header["cost"])

    def make_policy(named: PolicyName) -> Policy:
        wanted = SchedulerConfig(policy=named.name, params=dict(named.params))
        return load_policy(wanted, Services(cost, random.Random(0)))

    memory, backend, limits = header["memory"], header["backend"], dict(header["limits"])
    recorded = Recorded(backend["blocks"], backend["host_blocks"], backend["move_s"])
    limits["classes"] = limits_of(limits["classes"])
    offload = memory["offload"]
    relief = ReliefSettings(
        None if offload is None else Offload(offload[0], offload[1], cost), memory["recompute"]
    )
    scheduler = Scheduler(
        make_policy(PolicyName(*header["policy"])),
        BlockPool(recorded.total_blocks),
        Limits(**limits),
        guard=_guard(header["guard"]),
        log=log,
        prefix_cache=memory["prefix_cache"],
        allocation=ALLOCATIONS[memory["allocation"]],
        relief=relief,
        drafter=recorded if header["guesses"] else None,
        cpu_clock=recorded.cpu_time,
        outside=recorded,
    )
    recorded.scheduler = scheduler
    engine = Engine(
        scheduler=scheduler,
        backend=recorded,
        clock=recorded,
        cost=cost,
        emit=emit or _nobody_listens,
        depth=header["depth"],
    )
    return RecordedHouse(engine, recorded, make_policy)


def _cost(row: Mapping[str, Any]) -> LearningCost:
    known = LinearCost(*row["coefficients"])
    return FittedCost(known) if row["learns"] else known


def _guard(row: Mapping[str, Any]) -> GuardSettings:
    bounds: dict[str, Any] = {n: math.inf if each is None else each for n, each in row.items()}
    return GuardSettings(**bounds)


def _nobody_listens(outputs: object, look: Look) -> None:
    """What is said was said then."""
