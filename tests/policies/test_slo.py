"""slo: meets every deadline that could be met, says so of those that cannot, and does not domino.

All with the guard off: these are the policy's own bounds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.simulated import TimedHarness, simulated

from engine.cost import LinearCost, StepShape
from engine.inbox import Reconfigure
from engine.outputs import FailureKind, FinishReason
from policies.base import Services
from policies.fcfs import FCFS
from policies.slo import SLO


@dataclass(frozen=True)
class Job:
    """A prompt of `tokens` tokens that arrives at `at` and whose first token is due at `due`."""

    at: int
    tokens: int
    due: int


def run(harness: TimedHarness, jobs: Sequence[Job], **fields) -> list[int]:
    """Let the jobs arrive when they do; returns their requests, in the order of `jobs`."""
    requests: dict[Job, list[int]] = {}
    coming = sorted(jobs, key=lambda job: job.at)
    while coming or harness.scheduler.live or harness.mail:
        now = harness.clock.now()
        while coming and coming[0].at <= now + 1e-9:
            job = coming.pop(0)
            number = harness.submit(
                job.tokens, max_tokens=1, arrival=float(job.at), ttft_deadline=job.due, **fields
            )
            requests.setdefault(job, []).append(number)
        if not harness.engine.step(_mail(harness)) and coming:
            harness.clock.advance(max(0.0, coming[0].at - harness.clock.now()))
        harness.scheduler.check()
    return [requests[job].pop(0) for job in jobs]


def _mail(harness: TimedHarness):
    mail, harness.mail = harness.mail, []
    return mail


def first_token(harness: TimedHarness, request: int) -> float:
    """When it came; never, if it was refused."""
    outputs = [output for output in harness.outputs[request, 0] if output.tokens]
    return outputs[0].at if outputs else math.inf


def missed(harness: TimedHarness, jobs: Sequence[Job], requests: Sequence[int]) -> list[Job]:
    return [
        job
        for job, request in zip(jobs, requests, strict=True)
        if first_token(harness, request) > job.due + 1e-6
    ]


# ---------------------------------------------------------------- what brute force can do


@cache
def token_by_token(jobs: tuple[Job, ...], now: int) -> bool:
    """Whether some order of single tokens, a second each, meets all deadlines."""
    left = tuple(job for job in jobs if job.tokens)
    if not left:
        return True
    if any(now + job.tokens > job.due for job in left):
        return False
    ready = [job for job in left if job.at <= now]
    if not ready:
        return token_by_token(left, min(job.at for job in left))
    for job in ready:
        others = list(left)
        others.remove(job)
        if token_by_token((*others, Job(job.at, job.tokens - 1, job.due)), now + 1):
            return True
    return False


UNIT = LinearCost(prompt_token=1.0, decode=1.0)


@settings(max_examples=150)
@given(
    st.lists(
        st.builds(
            lambda at, tokens, slack: Job(at, tokens, at + tokens + slack),
            st.integers(0, 6),
            st.integers(1, 4),
            st.integers(0, 6),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_it_misses_nothing_where_brute_force_token_by_token_misses_nothing(jobs) -> None:
    harness = simulated(UNIT, policy=SLO, budget=1, rows=8)
    late = missed(harness, jobs, run(harness, jobs))
    assert not late or not token_by_token(tuple(jobs), 0)
    assert len(late) <= harness.policy.counts["relegated"]


def one_by_one(jobs: Sequence[Job], cost: LinearCost, budget: int) -> bool:
    """Whether some order of whole jobs, in steps of their own, meets all deadlines."""

    def meets(order: Sequence[Job]) -> bool:
        now = 0.0
        for job in order:
            steps = -(-job.tokens // budget)
            now += steps * cost.base + job.tokens * cost.prompt_token
            if now > job.due + 1e-9:
                return False
        return True

    return any(meets(order) for order in itertools.permutations(jobs))


@settings(max_examples=150)
@given(
    jobs=st.lists(
        st.builds(Job, st.just(0), st.integers(2, 30), st.integers(5, 120)), min_size=1, max_size=5
    ),
    base=st.sampled_from([0.0, 3.0]),
    budget=st.sampled_from([8, 64]),
)
def test_it_misses_nothing_of_jobs_that_are_all_there_where_brute_force_misses_nothing(
    jobs, base, budget
) -> None:
    cost = LinearCost(base=base, prompt_token=1.0, decode=1.0)
    harness = simulated(cost, policy=SLO, budget=budget, rows=8)
    late = missed(harness, jobs, run(harness, jobs))
    assert not late or not one_by_one(jobs, cost, budget)


def test_who_is_due_first_is_computed_first_though_a_later_one_runs() -> None:
    harness = simulated(UNIT, policy=SLO, budget=1, rows=8)
    jobs = [Job(0, 8, 40), Job(2, 3, 6)]
    long, short = run(harness, jobs)
    assert first_token(harness, short) == 5
    assert first_token(harness, long) == 11


def test_a_step_ends_in_time_for_the_first_token_of_a_prompt_that_it_completes() -> None:
    harness = simulated(UNIT, policy=SLO, budget=64, rows=8)
    jobs = [Job(0, 10, 12), Job(0, 30, 90)]
    soon, later = run(harness, jobs)
    assert [row.count for row in harness.backend.batches[0].rows] == [10, 2]
    assert first_token(harness, soon) == 12
    assert first_token(harness, later) == 40


# ---------------------------------------------------------------- overload


def overload(policy, **setup) -> tuple[TimedHarness, list[Job], list[int]]:
    """Half as much work again as there is time for."""
    harness = simulated(UNIT, policy=policy, budget=1, rows=32, **setup)
    jobs = [Job(2 * i, 3, 2 * i + 9) for i in range(60)]
    return harness, jobs, run(harness, jobs)


def test_overload_does_not_domino_and_who_is_late_is_counted() -> None:
    harness, jobs, requests = overload(SLO)
    late = missed(harness, jobs, requests)
    assert len(late) <= 22  # a third of the work has to be
    assert harness.policy.counts == {"relegated": len(late), "rejected": 0, "missed": 0}
    in_order, jobs, requests = overload(FCFS)
    assert len(missed(in_order, jobs, requests)) >= 45


def test_a_relegated_request_is_served_when_nobody_is_in_a_hurry() -> None:
    harness = simulated(UNIT, policy=SLO, budget=1, rows=8)
    jobs = [Job(0, 5, 3), Job(0, 4, 6), Job(3, 2, 8)]
    requests = run(harness, jobs)
    assert [first_token(harness, request) for request in requests] == [11, 4, 6]
    assert harness.policy.counts["relegated"] == 1


def test_a_running_prompt_that_cannot_be_on_time_any_more_makes_way_for_those_that_can() -> None:
    harness = simulated(UNIT, policy=SLO, budget=1, rows=8)
    jobs = [Job(0, 6, 8), Job(1, 4, 7), Job(1, 2, 20)]
    slow, urgent, patient = run(harness, jobs)
    assert (first_token(harness, urgent), first_token(harness, patient)) == (5, 7)
    assert first_token(harness, slow) == 12
    assert harness.policy.counts == {"relegated": 1, "rejected": 0, "missed": 0}


def test_who_cannot_be_on_time_is_rejected_at_once_though_there_is_no_room() -> None:
    policy = partial(SLO, late="reject", retry_after_s=4.0)
    harness = simulated(UNIT, policy=policy, budget=4, rows=1)
    running = harness.submit(4, max_tokens=50)
    harness.step()
    hopeless = harness.submit(8, ttft_deadline=harness.clock.now() + 5)
    waiting = harness.submit(8, ttft_deadline=harness.clock.now() + 40)
    harness.step()
    failure = harness.end(hopeless).failure
    assert (failure.kind, failure.retry_after) == (FailureKind.SHED, 4.0)
    assert harness.end(waiting) is None
    while harness.end(waiting) is None:
        harness.step()
    assert harness.end(waiting).reason is FinishReason.REJECTED
    assert harness.clock.now() <= 45
    assert harness.end(running) is None
    assert harness.policy.counts == {"relegated": 0, "rejected": 2, "missed": 0}


# ---------------------------------------------------------------- room


def full_pool(patience: float, **running) -> tuple[TimedHarness, int, int]:
    """A request that fills the rows, and one that arrives in a hurry."""
    harness = simulated(UNIT, policy=partial(SLO, patience=patience), budget=8, rows=2)
    harness.submit(4, max_tokens=60)
    pushed = harness.submit(4, max_tokens=40, **running)
    harness.step()
    urgent = harness.submit(4, max_tokens=1, ttft_deadline=harness.clock.now() + 30)
    return harness, pushed, urgent


def displaced(harness: TimedHarness) -> list[tuple[int, int]]:
    return [entry[1:] for entry in harness.log.entries if entry[0] == "displace"]


def test_a_request_waits_for_room_for_a_part_of_its_slack_and_then_pushes_best_effort_out() -> None:
    harness, pushed, urgent = full_pool(patience=0.5)
    began = harness.clock.now()
    harness.run()
    assert displaced(harness) == [(pushed, urgent)]
    assert began + 10 <= first_token(harness, urgent) <= began + 30
    assert len(harness.tokens(pushed)) == 40


def test_with_all_patience_nobody_is_pushed_out() -> None:
    harness, _, urgent = full_pool(patience=1.0)
    harness.run()
    assert displaced(harness) == []
    assert harness.policy.counts["relegated"] == 1
    assert len(harness.tokens(urgent)) == 1


def test_who_answers_on_time_is_not_pushed_out() -> None:
    harness, pushed, _ = full_pool(patience=0.0, ttft_deadline=1000.0)
    harness.run()
    assert displaced(harness) == []
    assert len(harness.tokens(pushed)) == 40


def test_a_prompt_that_is_due_later_gives_way_if_it_can_start_again_in_time() -> None:
    for due, gives_way in ((400.0, True), (80.0, False)):
        harness = simulated(UNIT, policy=partial(SLO, patience=0.0), budget=4, rows=2)
        harness.submit(4, max_tokens=60)
        harness.step()
        pushed = harness.submit(50, max_tokens=1, ttft_deadline=due)
        for _ in range(3):
            harness.step()
        harness.submit(4, max_tokens=1, ttft_deadline=harness.clock.now() + 20)
        harness.run()
        assert bool(displaced(harness)) == gives_way
        assert len(harness.tokens(pushed)) == 1


TRAFFIC = st.lists(
    st.tuples(
        st.integers(1, 60),  # prompt
        st.sampled_from([0, 16, 32]),  # of which others begin with as much
        st.integers(1, 25),  # max_tokens
        st.integers(0, 3),  # steps to the next arrival
        st.sampled_from([5, 30, 80, 300, math.inf]),  # allowance to the first token
        st.sampled_from([None, None, None, 2, 9]),  # leaves after so many steps
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=60)
@given(
    traffic=TRAFFIC,
    blocks=st.integers(6, 20),
    budget=st.sampled_from([4, 24]),
    rows=st.integers(2, 6),
    depth=st.integers(0, 1),
    patience=st.sampled_from([0.0, 0.5]),
)
def test_no_two_take_turns_and_none_is_late_uncounted(
    traffic, blocks, budget, rows, depth, patience
) -> None:
    harness = simulated(
        UNIT,
        policy=partial(SLO, patience=patience),
        blocks=blocks,
        budget=budget,
        rows=rows,
        depth=depth,
    )
    relegated: set[int] = set()
    leaving: list[tuple[int, int]] = []
    due: dict[int, float] = {}
    steps = itertools.count()

    def tick() -> bool:
        number = next(steps)
        for when, request in leaving:
            if when == number:
                harness.abort(request)
        worked = harness.step()
        relegated.update(harness.policy.export()["relegated"])
        return worked

    number = 0
    for prompt, shared, max_tokens, gap, allowance, leaves in traffic:
        own = [len(due) * 1000 + i for i in range(max(0, prompt - shared))]
        tokens = [9_000_000 + i for i in range(min(shared, prompt))] + own
        at = harness.clock.now() + allowance
        request = harness.submit(tokens, max_tokens, ttft_deadline=at)
        due[request] = at
        if leaves is not None:
            leaving.append((number + leaves, request))
        for _ in range(gap):
            tick()
            number += 1
    for _ in range(3_000):
        if not tick() and not harness.mail and harness.scheduler.live == 0:
            break
    assert harness.scheduler.live == 0
    pairs = set(displaced(harness))
    assert all(a in relegated or b in relegated for a, b in pairs if (b, a) in pairs)
    late = {r for r in due if due[r] < first_token(harness, r) < math.inf}
    counts = harness.policy.counts
    assert len(late - relegated) <= counts["missed"] <= len(late)
    assert counts["relegated"] >= len(relegated)


# ---------------------------------------------------------------- steps


def test_steps_keep_to_the_tightest_tpot_target_of_those_running() -> None:
    cost = LinearCost(base=0.004, prompt_token=0.001, decode=0.0005, kv_read=1e-6)
    harness = simulated(cost, policy=SLO, budget=256, rows=8, blocks=80, model_len=1000)
    readers = [harness.submit(8, max_tokens=50, tpot_target=target) for target in (0.03, 0.02)]
    harness.step()
    harness.submit(500, max_tokens=1, ttft_deadline=100.0)
    chunks = []
    for _ in range(15):
        harness.step()
        batch = harness.backend.batches[-1]
        assert cost.of(StepShape.of(batch.rows)) <= 0.02
        chunks.append(sum(row.count for row in batch.rows if row.request not in readers))
    assert min(chunks) >= 14


def test_prompts_go_on_where_decodes_alone_exceed_the_target() -> None:
    cost = LinearCost(base=0.05, prompt_token=0.001, decode=0.001)
    harness = simulated(cost, policy=SLO, budget=64, rows=8)
    harness.submit(8, max_tokens=200, tpot_target=0.01)
    harness.step()
    late = harness.submit(30, max_tokens=1)
    for _ in range(40):
        harness.step()
    assert len(harness.tokens(late)) == 1


# ---------------------------------------------------------------- the rest


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"late": "drop"}, "late must be relegate or reject"),
        ({"retry_after_s": -1.0}, "retry_after_s must be 0 or more"),
        ({"patience": 1.5}, "patience must be between 0 and 1"),
    ],
)
def test_parameters_are_checked(params, message) -> None:
    with pytest.raises(ValueError, match=message):
        SLO(services=Services(UNIT, None), **params)


def test_it_says_why_a_request_waits() -> None:
    harness = simulated(UNIT, policy=SLO, budget=8, rows=1)
    harness.submit(4, max_tokens=9)
    harness.step()
    hurried = harness.submit(8, ttft_deadline=100.0)
    patient, hopeless = harness.submit(4), harness.submit(8, ttft_deadline=1.0)
    harness.step()
    said = [
        harness.policy.explain(harness.scheduler.request(request).view, harness.view())
        for request in (hurried, patient, hopeless)
    ]
    assert said[0].startswith("its first token is due in 95.00 s and takes 10.00 s")
    assert said[1].startswith("it has no deadline")
    assert "it was relegated" in said[2]


def test_a_prompt_that_ended_while_the_policy_was_not_told_delays_nobody() -> None:
    harness = simulated(UNIT, policy=SLO, budget=1, rows=8)
    gone = harness.submit(20, max_tokens=1, ttft_deadline=22.0)
    harness.step()
    harness.policy.observe = lambda events: ()  # as when the guard has muted it
    harness.abort(gone)
    harness.step()
    del harness.policy.observe
    harness.submit(5, max_tokens=1, ttft_deadline=23.0)
    harness.run()
    assert harness.policy.counts == {"relegated": 0, "rejected": 0, "missed": 0}


def test_who_was_relegated_stays_so_when_another_policy_was_in_charge_meanwhile() -> None:
    harness = simulated(UNIT, policy=SLO, budget=8, rows=1)
    harness.submit(4, max_tokens=9)
    late = harness.submit(8, ttft_deadline=1.0)
    harness.step()
    for policy in (FCFS, SLO):
        harness.mail.append(Reconfigure(policy(services=Services(UNIT, None))))
        harness.step()
    again = harness.scheduler.guard.policy
    assert again.export() == {
        "relegated": [late],
        "counts": {"relegated": 1, "rejected": 0, "missed": 0},
    }
    harness.run()
