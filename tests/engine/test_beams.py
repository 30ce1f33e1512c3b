"""Beam search in the engine: beams share blocks, copy at the first write, and are one group."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.beams import branching, search_alone
from support.engines import GREEDY, Harness, services
from support.odd_policies import ODD_POLICIES

from engine.allocation import RESERVE
from engine.backends.scripted import raising
from engine.beam_search import BeamSearch
from engine.controls import RowControls, SampleRow
from engine.errors import RowFault
from engine.inbox import Reconfigure, Submission
from engine.outputs import Failure, FailureKind, FinishReason
from policies.base import Policy
from policies.fcfs import FCFS

WIDE = BeamSearch(4)


def engine(**options: Any) -> Harness:
    return Harness(**{"branches": branching, "model_len": 2048, **options})


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return [1000 * seed + i for i in range(length)]


def submit(harness: Harness, prompt: int, max_tokens: int = 12, **fields: Any) -> int:
    fields = {"beams": WIDE, "n": 4, **fields}
    return harness.submit(prompt_of(prompt), max_tokens, **fields)


def texts(harness: Harness, request: int, n: int = 4) -> list[tuple[int, ...]]:
    return [tuple(harness.tokens(request, index)) for index in range(n)]


def alone(prompt: int, max_tokens: int = 12, beams: BeamSearch = WIDE) -> list[tuple[int, ...]]:
    return [each.tokens for each in search_alone(prompt_of(prompt), beams, max_tokens)]


def held(harness: Harness) -> int:
    return harness.pool.total - harness.pool.free


def copies(harness: Harness) -> list[int]:
    """How many blocks each step copied."""
    return [len(batch.copies) for batch in harness.backend.batches]


# ── what is found ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("budget", [3, 16, 64])
@pytest.mark.parametrize("prompt", [1, 2, 15, 16, 17, 40])
def test_an_engine_finds_what_a_search_alone_finds(depth: int, budget: int, prompt: int) -> None:
    harness = engine(depth=depth, budget=budget)
    request = submit(harness, prompt, 20)
    harness.run()
    assert texts(harness, request) == alone(prompt, 20)
    assert harness.pool.free == harness.pool.total


def test_nothing_is_said_before_the_end_and_then_the_best_with_their_reasons() -> None:
    harness = engine()
    ends = replace(GREEDY, eos_ids=frozenset({3, 9}), logprobs=1)
    request = harness.submit(prompt_of(20), 12, ends, n=3, beams=WIDE)
    while harness.scheduler.live or harness.mail:
        assert not harness.outputs
        harness.step()
    found = search_alone(prompt_of(20), WIDE, 12, ends.eos_ids)[:3]
    for index, best in enumerate(found):
        (output,) = harness.outputs[request, index]
        assert output.tokens == best.tokens
        assert output.finish.stop_token == best.stop_token
        assert output.finish.reason.value == ("stop" if best.stop_token in {3, 9} else "length")
        assert output.timing.arrival <= output.timing.admitted <= output.at
        assert len(output.logprobs) == len(output.tokens)
        assert sum(one.logprob for one in output.logprobs) == pytest.approx(
            best.score * len(best.tokens)
        )
    assert {output.finish.reason for (output,) in harness.outputs.values()} == {
        FinishReason.STOP,
        FinishReason.LENGTH,
    }
    assert set(harness.outputs) == {(request, 0), (request, 1), (request, 2)}


def test_eos_goes_on_where_it_is_to_be_ignored() -> None:
    harness = engine()
    controls = replace(GREEDY, eos_ids=frozenset({3, 9}), ignore_eos=True)
    request = submit(harness, 20, controls=controls)
    harness.run()
    assert texts(harness, request) == alone(20)


def test_a_stop_string_cannot_end_a_sequence_that_nobody_has_seen() -> None:
    harness = engine()
    request = submit(harness, 20)
    for _ in range(5):
        harness.step()
    harness.finish(request, tokens=1, index=0)
    harness.run()
    assert texts(harness, request) == alone(20)


def one_way(row: SampleRow) -> list[tuple[int, float]]:
    return [(row.position % 7, -1.0)]


def test_controls_that_leave_one_way_leave_one_beam() -> None:
    harness = engine(branches=one_way)
    request = submit(harness, 20, 5)
    harness.run()
    assert texts(harness, request) == [(6, 0, 1, 2, 3)] * 4
    assert all(len(batch.rows) == 1 for batch in harness.backend.batches)


def test_the_decision_log_says_who_goes_on_from_whom_and_no_token() -> None:
    harness = engine(branches=stay_apart)
    submit(harness, 20, 3)
    harness.run()
    forks = [entry for entry in harness.log.entries if entry[0] == "fork"]
    assert forks == [("fork", 1, index, 0) for index in (1, 2, 3)]
    ends = [entry for entry in harness.log.entries if entry[0] == "finish"]
    assert ends == [("finish", 1, index, "length") for index in range(4)]


# ── blocks ────────────────────────────────────────────────────────────────────────────────────


def stay_apart(row: SampleRow) -> list[tuple[int, float]]:
    """Four beams that never meet: each goes on by itself."""
    if row.position == row.prompt_length:
        return [(token, -1.0 - token / 10) for token in range(4)]
    return [(row.tokens[row.prompt_length], -0.1), (8, -50.0)]


@pytest.mark.parametrize(("prompt", "copied"), [(20, 3), (31, 3), (32, 0)])
def test_beams_share_the_prompt_and_copy_its_tail_at_the_first_write(prompt, copied) -> None:
    harness = engine(branches=stay_apart)
    submit(harness, prompt)
    harness.step()
    assert held(harness) == 2, "four beams, which have written nothing yet"
    harness.step()
    assert held(harness) == 1 + (0 if copied else 1) + 4
    harness.run()
    assert copies(harness)[:2] == [0, copied]
    assert sum(copies(harness)) == copied, "nobody shares a tail again"


def follow_the_leader(row: SampleRow) -> list[tuple[int, float]]:
    """The best beam has better continuations than any other one."""
    best = all(token == 0 for token in row.tokens[row.prompt_length :])
    return [(token, -0.1 - token / 100 - (0 if best else 50)) for token in range(4)]


def test_a_beam_that_nobody_goes_on_from_gives_its_blocks_back() -> None:
    harness = engine(branches=follow_the_leader)
    submit(harness, 20, 30)
    for length in range(21, 45):
        harness.step()
        # All four go on from one: they share what it has written, all of it.
        assert held(harness) == -(-(length - 1) // 16)
    assert copies(harness)[1:] == [0 if (length - 1) % 16 == 0 else 3 for length in range(21, 44)]


def test_eight_beams_of_a_long_prompt_take_few_blocks_more_than_one_sequence() -> None:
    used = {}
    for beams in (None, BeamSearch(8)):
        harness = engine(blocks=600, budget=1024)
        harness.submit(prompt_of(1000), 9, n=1, beams=beams)
        harness.step()
        harness.step()
        used[beams] = held(harness)
    assert used[BeamSearch(8)] < 1.2 * used[None]


@pytest.mark.parametrize("depth", [0, 1])
def test_what_the_best_beam_wrote_is_found_by_whoever_goes_on_from_it(depth: int) -> None:
    harness = engine(depth=depth)
    request = submit(harness, 20, 40)
    harness.run()
    best = [*prompt_of(20), *harness.tokens(request, 0)]
    harness.submit([*best, 77], 2)
    harness.run()
    assert harness.scheduler.counters.cached_tokens >= 48


# ── the group ─────────────────────────────────────────────────────────────────────────────────


def test_rows_for_all_beams_are_held_from_admission_to_the_end() -> None:
    harness = engine(rows=5)
    group = submit(harness, 20, 6)
    pair = harness.submit(4, max_tokens=2, n=2)
    one = harness.submit(4, max_tokens=2)
    while not harness.outputs[group, 0]:
        harness.step()
        assert not harness.outputs[pair, 0]
    harness.run()
    assert len(harness.tokens(one)) == len(harness.tokens(pair, 1)) == 2


@pytest.mark.parametrize(
    ("width", "max_tokens", "reason"), [(17, 20, "17 sequences exceed"), (16, 60, "KV blocks")]
)
def test_a_search_that_could_never_fit_is_refused_at_the_door(width, max_tokens, reason) -> None:
    harness = engine(rows=16, blocks=80)
    request = submit(harness, 40, max_tokens, n=2, beams=BeamSearch(width))
    harness.run()
    for index in range(2):
        finish = harness.end(request, index)
        assert finish.failure.kind is FailureKind.NEVER_FITS
        assert reason in finish.failure.message
    assert len(harness.outputs) == 2


def test_a_search_is_let_in_when_there_are_blocks_for_the_tails_of_all_beams() -> None:
    harness = engine(blocks=8)
    other = harness.submit(50, max_tokens=8)
    harness.step()
    group = submit(harness, 20)
    while not harness.outputs[other, 0][-1].finish:
        running = harness.scheduler.roster.running
        assert group not in running, "4 blocks are free: 2 for the prompt, 3 for beams to come"
        harness.step()
    harness.run()
    assert texts(harness, group) == alone(20)
    assert harness.scheduler.counters.preemptions == 0


def test_reserved_blocks_cannot_be_shared_by_beams() -> None:
    harness = engine(allocation=RESERVE, prefix_cache=False)
    request = submit(harness, 20)
    harness.run()
    assert "share" in harness.end(request).failure.message


def test_beams_that_have_landed_wait_for_those_the_budget_was_too_short_for() -> None:
    harness = engine(branches=stay_apart, budget=3)
    request = submit(harness, 3, 4)
    harness.run()
    rows = [len(batch.rows) for batch in harness.backend.batches]
    assert rows == [1, 3, 1, 3, 1, 3, 1]
    assert [tokens[0] for tokens in texts(harness, request)] == [0, 1, 2, 3]


def test_a_group_never_overlaps_itself() -> None:
    harness = engine(depth=1)
    submit(harness, 20)
    other = harness.submit(4, max_tokens=40)
    harness.run()
    group = [any(row.request != other for row in batch.rows) for batch in harness.backend.batches]
    first = group.index(True)
    assert group[first : first + 10] == [True, False] * 5, "the other one fills the steps between"


@pytest.mark.parametrize("policy", ODD_POLICIES)
@pytest.mark.parametrize("depth", [0, 1])
def test_groups_in_a_tiny_pool_are_preempted_as_a_whole_and_lose_nothing(policy, depth) -> None:
    harness = engine(policy=policy, depth=depth, blocks=12, budget=32, rows=10)
    requests = [submit(harness, 12 + number, 20, beams=BeamSearch(4)) for number in range(5)]
    harness.run()
    for number, request in enumerate(requests):
        if harness.end(request).reason is not FinishReason.REJECTED:
            assert texts(harness, request) == alone(12 + number, 20)
    assert harness.pool.free == harness.pool.total


@pytest.mark.parametrize("budget", [3, 5, 7])
def test_what_lands_after_its_group_gave_way_is_computed_again(budget: int) -> None:
    """Or a beam could go on without its KV, before the others of its group have landed."""
    harness = engine(depth=1, blocks=12, budget=budget, rows=10)
    requests = [submit(harness, 12 + number, 20) for number in range(4)]
    harness.run()
    for number, request in enumerate(requests):
        if harness.end(request).failure is None:
            assert texts(harness, request) == alone(12 + number, 20)
    assert harness.scheduler.counters.preemptions > 0


def test_the_pool_is_tight_enough_that_groups_are_preempted() -> None:
    harness = engine(blocks=12, budget=32, rows=10)
    for number in range(5):
        submit(harness, 12 + number, 20)
    harness.run()
    assert harness.scheduler.counters.preemptions > 0


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("steps", range(10))
def test_an_abort_frees_all_beams(depth: int, steps: int) -> None:
    harness = engine(depth=depth, budget=16)
    request = submit(harness, 40)
    for _ in range(steps):
        harness.step()
    harness.abort(request)
    harness.run()
    assert harness.pool.free == harness.pool.total
    assert harness.scheduler.counters.cancelled == 1
    assert not harness.outputs


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("step", range(6))
def test_a_fault_in_one_beam_ends_the_search_with_an_error_for_each_answer(depth, step) -> None:
    harness = engine(depth=depth, nan_rows={step: [0]})
    request = submit(harness, 20, n=2)
    harness.run()
    assert len(harness.outputs) == 2
    assert {harness.end(request, index).reason for index in range(2)} == {FinishReason.ERROR}
    assert harness.pool.free == harness.pool.total


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("step", range(8))
@pytest.mark.parametrize("budget", [5, 64])
def test_a_fault_of_somebody_else_makes_beams_start_their_step_again(depth, step, budget) -> None:
    doomed: list[int] = []

    def fail(batch) -> None:
        row = next((i for i, row in enumerate(batch.rows) if row.request in doomed), None)
        if row is not None:
            raising(RowFault([row], "planted"))(batch)

    harness = engine(depth=depth, budget=budget, hooks={step: fail})
    doomed.append(harness.submit(4, max_tokens=40))
    request = submit(harness, 20)
    harness.run()
    assert texts(harness, request) == alone(20)
    assert harness.pool.free == harness.pool.total


def test_beams_that_start_again_compute_what_they_had_in_chunks() -> None:
    """And not token by token: blocks were to be copied in a step that came to nothing."""
    hooks = {31: raising(RowFault([0], "planted"))}
    harness = engine(branches=follow_the_leader, hooks=hooks, budget=16)
    harness.submit(4, max_tokens=100)
    submit(harness, 20, 40)
    harness.run()
    failed, *later = harness.backend.batches[31:]
    assert failed.copies
    assert len(later) < 20


class Reversed(Policy):
    """Newest first."""

    def key(self, request):
        return (-request.ticket,)


@pytest.mark.parametrize("depth", [0, 1])
def test_another_policy_in_the_middle_changes_nothing(depth: int) -> None:
    harness = engine(depth=depth, blocks=12, rows=10)
    requests = [submit(harness, 12 + number, 20) for number in range(4)]
    for policy in (Reversed, FCFS) * 8:
        harness.step()
        harness.mail.append(Reconfigure(policy(services=services())))
    harness.run()
    for number, request in enumerate(requests):
        assert texts(harness, request) == alone(12 + number, 20)


def test_an_engine_that_ends_tells_each_answer_once() -> None:
    harness = engine()
    submit(harness, 20, n=2)
    harness.step()
    late = Submission(99, [1], 4, RowControls(), 0.0, n=3, beams=WIDE)
    harness.engine.close(Failure(FailureKind.SHUTTING_DOWN, "over"), [late])
    assert {key: len(outputs) for key, outputs in harness.outputs.items()} == {
        (1, 0): 1,
        (1, 1): 1,
        (99, 0): 1,
        (99, 1): 1,
        (99, 2): 1,
    }


def test_fewer_beams_than_answers_are_refused() -> None:
    with pytest.raises(ValueError, match="4 beams cannot answer with 5"):
        Submission(1, [1], 4, RowControls(), 0.0, n=5, beams=WIDE)
