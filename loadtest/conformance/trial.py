"""One workload under one policy, in virtual time, with everything watched."""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from engine.backends.scripted import ScriptedBackend
from engine.batch import StepShape
from engine.blocks import BlockPool
from engine.clock import VirtualClock
from engine.cost import LinearCost
from engine.decisions import DecisionLog
from engine.guard import GuardSettings, Save
from engine.inbox import Abort, FinishAt, Message, Reconfigure, Submission
from engine.limits import Limits
from engine.loop import Engine
from engine.outputs import Finish, FinishReason, Look, Output
from engine.relief import Offload, ReliefSettings
from engine.scheduler import Scheduler
from engine.simulation import PolicyMaker
from loadtest.conformance.watch import StepWatch
from loadtest.conformance.workload import CLASSES, Arrival, Workload
from policies.base import Services
from policies.fcfs import FCFS

COST: Final = LinearCost(base=0.004, prompt_token=0.0002, decode=0.0003, kv_read=1e-6)
"""What a step takes; the policy predicts with the same."""

ALLOWANCE_S: Final = 10.0
"""Seconds in the unit of `Arrival.allowance`."""

GUARD: Final = GuardSettings(every=8, fallback_steps=4)
"""Tighter than a server's, so that every bound is met often; a policy that failed is soon back."""

MOST_STEPS: Final = 5_000
"""Steps after which requests that have not ended never will."""

Ending = tuple[tuple[int, ...], Finish | None]
"""Tokens of a sequence, and how it ended."""


@dataclass(frozen=True, slots=True)
class Breach:
    """An invariant that did not hold, and in which step."""

    invariant: str
    step: int
    what: str


@dataclass(slots=True)
class Record:
    """What became of a workload.

    entries: the decision log. saves: what the guard saved while the policy was in charge. breach:
    the first invariant that did not hold, which ends the run.
    """

    entries: list[tuple[Any, ...]]
    saves: list[Save] = field(default_factory=list)
    endings: dict[tuple[int, int], Ending] = field(default_factory=dict)
    forced_admissions: int = 0
    forced_progress: int = 0
    fallbacks: int = 0
    breach: Breach | None = None


def no_cpu_time() -> float:
    """A CPU clock that stands still, so that runs repeat exactly."""
    return 0.0


class Trial:
    """Plays a workload under what `make` makes, once.

    cpu_clock: what the guard measures the policy with.
    """

    def __init__(
        self,
        make: PolicyMaker,
        workload: Workload,
        *,
        seed: int = 0,
        cpu_clock: Callable[[], float] = no_cpu_time,
    ) -> None:
        setup = workload.setup
        self._make = make
        self._seed = seed
        self._workload = workload
        self._clock = VirtualClock()
        self._log = DecisionLog()
        self._outputs: dict[tuple[int, int], list[Output]] = defaultdict(list)
        self._arrivals: dict[int, float] = {}
        self._mail: list[Message] = []
        self._due: list[tuple[int, Message]] = []
        self._steps = 0
        self._swapped = False
        self.record = Record(self._log.entries)
        backend = ScriptedBackend(setup.blocks, host_blocks=setup.host_blocks)
        offload = Offload(setup.host_blocks, backend.move_seconds, COST)
        self._backend = backend
        self._scheduler = Scheduler(
            make(services=self._services()),
            BlockPool(setup.blocks),
            Limits(setup.budget, setup.rows, 512, CLASSES),
            guard=GUARD,
            log=self._log,
            prefix_cache=setup.allocation.shares,
            allocation=setup.allocation,
            relief=ReliefSettings(offload if setup.host_blocks else None),
            cpu_clock=cpu_clock,
        )
        self._scheduler.guard.on_save = self._note
        self._engine = Engine(
            scheduler=self._scheduler,
            backend=backend,
            clock=self._clock,
            cost=COST,
            emit=self._take,
            depth=setup.depth,
        )
        self._watch = StepWatch(self._scheduler, backend, self._log)

    def run(self) -> Record:
        """Play it to its end, or to the first invariant that does not hold."""
        try:
            self._play()
            self._check_empty()
            self._check_answers()
        except AssertionError as error:
            what = str(error) or "an assertion of the engine failed"
            named = re.match(r"E\d+", what)
            self.record.breach = Breach(named[0] if named else "E11", self._steps, what)
        guard = self._scheduler.guard
        self.record.forced_admissions = guard.forced_admissions
        self.record.forced_progress = guard.forced_progress
        self.record.fallbacks = sum(entry[0] == "fallback" for entry in self._log.entries)
        return self.record

    # ---------------------------------------------------------------- playing

    def _play(self) -> None:
        for request, arrival in enumerate(self._workload.arrivals, start=1):
            for _ in range(arrival.gap):
                self._step()
            self._submit(request, arrival)
        while self._mail or self._due or self._scheduler.live or self._scheduler.in_flight:
            assert self._steps < MOST_STEPS, "E5: a request never ended"
            self._step()

    def _submit(self, request: int, arrival: Arrival) -> None:
        now = self._clock.now()
        self._arrivals[request] = now
        self._mail.append(
            Submission(
                request,
                arrival.tokens(request),
                arrival.max_tokens,
                arrival.controls(request),
                now,
                n=arrival.n,
                beams=arrival.beams,
                tenant=arrival.tenant,
                slo_class=arrival.slo_class,
                priority=arrival.priority,
                ttft_deadline=now + ALLOWANCE_S * arrival.allowance,
            )
        )
        if arrival.leaves_after is not None:
            self._due.append((self._steps + arrival.leaves_after, Abort(request)))
        if arrival.ends_after is not None:
            end = FinishAt(request, arrival.n - 1, 1)
            self._due.append((self._steps + arrival.ends_after, end))

    def _step(self) -> None:
        self._steps += 1
        self._mail += [message for when, message in self._due if when < self._steps]
        self._due = [each for each in self._due if each[0] >= self._steps]
        every = self._workload.swap_every
        if every and self._steps % every == 0:
            self._swapped = not self._swapped
            kind = FCFS if self._swapped else self._make
            self._mail.append(Reconfigure(kind(services=self._services())))
        mail, self._mail = self._mail, []
        computed = len(self._backend.batches)
        self._watch.before()
        worked = self._engine.step(mail)
        self._watch.after()
        for batch in self._backend.batches[computed:]:
            self._clock.advance(COST.of(StepShape.of(batch.rows)))
        if not worked:
            self._clock.advance(self._engine.patience or 0.001)

    def _services(self) -> Services:
        return Services(COST, random.Random(self._seed))

    def _take(self, outputs: Sequence[Output], look: Look) -> None:
        for output in outputs:
            self._outputs[output.request, output.index].append(output)

    def _note(self, save: Save) -> None:
        self.record.saves.append(save)

    # ---------------------------------------------------------------- the end

    def _check_empty(self) -> None:
        """Whatever way requests ended, it is as if they had never been."""
        scheduler = self._scheduler
        roster, pool = scheduler.roster, scheduler.pool
        assert pool.free == pool.total, f"E12: {pool.total - pool.free} blocks were not given back"
        assert roster.host.free == roster.host.total, "E12: host blocks were not given back"
        maps = (roster.requests, roster.running, roster.decoding, roster.prefilling)
        assert not any(maps), "E12: somebody is left in a map"
        assert not roster.waiting.requests, "E12: somebody is left in the queue"
        assert not roster.rows, "E12: rows are still held"
        assert not any(roster.running_by_class.values()), "E12: a class still counts somebody"
        limit, longest = scheduler.guard.settings.every, scheduler.guard.most_passed_over
        assert longest < limit, f"E10: {longest} admissions in a row passed the oldest ticket over"

    def _check_answers(self) -> None:
        left = {entry[1] for entry in self._log.entries if entry[0] == "cancel"}
        for request, arrival in enumerate(self._workload.arrivals, start=1):
            for index in range(arrival.n):
                outputs = self._outputs[request, index]
                ends = [output.finish for output in outputs if output.finish]
                assert len(ends) == 1 or (not ends and request in left), (
                    f"E6: sequence {index} of request {request} ended {len(ends)} times"
                )
                self._check_times(request, outputs)
                tokens = tuple(token for output in outputs for token in output.tokens)
                self.record.endings[request, index] = (tokens, ends[0] if ends else None)

    def _check_times(self, request: int, outputs: Sequence[Output]) -> None:
        times = [self._arrivals[request]]
        for output in outputs:
            if output.timing is not None:
                times += [output.timing.arrival, output.timing.admitted]
            times.append(output.at)
        assert times == sorted(times), f"E7: request {request} did things before others: {times}"


def differences(record: Record, reference: Record, workload: Workload) -> Breach | None:
    """Where a request that ends by itself was answered otherwise than in the reference (E9)."""
    for request, arrival in enumerate(workload.arrivals, start=1):
        if not arrival.ends_by_itself:
            continue
        for index in range(arrival.n):
            got, expected = record.endings[request, index], reference.endings[request, index]
            reasons = {end.reason for _, end in (got, expected) if end}
            if FinishReason.REJECTED not in reasons and got != expected:
                what = f"E9: request {request} was answered {got[0]}, alone {expected[0]}"
                return Breach("E9", 0, what)
    return None
