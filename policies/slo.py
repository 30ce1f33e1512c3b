"""Earliest deadline first, and an open word about those that cannot be met any more."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from policies.base import (
    ACCEPT,
    OWN,
    Admitted,
    Cancelled,
    Demote,
    Event,
    Finished,
    Phase,
    Policy,
    Preempted,
    Reject,
    RequestView,
    Services,
    Share,
    Shed,
    StepView,
    Tokens,
    Verdict,
)
from policies.step_time import PromptTurns, StepTime

ROUNDING_S = 1e-9
"""A deadline missed by less is met: times are sums of many floats."""

WINDOW = 16
"""Steps after which prompts get some tokens although no step with any meets the TPOT targets."""


class SLO(Policy):
    """Meet the TTFT deadlines and TPOT targets that requests carry.

    Order: the earliest TTFT deadline first, a static key. When every job is there, or a job can be
    interrupted, that order misses no deadline that any order could meet (EDF: Liu and Layland,
    https://doi.org/10.1145/321738.321743; Horn, https://doi.org/10.1002/nav.3800210113). Prompts
    are interrupted between chunks, so both hold here, of jobs in tokens. A step is also ended
    early where its last prompts would make a finished one wait for its first token too long.

    Relegation: under overload that order alone misses everything, since it works on what is late
    already. A request whose latest start has passed (its deadline less the predicted time of its
    prompt, behind running prompts that are due earlier) is relegated to best effort, or rejected
    while nobody reads it yet (eager relegation: Niyama, https://arxiv.org/abs/2503.22562). Best
    effort, which is also the place of requests without a deadline, runs when no request with one
    has work, in order of arrival. Predictions have the cost model's error added. None is late in
    silence: `counts` has who was relegated or rejected, and who missed its deadline all the same.

    Steps are sized so that their predicted time meets the tightest TPOT target of those running,
    with 16 tokens for prompts every 16 steps where the decodes alone exceed it.

    A request that will miss its deadline if it waits on pushes out best-effort ones, and prompts
    due later that can start again in time. The order by which it does is strict and static, save
    that a request can be relegated, once: so two never take turns at pushing each other out.
    """

    def __init__(
        self,
        *,
        services: Services,
        late: Literal["relegate", "reject"] = "relegate",
        retry_after_s: float = 1.0,
        patience: float = 0.5,
    ) -> None:
        """late: what becomes of a request that cannot meet its deadline any more.

        retry_after_s: seconds after which a rejected client may try again. patience: the part of
        its slack that a request waits for room before it pushes others out; 1 for never.
        Raises ValueError for another `late`, a time that is negative or not finite, or a patience
        outside of [0, 1].
        """
        super().__init__(services=services)
        if late not in ("relegate", "reject"):
            raise ValueError(f"late must be relegate or reject, got {late}")
        if not 0 <= retry_after_s < math.inf:
            raise ValueError(f"retry_after_s must be 0 or more seconds, got {retry_after_s}")
        if not 0 <= patience <= 1:
            raise ValueError(f"patience must be between 0 and 1, got {patience}")
        self._late = late
        self._retry_after_s = retry_after_s
        self._patience = patience
        self.counts: Counter[str] = Counter(relegated=0, rejected=0, missed=0)
        self._relegated: set[int] = set()
        self._prompts: dict[int, RequestView] = {}
        self._turns = PromptTurns(WINDOW)
        self._turn = 0
        self._outlook: Outlook | None = None
        self._time: StepTime
        self._ends_by = math.inf
        self._pressing: tuple[int, Outlook | None, float] = (-1, None, math.inf)

    # ---------------------------------------------------------------- order

    def key(self, request: RequestView) -> tuple[Any, ...]:
        if self._best_effort(request):
            return (1, request.ticket)
        return (0, request.ttft_deadline, request.ticket)

    def victim(self, request: RequestView, step: StepView) -> tuple[Any, ...] | None:
        """Best effort first, then prompts, whose loss no client sees; those due last first."""
        if self._best_effort(request):
            return (0, -request.ticket)
        return (1 if request.output == 0 else 2, -request.ttft_deadline)

    def _best_effort(self, request: RequestView) -> bool:
        return request.id in self._relegated or request.ttft_deadline == math.inf

    # ---------------------------------------------------------------- who is late

    def admit(self, request: RequestView, step: StepView) -> Verdict:
        """Let in who can still be on time, or needs not be."""
        if self._best_effort(request):
            return ACCEPT
        outlook = self._look(step)
        if outlook.in_time(request):
            return ACCEPT
        if self._late == "reject":
            self.counts["rejected"] += 1
            reason = "the first token cannot come before its deadline"
            return Reject(reason, self._retry_after_s)
        self._relegate(request)
        return Demote(request.slo_class)  # its own: it is queued anew, under its new key

    def _relegate(self, request: RequestView) -> None:
        self._relegated.add(request.id)
        self.counts["relegated"] += 1

    def _look(self, step: StepView) -> Outlook:
        """The outlook of this moment, which many may ask for, also before a step is planned."""
        outlook = self._outlook
        if outlook is None or (outlook.index, outlook.now) != (step.index, step.now):
            outlook = self._outlook = self._predict(step)
        return outlook

    def _predict(self, step: StepView) -> Outlook:
        """Walk through running prompts, earliest deadline first; relegate who is late."""
        outlook = Outlook(self.services, step)
        urgent = [
            prompt
            for prompt in self._prompts.values()
            if prompt.phase is Phase.PREFILL and not self._best_effort(prompt)
        ]
        for request in sorted(urgent, key=lambda p: (p.ttft_deadline, p.ticket)):
            if request.output or outlook.in_time(request):
                outlook.add(request)
            else:
                self._relegate(request)
        return outlook

    # ---------------------------------------------------------------- the step

    def share(self, step: StepView) -> Share:
        budget = step.budget
        self._turn = self._turns.begin(step)
        self._outlook = self._predict(step)
        self._time = StepTime(self.services.cost, step, min(step.decoding, budget - self._turn))
        self._ends_by = math.inf
        return Share(decode=budget - self._turn, prompt=budget, chunk=budget)

    def chunk(self, request: RequestView, start: int, most: int, step: StepView) -> int:
        """As much as the TPOT targets leave, and the deadlines of prompts that this step ends."""
        outlook = self._look(step)
        limit_s = min(outlook.limit_s, self._ends_by)
        count = self._time.largest(start, most, limit_s)
        count = max(count, min(most, self._turn))
        self._turn = max(0, self._turn - count)
        self._time.add(start, count)
        if count:
            self._turns.served(step)
        last = start + count >= request.prompt and request.output == 0
        if last and not self._best_effort(request):
            ends_by = (request.ttft_deadline - step.now) / outlook.doubt
            if self._time.seconds <= ends_by + ROUNDING_S:
                self._ends_by = max(self._time.seconds, min(self._ends_by, ends_by))
        return count

    def displaces(self, newcomer: RequestView, running: RequestView) -> bool:
        """Whether `newcomer` has no time to wait and `running` has, or does not need it."""
        if self._patience == 1 or self._best_effort(newcomer):
            return False
        done_at = self._done_at(newcomer)
        if done_at == math.inf:
            return False
        if self._best_effort(running):
            return True
        if running.output or running.ttft_deadline <= newcomer.ttft_deadline:
            return False
        assert self._outlook is not None
        return done_at + self._outlook.alone(running.prompt) <= running.ttft_deadline

    def _done_at(self, newcomer: RequestView) -> float:
        """When its prompt would be computed if it were let in now; inf while it can wait.

        Who answers already cannot. Kept for the many running requests that are asked about.
        """
        outlook = self._outlook
        if outlook is None:
            return math.inf
        if self._pressing[:2] != (newcomer.id, outlook):
            needs = outlook.seconds(newcomer)
            slack = max(0.0, newcomer.ttft_deadline - needs - newcomer.arrival)
            waits = not newcomer.output and (
                outlook.now < newcomer.arrival + self._patience * slack
            )
            self._pressing = (newcomer.id, outlook, math.inf if waits else outlook.now + needs)
        return self._pressing[2]

    # ---------------------------------------------------------------- books

    def observe(self, events: Sequence[Event]) -> Iterable[int]:
        """Keep the books of running prompts. Nobody's key depends on them."""
        prompts = self._prompts
        for event in events:
            match event:
                case Tokens(request, count):
                    if prompts.pop(request.id, None) and request.output == count:
                        self._first_token(request)
                case Admitted(request, _, _):
                    prompts[request.id] = request
                    self._enter(request)
                case Preempted(request, _):
                    prompts.pop(request.id, None)
                case Finished(request) | Cancelled(request) | Shed(request, _):
                    prompts.pop(request.id, None)
                    self._relegated.discard(request.id)
        return ()

    def _first_token(self, request: RequestView) -> None:
        """Count who is late although nobody foresaw it."""
        late = request.last_token_at > request.ttft_deadline + ROUNDING_S
        self.counts["missed"] += late and request.id not in self._relegated

    def _enter(self, request: RequestView) -> None:
        """Somebody was admitted: who is judged next comes after it, or all is predicted anew."""
        outlook = self._outlook
        if outlook is None or self._best_effort(request):
            return
        if request.ttft_deadline < outlook.last_deadline:
            self._outlook = None
        else:
            outlook.add(request)

    def export(self) -> dict[str, Any]:
        return {"relegated": sorted(self._relegated), "counts": dict(self.counts)}

    def restore(
        self, state: Mapping[str, Any], live: Sequence[RequestView], step: StepView
    ) -> None:
        """Relegated requests stay so; whoever computes a prompt is in the books again."""
        own = state.get(OWN, {})
        self._relegated = {r.id for r in live} & set(own.get("relegated", ()))
        self.counts.update(own.get("counts", {}))
        self._prompts = {r.id: r for r in live if r.phase is Phase.PREFILL}

    def explain(self, request: RequestView, step: StepView) -> str:
        if request.id in self._relegated:
            return (
                "its first token could not come by its deadline any more, so it was relegated: "
                "it runs when no request that can be on time has work"
            )
        if request.ttft_deadline == math.inf:
            return "it has no deadline: it runs when no request that has one has work"
        left = request.ttft_deadline - step.now
        needs = Outlook(self.services, step).alone(request.prompt)
        return (
            f"its first token is due in {left:.2f} s and takes {needs:.2f} s: requests that are "
            f"due earlier go first"
        )


class Outlook:
    """When prompts would be computed from now on, with the running decodes beside them.

    now, index: the moment it was made. limit_s: seconds that a step may take, by the tightest TPOT
    target of those running. doubt: predictions times this are on the safe side.
    """

    def __init__(self, services: Services, step: StepView) -> None:
        self._cost = services.cost
        self.now, self.index = step.now, step.index
        self.doubt = 1 + services.cost.relative_error
        decodes = min(step.decoding, step.budget)
        self.limit_s = step.tightest_tpot if decodes else math.inf
        time = StepTime(services.cost, step, decodes)
        self._step_s = time.seconds
        self._base_s = services.cost.seconds(0, 0, 0, 0)
        most = max(1, step.budget - decodes)
        self._capacity = max(1, time.largest(0, most, self.limit_s))
        self._deadlines: list[float] = []
        self._ahead: list[tuple[int, float]] = [(0, 0.0)]

    @property
    def last_deadline(self) -> float:
        """Of the prompts added; -inf before the first."""
        return self._deadlines[-1] if self._deadlines else -math.inf

    def add(self, request: RequestView) -> None:
        """A prompt that runs goes before all that are due later; it is due last of those added."""
        tokens = _left(request)
        ahead, seconds = self._ahead[-1]
        self._deadlines.append(request.ttft_deadline)
        self._ahead.append((ahead + tokens, seconds + self._work_s(request.computed, tokens)))

    def in_time(self, request: RequestView) -> bool:
        """Whether its first token can come before its deadline if it goes on now."""
        at = self.now + self.seconds(request) * self.doubt
        return at <= request.ttft_deadline + ROUNDING_S

    def seconds(self, request: RequestView) -> float:
        """Until the first token, behind the running prompts that are due earlier."""
        ahead, seconds = self._ahead[bisect_right(self._deadlines, request.ttft_deadline)]
        start, tokens = request.computed or request.cached, _left(request)
        steps = -(-(ahead + tokens) // self._capacity)
        return steps * self._step_s + seconds + self._work_s(start, tokens)

    def alone(self, prompt: int) -> float:
        """Until the first token of a prompt that goes first."""
        steps = -(-prompt // self._capacity)
        return steps * self._step_s + self._work_s(0, prompt)

    def _work_s(self, start: int, tokens: int) -> float:
        """What `tokens` tokens from position `start` add to the steps that compute them.

        In m chunks of c tokens: Σ (start + i·c) positions are read, Σ c·(start + i·c) attended to.
        """
        chunk = min(tokens, self._capacity)
        chunks = -(-tokens // chunk)
        read = chunks * start + tokens * (chunks + 1) // 2
        context = tokens * start + tokens * (tokens + chunk) // 2
        return self._cost.seconds(tokens, 0, read, context) - self._base_s


def _left(request: RequestView) -> int:
    """Tokens that a prompt lacks before its next token can be sampled."""
    rows = max(1, request.rows)
    return max(1, request.prompt + request.output // rows - max(request.computed, request.cached))
