"""Sequences under a grammar: masks, ends, and what preemption and faults leave of it."""

import math
from dataclasses import replace

import numpy as np
import pytest
from support.engines import GREEDY, Harness
from support.grammars import Stepwise, mask_of

from engine.backends.scripted import ScriptedBackend, raising
from engine.beam_search import BeamSearch
from engine.grammar import allows, first_allowed
from engine.inbox import Submission
from engine.outputs import FailureKind, FinishReason

DEPTHS = pytest.mark.parametrize("depth", [0, 1])


def under(grammar, **controls):
    return replace(GREEDY, grammar=grammar, **controls)


def test_a_mask_is_read_bit_by_bit():
    mask = mask_of([3, 40], 64)
    assert [token for token in range(70) if allows(mask, token)] == [3, 40]
    assert [token for token in range(70) if allows(mask.view(np.int32), token)] == [3, 40]
    assert first_allowed(mask) == 3
    with pytest.raises(ValueError, match="no token"):
        first_allowed(mask_of([]))


@DEPTHS
def test_tokens_follow_the_grammar_and_end_with_it(depth):
    house = Harness(depth=depth, script=lambda row: 7)
    grammar = Stepwise([5, 6], [7], [9])
    guided = house.submit([1, 2], 10, under(grammar))
    free = house.submit([3, 4], 4)
    house.run()
    assert house.tokens(guided) == [5, 7, 9]  # the script's where it may
    assert house.end(guided).reason is FinishReason.STOP
    assert house.end(guided).stop_token is None
    assert house.tokens(free) == [7, 7, 7, 7]
    assert [each.accepted for each in grammar.matchers] == [[5, 7, 9]]


@DEPTHS
def test_a_grammar_that_allows_eos_ends_with_it(depth):
    house = Harness(depth=depth, script=lambda row: 2)
    ids = [
        house.submit([1], 10, under(Stepwise([5], [2, 5]), eos_ids=frozenset({2}), ignore_eos=each))
        for each in (False, True)
    ]
    house.run()
    for request in ids:
        assert house.tokens(request) == [5, 2]
        assert (house.end(request).reason, house.end(request).stop_token) == (FinishReason.STOP, 2)


def test_what_is_complete_at_the_limit_ended_by_itself():
    house = Harness(script=lambda row: 5)
    complete = house.submit([1], 2, under(Stepwise([5], [5])))
    cut = house.submit([1], 2, under(Stepwise([5], [5], [5])))
    house.run()
    assert house.end(complete).reason is FinishReason.STOP
    assert house.end(cut).reason is FinishReason.LENGTH


@DEPTHS
def test_each_sequence_has_a_place_of_its_own(depth):
    house = Harness(depth=depth, script=lambda row: 5 + row.index)
    grammar = Stepwise([5, 6], [5, 6], [5, 6])
    request = house.submit([1, 2], 8, under(grammar), n=2)
    house.run()
    assert [house.tokens(request, index) for index in (0, 1)] == [[5, 5, 5], [6, 6, 6]]


@DEPTHS
def test_preemption_changes_nothing(depth):
    def play(blocks):
        house = Harness(blocks=blocks, depth=depth, script=lambda row: row.position % 3)
        grammars = [Stepwise(*([k % 3, 7 + k % 5] for k in range(40))) for _ in range(3)]
        ids = [house.submit(20, 60, under(grammar)) for grammar in grammars]
        house.run()
        told = [house.tokens(request) for request in ids]
        assert told == [grammar.matchers[0].accepted for grammar in grammars]
        return told, house.stats.counters.preemptions

    roomy, none = play(64)
    tight, some = play(6)
    assert (none, some > 0) == (0, True)
    assert roomy == tight


@DEPTHS
def test_a_step_that_fails_leaves_matchers_where_they_were(depth):
    house = Harness(depth=depth, script=lambda row: 5, nan_rows={3: [0]})
    grammars = [Stepwise(*[[5]] * 8) for _ in range(2)]
    first, second = (house.submit([1, 2], 20, under(grammar)) for grammar in grammars)
    house.run()
    ends = [house.end(request).reason for request in (first, second)]
    assert sorted(end.value for end in ends) == ["error", "stop"]
    spared = grammars[ends.index(FinishReason.STOP)]
    assert spared.matchers[0].accepted == [5] * 8


@DEPTHS
def test_a_matcher_that_cannot_go_on_fails_its_request_alone(depth):
    house = Harness(depth=depth, script=lambda row: 5)
    broken = house.submit([1], 8, under(Stepwise(*[[5]] * 8, breaks_at=2)), n=2)
    guided = house.submit([1], 8, under(Stepwise(*[[5]] * 4)))
    free = house.submit([1], 8)
    house.run()
    for index in (0, 1):
        failure = house.end(broken, index).failure
        assert (failure.kind, failure.message) == (
            FailureKind.GRAMMAR,
            "the grammar is too complex",
        )
    assert house.tokens(guided) == [5] * 4
    assert house.tokens(free) == [5] * 8
    assert house.pool.free == house.pool.total


def test_a_backend_that_ignores_masks_is_found_out():
    class Deaf(ScriptedBackend):
        def _choose(self, row):
            return 9

    house = Harness(backend=Deaf(64))
    request = house.submit([1], 8, under(Stepwise([5])))
    house.run()
    assert house.end(request).failure.kind is FailureKind.GRAMMAR


def test_masks_are_computed_while_the_backend_computes():
    grammar = Stepwise([5], [5])

    class Noting(ScriptedBackend):
        def submit(self, batch):
            grammar.log.append("submit")
            return super().submit(batch)

        def sample(self, ticket, rows):
            grammar.log.append("sample")
            super().sample(ticket, rows)

    house = Harness(backend=Noting(64, script=lambda row: 5))
    house.submit([1], 8, under(grammar))
    house.run()
    assert grammar.log == ["prepare", "submit", "wait", "sample"] * 2


def test_masks_are_waited_for_even_if_the_backend_fails():
    house = Harness(script=lambda row: 5, hooks={0: raising(RuntimeError("no"))})
    grammar = Stepwise([5])
    request = house.submit([1], 8, under(grammar))
    house.run()
    assert house.end(request).reason is FinishReason.ERROR
    assert grammar.log == ["prepare", "wait"]


@DEPTHS
def test_who_has_no_mask_yet_sits_out_and_nobody_else_does(depth):
    def play(late):
        """How many tokens the neighbours had after each step."""
        house = Harness(depth=depth, script=lambda row: 5)
        slow = house.submit([1, 2], 20, under(Stepwise([5], [5], [6], [5], late={2: late})))
        others = [house.submit([1, 2], 40, under(Stepwise(*[[5]] * 40))), house.submit([1, 2], 40)]
        landed = []
        while house.step():
            landed.append([len(house.tokens(each)) for each in others])
        assert house.tokens(slow) == [5, 5, 6, 5]
        assert house.end(slow).reason is FinishReason.STOP
        assert house.scheduler.counters.late_rows == late
        return landed

    assert play(30) == play(0)


@DEPTHS
@pytest.mark.parametrize("prompt", [1, 15, 16, 17, 40])
@pytest.mark.parametrize("n", [1, 3])
def test_late_masks_change_no_token(depth, prompt, n):
    def play(late):
        house = Harness(
            budget=24, depth=depth, script=lambda row: 5 + (row.position + row.index) % 2
        )
        grammar = Stepwise(*[[5, 6]] * 20, late=dict.fromkeys(range(0, 20, 3), late))
        request = house.submit(prompt, 30, under(grammar), n=n)
        house.submit(prompt, 30)
        house.run()
        assert house.pool.free == house.pool.total
        return [house.tokens(request, index) for index in range(n)]

    assert play(0) == play(1) == play(5)


@DEPTHS
def test_preemption_and_faults_while_a_mask_is_late_change_no_token(depth):
    def play(blocks, late, nan_rows):
        script = lambda row: row.position % 3  # noqa: E731
        house = Harness(blocks=blocks, depth=depth, script=script, nan_rows=nan_rows)
        places = [[k % 3, 7 + k % 5] for k in range(40)]
        grammars = [Stepwise(*places, late=late) for _ in range(3)]
        ids = [house.submit(20, 60, under(grammar)) for grammar in grammars]
        house.run()
        ended = [house.end(request).reason for request in ids]
        told = [house.tokens(request) for request in ids]
        assert told == [grammar.matchers[0].accepted for grammar in grammars]
        return told, ended

    late = {0: 2, 5: 9, 11: 1, 20: 3}
    assert play(64, {}, {}) == play(64, late, {}) == play(6, late, {})
    _, ended = play(64, late, {7: [0]})
    assert sorted(each.value for each in ended) == ["error", "stop", "stop"]


@DEPTHS
def test_who_waits_for_a_mask_can_be_aborted(depth):
    house = Harness(depth=depth, script=lambda row: 5)
    request = house.submit([1, 2], 20, under(Stepwise([5], [5], late={1: math.inf})))
    for _ in range(9):
        house.step()
    assert house.tokens(request) == [5]
    house.abort(request)
    house.run()
    assert house.pool.free == house.pool.total


def test_prompts_ask_for_no_mask_before_their_last_token():
    house = Harness(budget=16, script=lambda row: 5)
    grammar = Stepwise([5])
    house.submit(40, 8, under(grammar))
    house.run()
    assert grammar.log == ["prepare", "wait"]


def test_a_beam_search_follows_no_grammar():
    with pytest.raises(ValueError, match="grammar"):
        Submission(1, [1], 4, under(Stepwise([5])), 0.0, beams=BeamSearch(2))
