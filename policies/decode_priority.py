"""Decodes first; prompts get the time that a target between tokens leaves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from policies.base import (
    Cancelled,
    Event,
    Finished,
    Policy,
    Preempted,
    RequestView,
    Services,
    Share,
    StepView,
    Tokens,
)
from policies.step_time import PromptTurns, StepTime


@dataclass(frozen=True, slots=True)
class Pace:
    """Where the schedule of a request begins: when, after how many tokens, in how many rows."""

    since: float
    tokens: int
    rows: int


class DecodePriority(Policy):
    """Every running decode a token in every step, prompts in chunks that keep to a step time.

    Stall-free batching (Sarathi-Serve, https://arxiv.org/abs/2403.02310): no prompt, however long,
    holds up those who are being answered. The token budget of that paper is for one context length;
    here each chunk is as long as the cost model says that the target allows with the decodes of
    this step and at the context where the chunk begins, so early chunks of a long prompt are
    longer than its last ones. Prompts go in order of arrival.

    Decode slack (FairBatching, https://arxiv.org/abs/2510.14392): strictly decodes first gives
    decodes time that nobody needs. A decode is on schedule if its k-th token comes within k ·
    `tbt_s` of its first. With `decode_slack` = s, those well ahead of that make way for prompts, in
    rotation: in each step at least one of s + 1 decodes is served, the least recently served first.

    Bounds, with B decodes, token budget τ and no other reason to pause: a decode waits through at
    most ⌈B / τ⌉ + s steps, and through none if B <= τ, s = 0 and it is not the prompts' turn. The
    predicted time of a step with decodes exceeds `tbt_s` only if they alone exceed it, or leave no
    time for a token to prompts that have got none for `window` steps; these then get 16 tokens.
    """

    def __init__(
        self,
        *,
        services: Services,
        tbt_s: float = 0.05,
        decode_slack: int = 0,
        window: int = 16,
    ) -> None:
        """tbt_s: target time between two tokens of a request, in seconds.

        decode_slack: steps in a row that a decode ahead of its schedule may skip; 0 for none.
        window: steps after which prompts get some tokens although decodes take all the time.
        Raises ValueError for a target that is not positive and finite, a negative slack, or a
        window below 1.
        """
        super().__init__(services=services)
        if not 0 < tbt_s < math.inf:
            raise ValueError(f"tbt_s must be a positive number of seconds, got {tbt_s}")
        if decode_slack < 0:
            raise ValueError(f"decode_slack must not be negative, got {decode_slack}")
        if window < 1:
            raise ValueError(f"window must be at least 1 step, got {window}")
        self._tbt_s = tbt_s
        self._decode_slack = decode_slack
        self._turns = PromptTurns(window)
        self._time: StepTime
        self._paces: dict[int, Pace] = {}
        self._turn = 0
        self._must_serve = 0

    def share(self, step: StepView) -> Share:
        budget = step.budget
        self._turn = self._turns.begin(step)
        decode = min(step.decoding, budget - self._turn)
        self._time = StepTime(self.services.cost, step, decode)
        prompts = step.prefilling or step.waiting
        served = -(-step.decoding // (self._decode_slack + 1)) if prompts else step.decoding
        self._must_serve = served
        return Share(decode=budget - self._turn, prompt=budget, chunk=budget)

    def may_wait(self, request: RequestView, step: StepView) -> bool:
        """Whether a decode is ahead of its schedule and not among those whose turn it is."""
        if self._must_serve > 0:  # asked in the order of their turns
            self._must_serve -= 1
            return False
        pace = self._paces.get(request.id)
        if self._decode_slack == 0 or pace is None:
            return False
        ahead = (request.output - pace.tokens) // pace.rows + 1
        due = pace.since + ahead * self._tbt_s
        if step.now + 2 * self._tbt_s > due:  # this step, and the next one, which would serve it
            return False
        self._time.spare_decode(request.computed // request.rows + 1)
        return True

    def chunk(self, request: RequestView, start: int, most: int, step: StepView) -> int:
        """As many tokens as the target leaves, or what is left of the prompts' turn."""
        limit_s = self._tbt_s if step.decoding else math.inf  # else nobody waits for a token
        count = self._time.largest(start, most, limit_s)
        count = max(count, min(most, self._turn))
        self._turn = max(0, self._turn - count)
        self._time.add(start, count)
        if count:
            self._turns.served(step)
        return count

    def observe(self, events: Sequence[Event]) -> Iterable[int]:
        """Note who began to answer when. Nobody's place depends on it."""
        if self._decode_slack:
            for event in events:
                match event:
                    case Tokens(request, _):
                        pace = self._paces.get(request.id)
                        if pace is None or pace.rows != request.rows:
                            self._paces[request.id] = Pace(
                                request.last_token_at, request.output, max(1, request.rows)
                            )
                    case Finished(request) | Cancelled(request) | Preempted(request, _):
                        self._paces.pop(request.id, None)
        return ()

    def explain(self, request: RequestView, step: StepView) -> str:
        target, decodes = 1000 * self._tbt_s, step.decoding
        alone = 1000 * StepTime(self.services.cost, step, decodes).seconds
        return (
            f"decodes go first: {decodes} of them take {alone:.1f} ms of the {target:g} ms that a "
            f"step may take, and prompts share the rest in order of arrival"
        )
