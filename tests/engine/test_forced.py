"""Tokens that a grammar leaves no choice about take no step, and change nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engines import GREEDY, Harness
from support.grammars import Stepwise
from support.hashed import VOCAB, HashedBackend

from engine.controls import RowControls
from engine.outputs import FailureKind, FinishReason
from policies.base import Policy, Share, Tokens
from policies.fcfs import FCFS

DEPTHS = pytest.mark.parametrize("depth", [0, 1])
SCRIPT = 5
"""What the model says wherever it may."""


def forcing(*places: list[int], **fields: Any) -> Stepwise:
    return Stepwise(*places, forces=True, **fields)


def under(grammar: Stepwise, **controls: Any) -> RowControls:
    return replace(GREEDY, grammar=grammar, **controls)


def house(**fields: Any) -> Harness:
    return Harness(script=lambda row: SCRIPT, **fields)


def shapes(harness: Harness) -> list[list[tuple[int, bool]]]:
    """Tokens of each row of each step, and whether it samples."""
    return [[(row.count, row.samples) for row in batch.rows] for batch in harness.backend.batches]


ANY = [SCRIPT, 6]


@DEPTHS
def test_they_come_with_the_token_that_leaves_no_choice_and_are_computed_in_one_row(depth) -> None:
    harness = house(depth=depth)
    request = harness.submit([1, 2], 10, under(forcing(ANY, [7], [8], [9], ANY, ANY)))
    harness.run()
    assert [output.tokens for output in harness.outputs[request, 0]] == [(5, 7, 8, 9), (5,), (5,)]
    assert shapes(harness) == [[(2, True)], [(4, True)], [(1, True)]]
    counters = harness.scheduler.counters
    assert (counters.generated_tokens, counters.forced_tokens, counters.steps) == (6, 3, 3)
    assert ("forced", request, 0, 3) in harness.log.entries
    assert ("known", request, 0, 4) in harness.log.entries


def test_the_first_output_of_a_request_says_when_it_was_admitted() -> None:
    harness = house()
    request = harness.submit([1], 10, under(forcing(ANY, [7], ANY, [7], ANY)))
    harness.run()
    timed = [output.timing is not None for output in harness.outputs[request, 0]]
    assert timed == [True, False, False]


@DEPTHS
def test_a_grammar_that_they_complete_ends_without_another_step(depth) -> None:
    harness = house(depth=depth)
    request = harness.submit([1], 10, under(forcing(ANY, [7], [8])))
    harness.run()
    assert harness.scheduler.counters.steps == 1
    assert harness.tokens(request) == [5, 7, 8]
    end = harness.end(request)
    assert (end.reason, end.stop_token) == (FinishReason.STOP, None)


@pytest.mark.parametrize(
    ("most", "said", "reason"),
    [
        (1, [5], FinishReason.LENGTH),
        (2, [5, 7], FinishReason.LENGTH),
        (3, [5, 7, 8], FinishReason.STOP),
    ],
)
def test_max_tokens_cut_them(most, said, reason) -> None:
    harness = house()
    request = harness.submit([1], most, under(forcing(ANY, [7], [8])))
    assert harness.run() == 1
    assert (harness.tokens(request), harness.end(request).reason) == (said, reason)
    assert harness.scheduler.counters.generated_tokens == most


@pytest.mark.parametrize("field", ["stop_ids", "eos_ids"])
def test_one_that_ends_a_sequence_ends_it(field) -> None:
    harness = house()
    controls = under(forcing(ANY, [7], [8], [9], ANY), **{field: frozenset({8})})
    request = harness.submit([1], 10, controls)
    harness.run()
    assert harness.tokens(request) == [5, 7, 8]
    assert (harness.end(request).reason, harness.end(request).stop_token) == (FinishReason.STOP, 8)


@DEPTHS
def test_a_stop_string_may_end_among_them(depth) -> None:
    harness = house(depth=depth)
    request = harness.submit([1], 10, under(forcing(ANY, [7], [8], [9], ANY, ANY)))
    other = harness.submit([1], 6)
    harness.step()
    harness.finish(request, tokens=2)
    harness.run()
    assert harness.end(request).reason is FinishReason.STOP
    assert harness.tokens(other) == [SCRIPT] * 6
    assert harness.pool.free == harness.pool.total


def test_who_wants_logprobs_is_asked_for_each_token() -> None:
    harness = house()
    grammar = forcing(ANY, [7], [8], ANY)
    request = harness.submit([1], 10, under(grammar, logprobs=1))
    assert harness.run() == 4
    assert harness.tokens(request) == [5, 7, 8, 5]
    assert [len(output.logprobs) for output in harness.outputs[request, 0]] == [1] * 4


@DEPTHS
def test_each_sequence_has_its_own(depth) -> None:
    harness = Harness(depth=depth, script=lambda row: 5 + row.index)
    request = harness.submit([1, 2], 8, under(forcing([5, 6], [9], [9], [5, 6])), n=2)
    harness.run()
    assert [harness.tokens(request, index) for index in (0, 1)] == [[5, 9, 9, 5], [6, 9, 9, 6]]


LONG = [ANY, *[[k % 30 + 10] for k in range(40)], ANY, ANY]
LONG_SAID = [SCRIPT, *[k % 30 + 10 for k in range(40)], SCRIPT, SCRIPT]


@DEPTHS
def test_more_than_a_step_has_room_for_take_several_and_hold_nobody_up(depth) -> None:
    harness = house(depth=depth, budget=8)
    guided = [harness.submit([1], 60, under(forcing(*LONG))) for _ in range(2)]
    free = harness.submit([1, 2], 20)
    harness.run()
    assert [harness.tokens(request) for request in guided] == [LONG_SAID] * 2
    assert harness.tokens(free) == [SCRIPT] * 20
    counts = [[count for count, _ in rows] for rows in shapes(harness)]
    assert max(map(sum, counts)) == 8
    assert max(map(max, counts)) == 7
    served = [
        batch for batch in harness.backend.batches if any(k == (free, 0) for k in batch.rows.keys)
    ]
    assert len(served) == 20


def test_a_policy_bounds_them_as_decodes_and_as_chunks() -> None:
    class Narrow(FCFS):
        def share(self, step):
            return Share(decode=6, prompt=64, chunk=3)

    harness = house(policy=Narrow)
    for _ in range(3):
        harness.submit([1], 60, under(forcing(*LONG)))
    harness.run()
    decodes = [[count for count, _ in rows] for rows in shapes(harness)[1:]]
    assert max(map(sum, decodes)) == 6
    assert max(map(max, decodes)) == 3
    assert [1, 3, 2] in decodes


@DEPTHS
def test_blocks_for_them_are_taken_from_nobody(depth) -> None:
    harness = house(blocks=8, depth=depth)
    guided = harness.submit([1], 60, under(forcing(*LONG)))
    free = harness.submit(60, 60)
    harness.run()
    assert harness.tokens(guided) == LONG_SAID
    assert harness.tokens(free) == [SCRIPT] * 60


def test_policies_are_told_of_all_tokens_that_landed() -> None:
    class Noting(FCFS):
        def __init__(self, **fields) -> None:
            super().__init__(**fields)
            self.told: list[int] = []

        def observe(self, events):
            self.told += [event.count for event in events if isinstance(event, Tokens)]
            return ()

    harness = house(policy=Noting)
    harness.submit([1], 10, under(forcing(ANY, [7], [8], ANY)), tenant="acme")
    harness.run()
    assert harness.policy.told == [3, 1]
    assert harness.scheduler.service.totals()["acme"].output == 4


@DEPTHS
def test_a_fault_among_them_fails_the_request_alone(depth) -> None:
    harness = house(depth=depth)
    broken = harness.submit([1], 8, under(forcing(ANY, [7], [8], ANY, breaks_at=2)))
    other = harness.submit([1], 8, under(forcing(ANY, [7], [8], ANY)))
    harness.run()
    assert harness.end(broken).failure.kind is FailureKind.GRAMMAR
    assert harness.tokens(other) == [5, 7, 8, 5]
    assert harness.pool.free == harness.pool.total


@DEPTHS
@pytest.mark.parametrize("at", range(1, 6))
def test_a_step_that_fails_leaves_them_known(depth, at) -> None:
    harness = house(depth=depth, budget=8, nan_rows={at: [0]})
    grammars = [forcing(*LONG) for _ in range(2)]
    guided = [harness.submit([1], 60, under(grammar)) for grammar in grammars]
    harness.run()
    ends = [harness.end(request).reason for request in guided]
    assert sorted(end.value for end in ends) == ["error", "stop"]
    spared = ends.index(FinishReason.STOP)
    assert harness.tokens(guided[spared]) == LONG_SAID
    assert grammars[spared].matchers[0].accepted == LONG_SAID


def test_they_are_found_in_the_prefix_cache() -> None:
    harness = house()
    first = harness.submit(20, 60, under(forcing(*LONG)))
    harness.run()
    prompt = [1000 + i for i in range(20)]
    again = harness.submit([*prompt, *harness.tokens(first)], 1)
    harness.run()
    assert harness.outputs[again, 0][0].cached == 48  # of 62 the last is left to compute


# ── nothing else changes ──────────────────────────────────────────────────────────────────────


PLACES = st.lists(
    st.one_of(
        st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=1),
        st.lists(st.integers(0, VOCAB - 1), min_size=2, max_size=9, unique=True),
    ),
    min_size=1,
    max_size=50,
)
CONTROLS = st.builds(
    lambda seed, temperature, penalty, stops: RowControls(
        temperature=temperature,
        seed=seed,
        presence_penalty=penalty,
        repetition_penalty=1 + penalty,
        stop_ids=frozenset(stops),
    ),
    st.integers(0, 2**32),
    st.sampled_from([0.0, 1.0]),
    st.sampled_from([0.0, 0.5]),
    st.sets(st.integers(0, VOCAB - 1), max_size=1),
)
ASKS = st.lists(st.tuples(PLACES, CONTROLS, st.integers(1, 40), st.integers(1, 2)), max_size=5)
SETUPS = st.fixed_dictionaries(
    {
        "blocks": st.integers(10, 24),
        "budget": st.integers(4, 40),
        "rows": st.integers(2, 8),
        "depth": st.sampled_from([0, 1]),
        "host_blocks": st.sampled_from([0, 20]),
        "prefix_cache": st.booleans(),
    }
)


def answers(asks, forces: bool, policy: type[Policy] = FCFS, **setup: Any) -> list[Any]:
    """What each sequence says, and how it ends."""
    hosts, blocks = setup.pop("host_blocks", 0), setup.setdefault("blocks", 400)
    backend = HashedBackend(blocks, host_blocks=hosts)
    harness = Harness(backend=backend, policy=policy, **setup)
    sequences = []
    for number, (places, controls, most, n) in enumerate(asks):
        grammar = Stepwise(*places, forces=forces)
        prompt = [number] * (3 + 7 * number)
        request = harness.submit(prompt, most, replace(controls, grammar=grammar), n=n)
        sequences += [(request, index) for index in range(n)]
    harness.run()
    return [(harness.tokens(*each), harness.end(*each)) for each in sequences]


@settings(max_examples=25)
@given(asks=ASKS, setup=SETUPS)
def test_answers_are_the_same_as_token_by_token(asks, setup) -> None:
    assert answers(asks, True, **setup) == answers(asks, False, rows=16)


@pytest.mark.slow
@settings(max_examples=500)
@given(asks=ASKS, setup=SETUPS)
def test_answers_are_the_same_as_token_by_token_in_many_more_examples(asks, setup) -> None:
    assert answers(asks, True, **setup) == answers(asks, False, rows=16)
