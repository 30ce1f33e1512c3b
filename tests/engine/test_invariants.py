"""The invariants hold after every step, and every request ends with its own tokens.

Under random arrivals, groups, lengths, aborts and tiny pools, every odd policy, depth 0 and 1.
"""

from __future__ import annotations

import math
import os
from collections import deque
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.beams import branching, search_alone
from support.built_in import BUILT_IN
from support.engines import GREEDY, NO_CPU_LIMIT, Harness
from support.odd_policies import ODD_POLICIES, Displacing

from engine.allocation import RESERVE
from engine.beam_search import BeamSearch
from engine.limits import ClassLimits
from engine.outputs import FinishReason, Output

EXAMPLES = 100
MANY_EXAMPLES = int(os.environ.get("OCTAVO_MANY_EXAMPLES", "2000"))
EVERY, WINDOW = 4, 16


@dataclass(frozen=True)
class Arrival:
    prompt: int
    shared: int
    max_tokens: int
    n: int
    gap: int
    tenant: str
    priority: int
    slo_class: str
    leaves_after: int | None
    ends_after: int | None
    stops_at: int | None
    searches: bool
    allowance: float

    @property
    def beams(self) -> BeamSearch | None:
        return BeamSearch(self.n + 1) if self.searches else None


CHOICES: list[list] = [
    list(range(1, 71)),  # prompt
    [0, 0, 0, 16, 33, 48],  # shared: prompt tokens that others begin with, too
    list(range(1, 41)),  # max_tokens
    [1, 1, 1, 2, 3],  # n
    [0, 0, 0, 1, 2, 5],  # gap
    ["a", "b"],  # tenant
    [0, 0, 1, 2],  # priority
    ["default", "default", "batch"],  # slo_class
    [None] * 120 + list(range(40)),  # leaves_after
    [None] * 120 + list(range(1, 41)),  # ends_after
    [None] * 60 + list(range(1, 21)),  # stops_at
    [False] * 5 + [True],  # searches: with n + 1 beams
    [math.inf, math.inf, 0.015, 0.06],  # allowance: seconds to the deadline of the first token
]


def arrival(number: int) -> Arrival:
    """The number's digits choose the fields; 0 is the simplest arrival.

    One draw an arrival: hypothesis spends its time on the engine, not on drawing.
    """
    fields = []
    for choices in CHOICES:
        number, digit = divmod(number, len(choices))
        fields.append(choices[digit])
    return Arrival(*fields)


MANY = math.prod(map(len, CHOICES))
ARRIVALS = st.lists(st.integers(0, MANY - 1).map(arrival), min_size=1, max_size=14)
SETUPS = st.builds(
    lambda blocks, budget, rows, host: {
        "blocks": blocks,
        "budget": budget,
        "rows": rows,
        "host_blocks": host,
    },
    st.integers(7, 24),
    st.integers(3, 40),
    st.integers(3, 8),
    st.sampled_from([0, 5, 40]),
)
CLASSES = {"batch": ClassLimits(max_running=2, max_blocks_fraction=0.8)}


def prompt_of(request: int, arrival: Arrival) -> list[int]:
    """Tokens that tell requests apart, behind those that several share."""
    shared = min(arrival.shared, arrival.prompt)
    own = [request * 1000 + i for i in range(shared, arrival.prompt)]
    return [9_000_000 + i for i in range(shared)] + own


class Watch:
    """Steps a harness through a workload and holds E2, E7, E8, E10 and E13 against each step."""

    def __init__(self, policy, depth: int, setup: dict[str, Any]) -> None:
        guard = replace(NO_CPU_LIMIT, every=EVERY, window=WINDOW, max_hold_s=0.05)
        self.harness = Harness(
            policy=policy,
            depth=depth,
            guard=guard,
            classes=CLASSES,
            branches=branching,
            **setup,
        )
        self.setup = setup
        self.step = 0
        self.plans = 0
        self.served: dict[tuple[int, int], int] = {}
        self.prompt_tokens: deque[tuple[int, bool]] = deque(maxlen=WINDOW)
        self.admissions: list[bool] = []
        guarded = self.harness.scheduler.guard
        original = guarded.admitted

        def admitted(*, oldest: bool, forced: bool) -> None:
            self.admissions.append(oldest)
            original(oldest=oldest, forced=forced)

        guarded.admitted = admitted

    def tick(self) -> bool:
        harness = self.harness
        scheduler, before = harness.scheduler, len(harness.backend.batches)
        busy = scheduler.in_flight > 0
        lacking = scheduler.planner.lacking()
        preemptions = scheduler.counters.preemptions
        worked = harness.step()
        self.step += 1
        if len(harness.backend.batches) > before:
            self.plans += 1
            if scheduler.counters.preemptions > preemptions:
                lacking = 0  # the prompts that ran may be among those who gave way
            self._hold_against(harness.backend.batches[-1], lacking)
        elif not busy:
            held = scheduler.planner.hold_until < float("inf")
            waiting = scheduler.roster.waiting
            assert held or not waiting.anybody, "E8: somebody waits and nothing was computed"
            assert not scheduler.roster.running, "a running request was not computed"
        return worked

    def _hold_against(self, batch, lacking: int) -> None:
        assert batch.tokens <= self.setup["budget"], "E2: tokens"
        assert len(batch.rows) <= self.setup["rows"], "E2: rows"
        rows = {(row.request, row.index): row for row in batch.rows}
        assert len(rows) == len(batch.rows), "E2: two rows of a sequence"
        roster = self.harness.scheduler.roster
        dry = roster.memory.pool.free == 0
        running = {(s.request.id, s.index): s for s in roster.decoding}
        self.served = {key: step for key, step in self.served.items() if key in running}
        for key, sequence in running.items():
            if key in rows or dry or sequence.remaining == 0:
                self.served[key] = self.plans
            gap = self.plans - self.served.setdefault(key, self.plans)
            assert gap <= WINDOW, f"E13: {key} got no token for {gap} steps"
        granted = sum(
            row.count for row in batch.rows if (row.request, row.index) not in self.decoded(batch)
        )
        self.prompt_tokens.append((granted, dry or lacking < WINDOW))
        if len(self.prompt_tokens) == WINDOW and not any(free for _, free in self.prompt_tokens):
            total = sum(count for count, _ in self.prompt_tokens)
            assert total >= WINDOW, f"E13: prompts got {total} tokens in {WINDOW} steps"

    def decoded(self, batch) -> set[tuple[int, int]]:
        """Rows of the batch that were granted as decodes, by the decision log."""
        keys: set[tuple[int, int]] = set()
        for entry in reversed(self.harness.log.entries):
            if entry[0] == "decode":
                keys.update(zip(entry[1][::2], entry[1][1::2], strict=True))
            if entry[0] == "step":
                break
        return keys


def play(policy, depth: int, arrivals: list[Arrival], setup: dict[str, Any]) -> Watch:
    watch = Watch(policy, depth, setup)
    harness = watch.harness
    due: list[tuple[int, str, int, Arrival]] = []

    def tick() -> bool:
        for when, what, request, arrival in due:
            if when == watch.step and what == "abort":
                harness.abort(request)
            elif when == watch.step:
                harness.finish(request, tokens=1, index=arrival.n - 1)
        return watch.tick()

    for arrival in arrivals:
        for _ in range(arrival.gap):
            tick()
        request = harness.submit(
            prompt_of(harness._next_id + 1, arrival),
            arrival.max_tokens,
            _controls(harness._next_id + 1, arrival),
            n=arrival.n,
            beams=arrival.beams,
            tenant=arrival.tenant,
            priority=arrival.priority,
            slo_class=arrival.slo_class,
            ttft_deadline=harness.clock.now() + arrival.allowance,
        )
        if arrival.leaves_after is not None:
            due.append((watch.step + arrival.leaves_after, "abort", request, arrival))
        if arrival.ends_after is not None:
            due.append((watch.step + arrival.ends_after, "finish", request, arrival))
    for _ in range(6_000):
        if not tick() and not harness.mail and harness.scheduler.live == 0:
            break
    assert harness.scheduler.live == 0, "a request never ended"
    assert harness.pool.free == harness.pool.total, "E12"
    host = harness.scheduler.roster.host
    assert host.free == host.total, "E12: host blocks"
    for first in range(len(watch.admissions) - EVERY + 1):
        assert any(watch.admissions[first : first + EVERY]), "E10"
    return watch


def _controls(request: int, arrival: Arrival):
    if arrival.stops_at is None or arrival.stops_at >= arrival.prompt:
        return GREEDY
    token = prompt_of(request, arrival)[arrival.stops_at - 1]
    return replace(GREEDY, stop_ids=frozenset({token}))


def check_ends(watch: Watch, arrivals: list[Arrival]) -> None:
    """Each sequence said its own tokens, in order, and ended once, for a reason that is true."""
    harness = watch.harness
    left = {entry[1] for entry in harness.log.entries if entry[0] == "cancel"}
    for request, arrival in enumerate(arrivals, start=1):
        for index in range(arrival.n):
            outputs = harness.outputs[request, index]
            tokens = harness.tokens(request, index)
            prompt = prompt_of(request, arrival)
            if arrival.searches:
                check_search(request, arrival, index, outputs)
                continue
            assert tokens == [prompt[i % len(prompt)] for i in range(len(tokens))]
            ends = [output.finish for output in outputs if output.finish is not None]
            assert len(ends) == (0 if request in left and not ends else 1), "E6"
            times = [output.at for output in outputs]
            assert times == sorted(times), "E7"
            if not ends:
                continue
            assert outputs[-1].finish is not None, "something came after the end"
            reason = ends[0].reason
            if reason is FinishReason.LENGTH:
                assert len(tokens) == arrival.max_tokens
            elif reason is FinishReason.REJECTED:
                assert tokens == []
            elif ends[0].stop_token is not None:
                assert len(tokens) == arrival.stops_at
            else:
                assert index == arrival.n - 1
                assert arrival.ends_after is not None


def check_search(request: int, arrival: Arrival, index: int, outputs: list[Output]) -> None:
    """A search says nothing until it ends, and then what it finds when nobody disturbs it."""
    assert len(outputs) <= 1
    if outputs and outputs[0].finish.failure is None:
        ends = _controls(request, arrival).stop_ids
        prompt = prompt_of(request, arrival)
        found = search_alone(prompt, arrival.beams, arrival.max_tokens, ends)[index]
        assert (outputs[0].tokens, outputs[0].finish.stop_token) == (found.tokens, found.stop_token)


def run(policy, depth: int, arrivals: list[Arrival], setup: dict[str, Any]) -> Watch:
    watch = play(policy, depth, arrivals, setup)
    check_ends(watch, arrivals)
    if len(arrivals) % 4:  # replaying a part of the examples is enough
        return watch
    again = play(policy, depth, arrivals, setup)
    assert again.harness.log.encode() == watch.harness.log.encode(), "E4"
    return watch


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("policy", ODD_POLICIES)
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(arrivals=ARRIVALS, setup=SETUPS)
def test_invariants_hold_and_every_request_ends_with_its_own_tokens(
    policy, depth, arrivals, setup
) -> None:
    run(policy, depth, arrivals, setup)


@pytest.mark.parametrize("depth", [0, 1])
def test_an_admission_owed_to_the_oldest_counts_although_it_displaces_somebody_older(depth) -> None:
    numbers = (100730, 100730, 3298755, 7043750, 0, 0, 0)
    run(Displacing, depth, list(map(arrival, numbers)), {"blocks": 7, "budget": 3, "rows": 5})


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("policy", ODD_POLICIES)
@settings(
    max_examples=EXAMPLES // 8,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(arrivals=ARRIVALS, setup=SETUPS)
def test_invariants_hold_where_blocks_are_reserved(policy, depth, arrivals, setup) -> None:
    watch = run(policy, depth, arrivals, {**setup, "allocation": RESERVE})
    reasons = {entry[0] for entry in watch.harness.log.entries}
    assert "preempt" not in reasons, "nobody grows, so nobody gives way for it"


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("policy", BUILT_IN.values(), ids=BUILT_IN)
@settings(
    max_examples=EXAMPLES // 4,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(arrivals=ARRIVALS, setup=SETUPS)
def test_they_hold_under_every_built_in_policy(policy, depth, arrivals, setup) -> None:
    run(policy, depth, arrivals, setup)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("policy", ODD_POLICIES)
@settings(
    max_examples=MANY_EXAMPLES,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(arrivals=ARRIVALS, setup=SETUPS)
def test_invariants_hold_in_many_more_examples(policy, depth, arrivals, setup) -> None:
    run(policy, depth, arrivals, setup)
