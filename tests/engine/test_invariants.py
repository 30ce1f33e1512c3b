"""The invariants hold after every step, and every request ends with its own tokens.

Under random arrivals, groups, lengths, aborts and tiny pools, every odd policy, depth 0 and 1.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.beams import branching, search_alone
from support.built_in import BUILT_IN
from support.draft_models import draft_model
from support.drafts import Guesser, repeating
from support.engines import NO_CPU_LIMIT, Harness
from support.grammars import Expecting
from support.odd_policies import ODD_POLICIES, Displacing, Nonsense

from engine.allocation import PAGED, RESERVE
from engine.controls import RowControls
from engine.outputs import FinishReason, Output
from loadtest.conformance.watch import StepWatch
from loadtest.conformance.workload import CLASSES, KINDS, Arrival, arrival_of

EXAMPLES = 100
MANY_EXAMPLES = int(os.environ.get("OCTAVO_MANY_EXAMPLES", "2000"))
EVERY, WINDOW = 4, 16


ARRIVALS = st.lists(st.integers(0, KINDS - 1).map(arrival_of), min_size=1, max_size=14)
SETUPS = st.builds(
    lambda blocks, budget, prompts, rows, host: {
        "blocks": blocks,
        "budget": budget,
        "prompt_budget": prompts,
        "rows": rows,
        "host_blocks": host,
    },
    st.integers(7, 24),
    st.integers(3, 40),
    st.sampled_from([None, 30, 60]),
    st.integers(3, 8),
    st.sampled_from([0, 5, 40]),
)


class Watch:
    """Steps a harness through a workload and watches each step (`StepWatch`).

    setup: of the harness; `draft`: what makes the draft model that it has.
    """

    def __init__(self, policy, depth: int, setup: dict[str, Any]) -> None:
        guard = replace(NO_CPU_LIMIT, every=EVERY, window=WINDOW, max_hold_s=0.05)
        if "draft" in setup:
            setup = {**setup, "drafter": setup["draft"]()}
            del setup["draft"]
        self.harness = Harness(
            policy=policy,
            depth=depth,
            guard=guard,
            classes=CLASSES,
            branches=branching,
            **setup,
        )
        self.step = 0
        self.watch = StepWatch(self.harness.scheduler, self.harness.backend, self.harness.log)

    def tick(self) -> bool:
        self.watch.before()
        worked = self.harness.step()
        self.watch.after()
        self.step += 1
        return worked


Forced = Callable[[int], int]
"""How many tokens a grammar leaves no choice about once so many have come."""


def no_tokens(place: int) -> int:
    return 0


def some_tokens(place: int) -> int:
    """None mostly, then a few; once in a while more than any step has room for."""
    return (0, 3, 0, 1, 0, 0, 20, 0, 2, 0, 70, 0, 0)[place % 13]


def controls_of(arrival: Arrival, request: int, forced: Forced | None) -> RowControls:
    """forced: if it may be, the arrival is held to the answer that it gets anyway."""
    controls = arrival.controls(request)
    if forced is None or arrival.searches:
        return controls
    prompt = arrival.tokens(request)
    grammar = Expecting(
        lambda place: prompt[place % len(prompt)],
        forced,
        late=lambda place: max(0, (place + request) % 7 - 4),
    )
    return replace(controls, grammar=grammar)


def play(
    policy,
    depth: int,
    arrivals: list[Arrival],
    setup: dict[str, Any],
    forced: Forced | None = None,
) -> Watch:
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
            arrival.tokens(harness._next_id + 1),
            arrival.max_tokens,
            controls_of(arrival, harness._next_id + 1, forced if harness._next_id % 3 else None),
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
    if harness.scheduler.drafter is not None:
        harness.scheduler.drafter.check(())  # E12
    assert harness.scheduler.guard.most_passed_over < EVERY, "E10"
    return watch


def check_ends(watch: Watch, arrivals: list[Arrival]) -> None:
    """Each sequence said its own tokens, in order, and ended once, for a reason that is true."""
    harness = watch.harness
    left = {entry[1] for entry in harness.log.entries if entry[0] == "cancel"}
    for request, arrival in enumerate(arrivals, start=1):
        for index in range(arrival.n):
            outputs = harness.outputs[request, index]
            tokens = harness.tokens(request, index)
            prompt = arrival.tokens(request)
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
        ends = arrival.controls(request).stop_ids
        prompt = arrival.tokens(request)
        found = search_alone(prompt, arrival.beams, arrival.max_tokens, ends)[index]
        assert (outputs[0].tokens, outputs[0].finish.stop_token) == (found.tokens, found.stop_token)


def run(
    policy,
    depth: int,
    arrivals: list[Arrival],
    setup: dict[str, Any],
    forced: Forced | None = None,
) -> Watch:
    watch = play(policy, depth, arrivals, setup, forced)
    check_ends(watch, arrivals)
    if len(arrivals) % 4:  # replaying a part of the examples is enough
        return watch
    again = play(policy, depth, arrivals, setup, forced)
    assert again.harness.log.encode() == watch.harness.log.encode(), "E4"
    return watch


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("policy", ODD_POLICIES)
@settings(max_examples=EXAMPLES)
@given(arrivals=ARRIVALS, setup=SETUPS)
def test_invariants_hold_and_every_request_ends_with_its_own_tokens(
    policy, depth, arrivals, setup
) -> None:
    run(policy, depth, arrivals, setup)


@pytest.mark.parametrize("depth", [0, 1])
def test_an_admission_owed_to_the_oldest_counts_although_it_displaces_somebody_older(depth) -> None:
    numbers = (100730, 100730, 3298755, 7043750, 0, 0, 0)
    run(Displacing, depth, list(map(arrival_of, numbers)), {"blocks": 7, "budget": 3, "rows": 5})


def test_a_prompt_that_leaves_in_a_step_is_owed_nothing_in_it() -> None:
    numbers = (74224919240851, 592192963616219, 257753538251928)
    setup = {"blocks": 10, "budget": 4, "rows": 5, "host_blocks": 40}
    run(Nonsense, 0, list(map(arrival_of, numbers)), setup)


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("policy", ODD_POLICIES)
@settings(max_examples=EXAMPLES // 8)
@given(arrivals=ARRIVALS, setup=SETUPS)
def test_invariants_hold_where_blocks_are_reserved(policy, depth, arrivals, setup) -> None:
    watch = run(policy, depth, arrivals, {**setup, "allocation": RESERVE})
    reasons = {entry[0] for entry in watch.harness.log.entries}
    assert "preempt" not in reasons, "nobody grows, so nobody gives way for it"


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("policy", BUILT_IN.values(), ids=BUILT_IN)
@settings(max_examples=EXAMPLES // 4)
@given(arrivals=ARRIVALS, setup=SETUPS)
def test_they_hold_under_every_built_in_policy(policy, depth, arrivals, setup) -> None:
    run(policy, depth, arrivals, setup)


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("policy", BUILT_IN.values(), ids=BUILT_IN)
@settings(max_examples=EXAMPLES // 8)
@given(arrivals=ARRIVALS, setup=SETUPS)
def test_they_hold_where_grammars_wait_for_tokens(policy, depth, arrivals, setup) -> None:
    run(policy, depth, arrivals, setup, no_tokens)


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("policy", ODD_POLICIES)
@settings(max_examples=EXAMPLES // 16)
@given(arrivals=ARRIVALS, setup=SETUPS, reserve=st.booleans())
def test_they_hold_where_grammars_force_tokens(policy, depth, arrivals, setup, reserve) -> None:
    setup = {**setup, "allocation": RESERVE if reserve else PAGED}
    run(policy, depth, arrivals, setup, some_tokens)


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("policy", BUILT_IN.values(), ids=BUILT_IN)
@settings(max_examples=EXAMPLES // 16)
@given(arrivals=ARRIVALS, setup=SETUPS)
def test_they_hold_where_tokens_are_forced_and_others_guessed(
    policy, depth, arrivals, setup
) -> None:
    run(policy, depth, arrivals, {**setup, "drafter": Guesser(repeating)}, some_tokens)


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("policy", ODD_POLICIES)
@settings(max_examples=EXAMPLES // 16)
@given(arrivals=ARRIVALS, setup=SETUPS, wrong=st.sampled_from([0, 1, 4]), reserve=st.booleans())
def test_they_hold_where_guesses_are_verified(
    policy, depth, arrivals, setup, wrong, reserve
) -> None:
    setup = {
        **setup,
        "drafter": Guesser(repeating, wrong),
        "allocation": RESERVE if reserve else PAGED,
    }
    counters = run(policy, depth, arrivals, setup).harness.scheduler.counters
    assert counters.accepted_tokens <= counters.draft_tokens
    if not wrong and counters.draft_tokens > 40:
        assert counters.accepted_tokens > 0


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("policy", ODD_POLICIES)
@settings(max_examples=EXAMPLES // 16)
@given(
    arrivals=ARRIVALS,
    setup=SETUPS,
    wrong=st.sampled_from([0, 2, 8]),
    blocks=st.integers(1, 16),
    piece=st.sampled_from([1, 5, 128]),
)
def test_they_hold_beside_a_draft_model(
    policy, depth, arrivals, setup, wrong, blocks, piece
) -> None:
    made = partial(draft_model, wrong, blocks=blocks, piece=piece)
    counters = run(policy, depth, arrivals, {**setup, "draft": made}).harness.scheduler.counters
    assert counters.accepted_tokens <= counters.draft_tokens
    assert counters.draft_faults == 0


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("policy", ODD_POLICIES)
@settings(max_examples=MANY_EXAMPLES // 10)
@given(
    arrivals=ARRIVALS,
    setup=SETUPS,
    wrong=st.sampled_from([0, 2, 8]),
    blocks=st.integers(1, 16),
    piece=st.sampled_from([1, 5, 128]),
)
def test_they_hold_beside_a_draft_model_in_many_more_examples(
    policy, depth, arrivals, setup, wrong, blocks, piece
) -> None:
    made = partial(draft_model, wrong, blocks=blocks, piece=piece)
    counters = run(policy, depth, arrivals, {**setup, "draft": made}).harness.scheduler.counters
    assert counters.draft_faults == 0


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("policy", ODD_POLICIES)
@settings(max_examples=MANY_EXAMPLES)
@given(arrivals=ARRIVALS, setup=SETUPS)
def test_invariants_hold_in_many_more_examples(policy, depth, arrivals, setup) -> None:
    run(policy, depth, arrivals, setup)
