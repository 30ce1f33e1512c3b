"""Engines for tests: a scheduler, a scripted backend and virtual time, driven by hand."""

from __future__ import annotations

import math
import random
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from engine.allocation import PAGED, Allocation
from engine.backends.base import Backend
from engine.backends.scripted import ScriptedBackend, echo
from engine.blocks import BlockPool
from engine.clock import VirtualClock
from engine.controls import RowControls
from engine.cost import LinearCost
from engine.decisions import DecisionLog
from engine.guard import GuardSettings
from engine.inbox import Abort, FinishAt, Message, Submission
from engine.limits import ClassLimits, Limits
from engine.loop import Engine
from engine.outputs import Finish, Look, Output, Stats
from engine.outside import OUTSIDE, Outside
from engine.recorder import Recorder
from engine.relief import Offload, ReliefSettings
from engine.scheduler import Scheduler
from engine.speculation import Drafter
from policies.base import Policy, Services
from policies.fcfs import FCFS

GREEDY = RowControls(temperature=0.0)


def services() -> Services:
    return Services(cost=LinearCost(base=0.01), rng=random.Random(0))


NO_CPU_LIMIT = GuardSettings(max_step_cpu_s=math.inf)
"""The machines that run tests are busy; CPU time has tests of its own."""


RECOMPUTING = LinearCost(prompt_token=1.0)
"""Computing anything again takes longer than moving it, for a backend that moves in no time."""


class Harness:
    """An engine that takes a step when told, checks its invariants, and remembers everything.

    host_blocks: what preempted requests may be offloaded to, unless `backend` says itself.
    recorder: notes what the engine is given. outside: what else is measured, instead.
    """

    def __init__(
        self,
        *,
        blocks: int = 64,
        budget: int = 64,
        prompt_budget: int | None = None,
        rows: int = 16,
        model_len: int = 512,
        policy: Callable[..., Policy] = FCFS,
        backend: Backend | None = None,
        depth: int = 0,
        guard: GuardSettings = NO_CPU_LIMIT,
        prefix_cache: bool | None = None,
        host_blocks: int = 0,
        offload_cost: LinearCost = RECOMPUTING,
        recompute: bool = True,
        allocation: Allocation = PAGED,
        drafter: Drafter | None = None,
        classes: Mapping[str, ClassLimits] | None = None,
        recorder: Recorder | None = None,
        outside: Outside = OUTSIDE,
        cpu_clock: Callable[[], float] = time.thread_time,
        **scripted: Any,
    ) -> None:
        self.clock = VirtualClock()
        scripted.setdefault("script", echo)
        scripted.setdefault("host_blocks", host_blocks)
        self.backend: Any = backend or ScriptedBackend(blocks, **scripted)
        host_blocks = self.backend.host_blocks
        offload = Offload(host_blocks, self.backend.move_seconds, offload_cost)
        self.pool = BlockPool(blocks)
        self.policy = policy(services=services())
        self.log = DecisionLog()
        self._recorder = recorder
        if recorder is not None:
            outside = recorder
        self.scheduler = Scheduler(
            self.policy,
            self.pool,
            Limits(budget, rows, model_len, classes or {}, prompt_budget),
            guard=guard,
            log=self._decided,
            prefix_cache=allocation.shares if prefix_cache is None else prefix_cache,
            allocation=allocation,
            relief=ReliefSettings(offload if host_blocks else None, recompute),
            drafter=drafter,
            cpu_clock=cpu_clock,
            outside=outside,
        )
        self.outputs: dict[tuple[int, int], list[Output]] = defaultdict(list)
        self.stats = Stats()
        self.engine = Engine(
            scheduler=self.scheduler,
            backend=self.backend,
            clock=self.clock,
            cost=LinearCost(),
            emit=self._take,
            depth=depth,
            recorder=recorder,
        )
        self.mail: list[Message] = []
        self._next_id = 0

    def _decided(self, *entry: Any) -> None:
        self.log(*entry)
        if self._recorder is not None:
            self._recorder.decided(*entry)

    def _take(self, outputs: Sequence[Output], look: Look) -> None:
        self.stats = look()
        for output in outputs:
            self.outputs[output.request, output.index].append(output)

    def submit(
        self,
        prompt: Sequence[int] | int,
        max_tokens: int = 4,
        controls: RowControls = GREEDY,
        **fields: Any,
    ) -> int:
        """Post a request (a number stands for a prompt of that many distinct tokens)."""
        self._next_id += 1
        if isinstance(prompt, int):
            prompt = [self._next_id * 1000 + i for i in range(prompt)]
        fields.setdefault("arrival", self.clock.now())
        self.mail.append(Submission(self._next_id, list(prompt), max_tokens, controls, **fields))
        return self._next_id

    def abort(self, request: int) -> None:
        self.mail.append(Abort(request))

    def finish(self, request: int, tokens: int, index: int = 0) -> None:
        self.mail.append(FinishAt(request, index, tokens))

    def step(self) -> bool:
        """One step; invariants hold after it."""
        mail, self.mail = self.mail, []
        worked = self.engine.step(mail)
        self.clock.advance(0.001)
        self.scheduler.check()
        return worked

    def run(self, limit: int = 10_000) -> int:
        """Step until every request has ended; the number of steps that computed something."""
        steps = 0
        for _ in range(limit):
            steps += self.step()
            if not self.scheduler.live and not self.scheduler.in_flight and not self.mail:
                host = self.scheduler.roster.host
                assert host.free == host.total, "E12: host blocks"
                return steps
        raise AssertionError(f"still busy after {limit} steps")

    def tokens(self, request: int, index: int = 0) -> list[int]:
        """Everything the sequence generated."""
        return [t for output in self.outputs[request, index] for t in output.tokens]

    def end(self, request: int, index: int = 0) -> Finish | None:
        """How the sequence ended, or None while it has not."""
        outputs = self.outputs[request, index]
        return outputs[-1].finish if outputs else None
