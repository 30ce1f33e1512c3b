"""What was recorded is decided again to the byte: every policy, swaps, faults, guesses."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.beams import branching
from support.built_in import BUILT_IN
from support.drafts import Guesser, repeating
from support.engines import NO_CPU_LIMIT, Harness, services
from support.odd_policies import ODD_POLICIES
from support.recordings import Tape, decide_again

from engine.allocation import PAGED, RESERVE
from engine.backends.scripted import raising
from engine.errors import RowFault
from engine.grammar import LATE, Late, Masks, Matcher
from engine.guard import GuardSettings
from engine.inbox import Explain, Inspect, PolicyName, Reconfigure
from engine.limits import ClassLimits
from loadtest.conformance.workload import CLASSES, KINDS, Arrival, arrival_of
from policies.base import Policy
from policies.fcfs import FCFS

ARRIVALS = st.lists(st.integers(0, KINDS - 1).map(arrival_of), min_size=1, max_size=14)
SETUPS = st.fixed_dictionaries(
    {
        "blocks": st.integers(7, 24),
        "budget": st.integers(3, 40),
        "prompt_budget": st.sampled_from([None, 60]),
        "rows": st.integers(3, 8),
        "host_blocks": st.sampled_from([0, 5, 40]),
        "allocation": st.sampled_from([PAGED, PAGED, PAGED, RESERVE]),
    }
)
GUARD = replace(NO_CPU_LIMIT, every=4, max_hold_s=0.05)


class Fragile:
    """A grammar that ends after some tokens, or breaks at one; now and then it forces some, and
    some of its masks come late."""

    def __init__(self, ends: int, breaks: int) -> None:
        self.ends = ends
        self.breaks = breaks

    def matcher(self) -> FragileMatcher:
        return FragileMatcher(self)

    def prepare(self, matchers: list[Matcher]) -> Callable[[], Masks]:
        return lambda: [each.mask() for each in matchers]


class FragileMatcher:
    def __init__(self, grammar: Fragile) -> None:
        self.grammar = grammar
        self.accepted = 0
        self.waited = 0

    def mask(self) -> Late | None:
        late = self.waited < (self.accepted + self.grammar.ends) % 4 - 1
        self.waited += late
        return LATE if late else None

    @property
    def over(self) -> bool:
        return self.accepted >= self.grammar.ends

    @property
    def fault(self) -> str:
        return "broken" if self.accepted == self.grammar.breaks else ""

    def accept(self, token: int) -> None:
        self.accepted += 1
        self.waited = 0

    def forced(self) -> list[int]:
        return [7] * (0, 3, 0, 1, 12)[self.accepted % 5]


@dataclass(frozen=True)
class Play:
    """Who is in charge, in turn every `every` steps, and what happens beside arrivals."""

    policies: dict[str, Callable[..., Policy]]
    depth: int = 0
    every: int = 1000
    guided: bool = False
    faults: dict[str, Any] = field(default_factory=dict)
    drafter: Any = None
    guard: GuardSettings = GUARD

    def make(self, named: PolicyName) -> Policy:
        return self.policies[named.name](services=services())


def controls_of(arrival: Arrival, request: int, guided: bool) -> Any:
    controls = arrival.controls(request)
    if guided and not arrival.searches and request % 3:
        return replace(controls, grammar=Fragile(5 + request % 7, 3 if request % 4 == 1 else 1000))
    if request % 5 == 0:
        return replace(controls, prompt_logprobs=1, logprobs=1)
    return controls


def record(play: Play, arrivals: list[Arrival], setup: dict[str, Any]) -> tuple[Harness, Tape]:
    """Everything until all have ended."""
    tape = Tape()
    names = itertools.cycle(play.policies)
    harness = Harness(
        policy=play.policies[next(names)],
        depth=play.depth,
        guard=play.guard,
        classes=CLASSES,
        branches=branching,
        drafter=play.drafter,
        recorder=tape.recorder,
        **play.faults,
        **setup,
    )
    due: dict[int, list[Callable[[], None]]] = {}
    steps = itertools.count(1)

    def tick() -> bool:
        step = next(steps)
        for act in due.pop(step, ()):
            act()
        if step % play.every == 0:
            name = next(names)
            harness.mail.append(
                Reconfigure(play.policies[name](services=services()), named=PolicyName(name))
            )
        if step % 7 == 0:
            harness.mail += [Inspect(lambda look: None), Explain(lambda why: None)]
        if step % 50 == 0:
            harness.mail.append(
                Reconfigure(classes={"batch": ClassLimits(max_running=1 + step % 3)})
            )
        return harness.step()

    for number, arrival in enumerate(arrivals, start=1):
        now = 0
        for _ in range(arrival.gap):
            tick()
        now = next(steps)
        request = harness.submit(
            arrival.tokens(number),
            arrival.max_tokens,
            controls_of(arrival, number, play.guided),
            n=arrival.n,
            beams=arrival.beams,
            tenant=arrival.tenant,
            weight=2.0 if arrival.tenant == "a" else 1.0,
            priority=arrival.priority,
            slo_class=arrival.slo_class,
            ttft_deadline=harness.clock.now() + arrival.allowance,
            queue_deadline=harness.clock.now() + (0.03 if number % 6 == 0 else math.inf),
        )
        if arrival.leaves_after is not None:
            due.setdefault(now + arrival.leaves_after + 1, []).append(
                partial(harness.abort, request)
            )
        if arrival.ends_after is not None:
            act = partial(harness.finish, request, tokens=1, index=arrival.n - 1)
            due.setdefault(now + arrival.ends_after + 1, []).append(act)
    for _ in range(6_000):
        if not tick() and not harness.mail and harness.scheduler.live == 0:
            break
    assert harness.scheduler.live == 0, "a request never ended"
    return harness, tape


def hidden(harness: Harness, tape: Tape) -> bytes:
    """The decision log with what stands for names of classes."""
    entries = harness.log.entries
    harness.log.entries = [
        ("classes", sorted(map(tape.names.name, entry[1]))) if entry[0] == "classes" else entry
        for entry in entries
    ]
    encoded = harness.log.encode()
    harness.log.entries = entries
    return encoded


def check(play: Play, arrivals: list[Arrival], setup: dict[str, Any]) -> Harness:
    live, tape = record(play, arrivals, setup)
    again = decide_again(
        tape,
        play.make,
        policy=next(iter(play.policies.values())),
        depth=play.depth,
        guard=play.guard,
        classes=CLASSES,
        drafter=play.drafter,
        **setup,
    )
    assert again.log.encode() == hidden(live, tape)
    assert again.scheduler.counters == live.scheduler.counters
    return live


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("policy", BUILT_IN)
@settings(max_examples=12)
@given(arrivals=ARRIVALS, setup=SETUPS, guided=st.booleans())
def test_each_built_in_policy_decides_the_same_again(
    policy, depth, arrivals, setup, guided
) -> None:
    check(Play({policy: BUILT_IN[policy]}, depth, guided=guided), arrivals, setup)


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("policy", ODD_POLICIES)
@settings(max_examples=4)
@given(arrivals=ARRIVALS, setup=SETUPS)
def test_odd_policies_decide_the_same_again(policy, depth, arrivals, setup) -> None:
    check(Play({"odd": policy}, depth), arrivals, setup)


@pytest.mark.parametrize("depth", [0, 1])
@settings(max_examples=30)
@given(arrivals=ARRIVALS, setup=SETUPS, every=st.integers(2, 12), guided=st.booleans())
def test_so_do_policies_that_take_turns(depth, arrivals, setup, every, guided) -> None:
    check(Play(dict(BUILT_IN), depth, every, guided), arrivals, setup)


@pytest.mark.parametrize("depth", [0, 1])
@settings(max_examples=30)
@given(arrivals=ARRIVALS, setup=SETUPS, wrong=st.sampled_from([0, 1, 4]), guided=st.booleans())
def test_so_they_do_where_guesses_are_verified(depth, arrivals, setup, wrong, guided) -> None:
    drafter = Guesser(repeating, wrong)
    play = Play({"fcfs": FCFS, "fair-share": BUILT_IN["fair-share"]}, depth, 9, guided)
    check(replace(play, drafter=drafter), arrivals, setup)


@pytest.mark.parametrize("depth", [0, 1])
@settings(max_examples=30)
@given(
    arrivals=ARRIVALS,
    setup=SETUPS,
    at=st.integers(0, 30),
    rows=st.sampled_from([[0], [1, 2], [99]]),
)
def test_so_they_do_where_steps_and_rows_fail(depth, arrivals, setup, at, rows) -> None:
    faults = {
        "hooks": {at: raising(RuntimeError("out of memory")), at + 3: raising(RowFault(rows, "?"))},
        "nan_rows": {at + 1: rows, at + 6: [0]},
    }
    play = Play({"fcfs": FCFS, "slo": BUILT_IN["slo"]}, depth, 9, faults=faults)
    check(play, arrivals, setup)


class Slow(FCFS):
    """Takes its time, now and then, to say who is next and to listen."""

    def __init__(self, *, services: Any) -> None:
        super().__init__(services=services)
        self.told = 0

    def key(self, request: Any) -> Any:
        self._dawdle(request.id)
        return (-request.ticket,)

    def observe(self, events: Any) -> Any:
        self.told += len(events)
        self._dawdle(self.told)
        return ()

    def _dawdle(self, number: int) -> None:
        if number % 3 == 0:
            sum(range(20_000))


@pytest.mark.parametrize("depth", [0, 1])
def test_cpu_time_is_not_measured_again(depth) -> None:
    guard = replace(GUARD, max_step_cpu_s=1e-4, overruns=2, fallback_steps=10)
    play = Play({"slow": Slow}, depth, guard=guard)
    arrivals = [arrival_of(number * 7_919_000_003 % KINDS) for number in range(1, 30)]
    live = check(play, arrivals, {"blocks": 24, "budget": 40, "rows": 8})
    assert any(entry[0] == "fallback" for entry in live.log.entries)
