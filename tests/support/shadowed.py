"""A "live" engine that is itself simulated: what shadows predict of it can be exact."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace

from app.metrics import Metrics, Subject
from app.shadow.history import History
from app.shadow.measures import Score
from app.shadow.steps import Scatter, Steps
from app.shadow.traffic import Stretch
from engine.backends.simulated import Noise
from engine.clock import VirtualClock
from engine.controls import RowControls
from engine.cost import LinearCost
from engine.inbox import Message, Submission
from engine.outputs import Look, Output
from engine.prefix import block_keys
from engine.replay import replay
from engine.simulation import Machine
from engine.simulation.engine import virtual_engine
from policies.base import Policy, Services
from policies.fcfs import FCFS

COST = LinearCost(base=0.01, prompt_token=2e-4, decode=1e-3, kv_read=1e-7)
MACHINE = Machine(COST, pool_tokens=4096, step_tokens=128, rows=8)


def traffic(
    seconds: float, every_s: float = 0.25, seed: int = 0, begin: int = 1, **more: object
) -> list[Submission]:
    """Poisson arrivals of requests of two tenants, with lengths of their own."""
    chance, at, found = random.Random(f"shadowed {seed}"), 0.0, []
    while (at := at + chance.expovariate(1 / every_s)) < seconds:
        prompt = [chance.randrange(1000) for _ in range(chance.randint(8, 120))]
        each = Submission(
            id=begin + len(found),
            prompt=prompt,
            max_tokens=chance.randint(1, 60),
            controls=RowControls(ignore_eos=True),
            arrival=at,
            tenant=chance.choice(("a", "b")),
            prompt_keys=block_keys(prompt, b""),
        )
        found.append(replace(each, **more))  # type: ignore[arg-type]
    return found


class LiveHouse:
    """An engine in virtual time with the real book of requests, history and steps beside it."""

    def __init__(
        self,
        coming: Sequence[Submission],
        machine: Machine = MACHINE,
        policy: Callable[..., Policy] = FCFS,
        most: int = 10_000,
        seed: int = 7,
        noise: Noise | None = None,
    ) -> None:
        self.clock = VirtualClock()
        self.machine = machine
        self.metrics = Metrics(subject=Subject(clock=self.clock))
        self._mailed: float | None = None
        self.history = History(self._now, most)
        self.steps = Steps()
        self.metrics.tell(self.history)
        self._engine = virtual_engine(
            policy(services=Services(machine.cost, random.Random(0))),
            machine,
            self.clock,
            self._emitted,
            noise=noise or machine.noise_of(seed),
        )
        self._coming = list(coming)
        self._cut = 0.0
        self._followed: dict[int, ExitStack] = {}
        self._ends: dict[tuple[int, int], str] = {}
        self._open: dict[int, int] = {}

    def window(self, until: float) -> tuple[Stretch, Score, Scatter]:
        """Let time pass, and cut the window."""
        self.run(until)
        stretch, score, missed = self.history.cut()
        assert missed == 0
        return stretch, score, self.steps.cut()

    def run(self, until: float) -> None:
        """Let time pass; what the last step said was said a moment before."""
        replay(self, self.clock, list(self._coming), until)  # type: ignore[arg-type]
        self.clock.advance_to(until)
        self.clock.advance(1e-6)
        self._cut = self.clock.now()

    def _now(self) -> float:
        return self.clock.now() if self._mailed is None else self._mailed

    # ---------------------------------------------------------------- as an engine to `replay`

    @property
    def patience(self) -> float | None:
        return self._engine.patience

    def step(self, mail: Iterable[Message]) -> bool:
        """Requests are followed from the moment in which they came, and then stepped."""
        mail = list(mail)
        for each in mail:
            assert isinstance(each, Submission)
            self._coming.remove(each)
            self._mailed = max(each.arrival, self._cut)
            follow = ExitStack()
            follow.enter_context(self.metrics.follow([each], self._ends.get))
            self._followed[each.id] = follow
            self._open[each.id] = each.n
            self._mailed = None
        return self._engine.step(mail)

    def _emitted(self, outputs: Sequence[Output], look: Look) -> None:
        stats = look()
        self.metrics.observe(outputs, stats)
        self.steps.observe(outputs, stats)
        for output in outputs:
            if output.finish is not None:
                refused = output.finish.failure is not None
                end = "rejected" if refused else "length"
                self._ends[output.request, output.index] = end
                self._open[output.request] -= 1
                if not self._open[output.request]:
                    self._followed.pop(output.request).close()
