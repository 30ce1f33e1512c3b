"""Which policy is in charge, and how another one is put there while requests are in flight."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, ParamSpec, TypeVar

import structlog

from app.bridge import Bridge
from app.config.schema import SchedulerConfig
from app.policy_loader import allowed_policies, default_params, find_policy, load_policy
from app.problems import BadConfiguration, Problem, suggest
from engine.inbox import PolicyName
from engine.limits import ClassLimits
from engine.outputs import Handover
from policies.base import Policy, Services

log = structlog.stdlib.get_logger("octavo.audit")

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Swap:
    """What was in charge, what is, and what the engine said to it."""

    old: SchedulerConfig
    new: SchedulerConfig
    handover: Handover


class Overtaken(Exception):
    """Somebody else put another policy in charge meanwhile."""


def same_policy(one: SchedulerConfig, other: SchedulerConfig) -> bool:
    """Whether two configurations name the same policy, with the same parameters."""
    return (one.policy, one.params) == (other.policy, other.params)


class PolicyDesk:
    """Makes policies and hands them to the engine, one swap after the other.

    Each swap is written to the log with who wanted it, and so is each that was refused: a
    configuration that cannot be used leaves what there is in charge. make_services: what a new
    policy is given.
    """

    def __init__(
        self,
        scheduler: SchedulerConfig,
        bridge: Bridge,
        make_services: Callable[[], Services],
    ) -> None:
        self._current = scheduler
        self._bridge = bridge
        self._make_services = make_services
        # One makes a policy while the other looks for those there are.
        self._executor = ThreadPoolExecutor(2, thread_name_prefix="octavo-policies")
        self._turn = asyncio.Lock()

    def close(self) -> None:
        """Look for no more policies; one that is being made comes too late."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    @property
    def current(self) -> SchedulerConfig:
        """The policy in charge, as a configuration names it, and the names that may be asked for.

        The guard may have put FCFS in its place for a while.
        """
        return self._current

    async def choices(self) -> dict[str, dict[str, Any]]:
        """The names that may be asked for, each with the parameters it takes and their defaults."""
        return await self._off_loop(_choices, self._current)

    async def ask_for(self, name: str, params: Mapping[str, Any], by: str) -> Swap:
        """Put a policy in charge that somebody asks for over HTTP.

        Raises BadConfiguration for a name that is not allowed and for what `load_policy` refuses,
        NotReady if the engine does not do it.
        """
        wanted = self._current.model_copy(update={"policy": name, "params": dict(params)})
        allowed = await self._off_loop(allowed_policies, self._current)
        if name not in allowed:
            hint = suggest(name, allowed, "policies that are allowed")
            problem = Problem("scheduler.policy", f"{name} is not in scheduler.allowed; {hint}")
            self._refused(wanted, by, problem)
            raise BadConfiguration(problem)
        return await self.swap(wanted, by)

    async def swap(
        self,
        wanted: SchedulerConfig,
        by: str,
        classes: Mapping[str, ClassLimits] | None = None,
        *,
        instead_of: SchedulerConfig | None = None,
    ) -> Swap:
        """Put the policy that `wanted` names in charge, and class limits in force with it.

        instead_of: who must be in charge when it is its turn. Raises as `ask_for` does, names that
        are not allowed aside, and Overtaken.
        """
        async with self._turn:
            if instead_of is not None and not same_policy(instead_of, self._current):
                raise Overtaken
            policy = await self._make(wanted, by)
            old = self._current
            handover = await self._bridge.reconfigure(
                policy,
                classes,
                partial(self._done, wanted, by),
                PolicyName(wanted.policy, wanted.params),
            )
            return Swap(old, wanted, handover)

    def allow(self, scheduler: SchedulerConfig) -> None:
        """From now on the names that `scheduler` allows may be asked for."""
        self._current = self._current.model_copy(update={"allowed": scheduler.allowed})

    async def _make(self, wanted: SchedulerConfig, by: str) -> Policy:
        try:
            return await self._off_loop(load_policy, wanted, self._make_services())
        except BadConfiguration as error:
            self._refused(wanted, by, *error.problems)
            raise

    async def _off_loop(
        self,
        work: Callable[Parameters, Result],
        *args: Parameters.args,
        **kwargs: Parameters.kwargs,
    ) -> Result:
        """Entry points are read from disk, and a plug-in may take its time to be imported and made.

        On threads of its own: nobody's text waits for it.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, partial(work, *args, **kwargs))

    def _done(self, new: SchedulerConfig, by: str, handover: Handover) -> None:
        old, self._current = self._current, new
        log.info(
            "policy swapped",
            by=by,
            old=old.policy,
            old_params=old.params,
            new=new.policy,
            new_params=new.params,
            step=handover.step,
            fault=handover.fault or None,
        )

    def _refused(self, wanted: SchedulerConfig, by: str, *problems: Problem) -> None:
        why = [str(problem) for problem in problems]
        log.warning("policy swap refused", by=by, policy=wanted.policy, why=why)


def _choices(scheduler: SchedulerConfig) -> dict[str, dict[str, Any]]:
    return {name: default_params(find_policy(name)) for name in allowed_policies(scheduler)}
