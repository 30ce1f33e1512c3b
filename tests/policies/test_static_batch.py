"""Static batching: nobody joins a batch that runs, nothing hangs, and the padding is reported."""

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engines import NO_CPU_LIMIT, Harness, services
from support.traffic import SETUPS, VISITS, Visit, play, started

from engine.inbox import Reconfigure
from policies.fcfs import FCFS
from policies.static_batch import StaticBatch


def batches(harness: Harness) -> list[list[int]]:
    """Requests by the batch that they started in: a new one starts when nobody is left."""
    made: list[list[int]] = []
    unfinished: set[int] = set()
    seen: set[int] = set()
    for kind, *fields in harness.log.entries:
        if kind == "admit" and fields[0] not in seen:
            seen.add(fields[0])
            if not unfinished:
                made.append([])
            made[-1].append(fields[0])
            unfinished.add(fields[0])
        elif kind in ("cancel", "finish"):
            unfinished.discard(fields[0])
    return made


def totals(harness: Harness) -> dict[str, int]:
    return harness.policy.export()["static_batch"]


@settings(max_examples=50)
@given(visits=VISITS, setup=SETUPS, size=st.integers(1, 5))
def test_whoever_came_after_a_batch_began_waits_for_all_of_it(visits, setup, size) -> None:
    run = play(partial(StaticBatch, size=size), visits, **setup)
    order = started(run.harness)
    assert order == sorted(order)
    begun = first_admissions(run.harness)
    for batch in batches(run.harness):
        assert len(batch) <= size
        assert all(run.arrivals[request] <= begun[batch[0]] for request in batch)
    said = [len(run.harness.tokens(request)) for request in order]
    assert totals(run.harness)["requests"] == len(order)
    assert totals(run.harness)["rows"] == sum(said)
    assert totals(run.harness)["padded_rows"] >= sum(said)


def first_admissions(harness: Harness) -> dict[int, float]:
    """Engine time of the step in which each request was let in first."""
    times: dict[int, float] = {}
    now = 0.0
    for kind, *fields in harness.log.entries:
        if kind == "step":
            now = fields[1]
        elif kind == "admit":
            times.setdefault(fields[0], now)
    return times


def test_a_batch_is_let_in_together_even_if_its_prompts_take_many_steps() -> None:
    """The first of them ends before the last has begun, and still nobody else joins."""
    visits = [Visit(prompt=30, max_tokens=m) for m in (1, 1, 9, 3)] + [Visit(gap=3, max_tokens=2)]
    harness = play(partial(StaticBatch, size=8), visits, budget=16).harness
    assert totals(harness)["batches"] == 2
    assert first_admissions(harness)[5] > max(harness.outputs[r, 0][-1].at for r in (1, 2, 3, 4))


def test_a_padded_batch_computes_every_row_to_the_end_of_the_longest() -> None:
    visits = [Visit(prompt=p, max_tokens=m) for p, m in ((5, 2), (9, 10), (3, 4), (8, 7), (8, 1))]
    assert totals(play(partial(StaticBatch, size=3), visits).harness) == {
        "batches": 2,
        "requests": 5,
        "rows": 2 + 10 + 4 + 7 + 1,
        "padded_rows": 3 * 10 + 2 * 7,
        "prompt_tokens": 5 + 9 + 3 + 8 + 8,
        "padded_prompt_tokens": 3 * 9 + 2 * 8,
    }


def test_every_sequence_of_a_group_is_a_row() -> None:
    harness = Harness(policy=StaticBatch)
    harness.submit(4, max_tokens=6, n=3)
    harness.submit(4, max_tokens=2)
    harness.run()
    assert totals(harness)["rows"] == 3 * 6 + 2
    assert totals(harness)["padded_rows"] == 4 * 6


def test_the_batch_that_runs_is_booked_when_it_is_over() -> None:
    harness = Harness(policy=StaticBatch)
    harness.submit(4, max_tokens=6)
    harness.step()
    assert totals(harness)["batches"] == 0
    harness.run()
    assert totals(harness)["batches"] == 1


def test_a_batch_of_which_everybody_leaves_makes_room_for_the_next() -> None:
    harness = Harness(policy=partial(StaticBatch, size=2))
    leaving = [harness.submit(4, max_tokens=400) for _ in range(2)]
    waiting = harness.submit(4, max_tokens=3)
    for _ in range(3):
        harness.step()
    for request in leaving:
        harness.abort(request)
    harness.run()
    assert len(harness.tokens(waiting)) == 3


@pytest.mark.parametrize("depth", [0, 1])
def test_who_gives_way_comes_back_into_its_batch_before_anybody_else(depth: int) -> None:
    visits = [Visit(prompt=20, max_tokens=30)] * 3 + [Visit(prompt=4, max_tokens=2)] * 4
    run = play(partial(StaticBatch, size=3), visits, blocks=7, depth=depth)
    assert run.harness.scheduler.counters.preemptions > 0
    assert batches(run.harness) == [[1, 2, 3], [4, 5, 6], [7]]


def test_a_batch_that_the_pool_cannot_hold_is_as_many_as_fit() -> None:
    """The third does not fit; when the first has ended it would, and waits for the second."""
    visits = [Visit(prompt=40, max_tokens=m) for m in (2, 20, 2)]
    harness = play(partial(StaticBatch, size=3), visits, blocks=8, budget=128).harness
    assert batches(harness) == [[1, 2], [3]]


def test_the_guard_and_swaps_leave_it_running() -> None:
    harness = Harness(policy=partial(StaticBatch, size=2), guard=NO_CPU_LIMIT, rows=4)
    requests = [harness.submit(4, max_tokens=12) for _ in range(9)]
    for number in range(12):
        harness.step()
        old = harness.scheduler.guard.policy
        new = FCFS if isinstance(old, StaticBatch) else partial(StaticBatch, size=2)
        if number % 3 == 0:
            harness.mail.append(Reconfigure(new(services=services())))
    harness.run()
    assert all(len(harness.tokens(request)) == 12 for request in requests)
    assert harness.scheduler.guard.saves.total() == 0


def test_who_runs_at_a_swap_is_the_batch() -> None:
    harness = Harness(rows=8)
    running = [harness.submit(4, max_tokens=10) for _ in range(2)]
    harness.step()
    harness.policy = StaticBatch(services=services())
    harness.mail.append(Reconfigure(harness.policy))
    late = harness.submit(4, max_tokens=3)
    harness.run()
    assert batches(harness) == [running, [late]]
    assert totals(harness)["padded_rows"] == 2 * 10 + 3


def test_totals_survive_swaps_to_another_policy_and_back() -> None:
    harness = Harness(policy=StaticBatch)
    for policy, tokens in ((FCFS, 5), (StaticBatch, 100), (StaticBatch, 7), (FCFS, 9)):
        harness.submit(4, max_tokens=tokens)
        harness.run()
        last, harness.policy = harness.policy, policy(services=services())
        harness.mail.append(Reconfigure(harness.policy))
    assert last.export()["static_batch"]["batches"] == 3
    assert last.export()["static_batch"]["rows"] == 5 + 7 + 9


def test_a_size_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="size must be at least 1, got 0"):
        StaticBatch(services=services(), size=0)
