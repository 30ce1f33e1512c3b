"""What a policy is told and when, and what each of its methods changes."""

from dataclasses import replace

import pytest
from support.engines import NO_CPU_LIMIT, Harness, services

from engine.inbox import Inspect, Reconfigure
from engine.limits import ClassLimits
from engine.outputs import FailureKind, FinishReason, Handover
from policies.base import (
    ACCEPT,
    OWN,
    SERVICE,
    Admitted,
    Arrived,
    Cancelled,
    Finished,
    Policy,
    Preempted,
    Reject,
    Service,
    Shed,
    StepDone,
    Tokens,
)
from policies.fcfs import FCFS


class Listening(Policy):
    """Remembers what it was told, call by call, and what the world looked like then."""

    def __init__(self, *, services):
        super().__init__(services=services)
        self.calls: list[list] = []

    def observe(self, events):
        self.calls.append(list(events))
        return ()

    def share(self, step):
        self.calls.append(["share"])
        return super().share(step)


def kinds(calls: list[list]) -> list[str]:
    return [" ".join(e if isinstance(e, str) else type(e).__name__ for e in c) for c in calls]


def test_events_come_before_the_share_at_once_after_an_admission_and_after_the_step() -> None:
    harness = Harness(policy=Listening)
    harness.submit(4, max_tokens=2)
    harness.run()
    assert kinds(harness.policy.calls) == [
        "Arrived",
        "share",
        "Admitted",
        "Tokens StepDone",
        "share",
        "Tokens Finished StepDone",
    ]


def events_of(harness: Harness, kind: type) -> list:
    return [event for call in harness.policy.calls for event in call if isinstance(event, kind)]


def test_admission_tells_new_tokens_from_those_computed_again() -> None:
    harness = Harness(policy=Listening, blocks=6, rows=4, prefix_cache=False)
    for _ in range(3):
        harness.submit(20, max_tokens=30)
    harness.run()
    preempted = events_of(harness, Preempted)
    assert preempted
    again = [event for event in events_of(harness, Admitted) if event.recomputed]
    assert sorted(event.recomputed for event in again) == sorted(e.lost for e in preempted)
    assert sum(event.first_computed for event in events_of(harness, Admitted)) >= 60
    tokens = sum(event.count for event in events_of(harness, Tokens))
    assert tokens == harness.scheduler.counters.generated_tokens == 90


def test_ends_are_told_apart() -> None:
    harness = Harness(policy=Listening)
    done, left = harness.submit(4, max_tokens=2), harness.submit(4, max_tokens=90)
    harness.step()
    harness.abort(left)
    harness.run()
    assert [event.request.id for event in events_of(harness, Arrived)] == [done, left]
    assert [event.request.id for event in events_of(harness, Finished)] == [done]
    assert [event.request.id for event in events_of(harness, Cancelled)] == [left]
    assert all(event.actual >= 0 for event in events_of(harness, StepDone))


def test_views_are_live_and_read_only() -> None:
    harness = Harness()
    request = harness.submit(20, max_tokens=9, tenant="t", priority=3)
    harness.step()
    view = harness.scheduler.request(request).view
    assert (view.tenant, view.priority, view.prompt, view.output) == ("t", 3, 20, 1)
    harness.step()
    assert (view.output, view.blocks, view.max_output) == (2, 2, 9)
    with pytest.raises(AttributeError):
        view.priority = 0


class ByNumber(Policy):
    """Reorders who waits by numbers that change from outside."""

    def __init__(self, *, services):
        super().__init__(services=services)
        self.numbers: dict[int, int] = {}
        self.changed: list[int] = []

    def key(self, request):
        return (self.numbers.get(request.id, request.id),)

    def observe(self, events):
        changed, self.changed = self.changed, []
        return changed


def test_requests_that_observe_names_are_queued_anew() -> None:
    harness = Harness(policy=ByNumber, rows=1)
    requests = [harness.submit(4, max_tokens=2) for _ in range(4)]
    harness.step()
    harness.policy.numbers[4] = 0
    harness.policy.changed = [4]
    harness.run()
    starts = sorted(requests, key=lambda r: harness.outputs[r, 0][0].at)
    assert starts == [1, 4, 2, 3]


class Backfills(Policy):
    def backfill(self, step):
        return 1


@pytest.mark.parametrize(("policy", "passes"), [(FCFS, 0), (Backfills, 1)])
def test_backfill_lets_so_many_pass_a_head_that_does_not_fit(policy, passes: int) -> None:
    harness = Harness(policy=policy, blocks=8, rows=8)
    harness.submit(60, max_tokens=30)
    harness.step()
    big = harness.submit(100, max_tokens=2)
    small = [harness.submit(4, max_tokens=2) for _ in range(3)]
    harness.step()
    assert sum(bool(harness.outputs[request, 0]) for request in small) == passes
    harness.run()
    assert len(harness.tokens(big)) == 2


class Priorities(Policy):
    def key(self, request):
        return (request.priority, request.ticket)

    def victim(self, request, step):
        return (-request.priority, -request.ticket)

    def displaces(self, newcomer, running):
        return newcomer.priority < running.priority


@pytest.mark.parametrize("depth", [0, 1])
def test_a_better_request_pushes_worse_ones_out_and_they_still_end_right(depth: int) -> None:
    harness = Harness(policy=Priorities, rows=2, depth=depth)
    low = [harness.submit(10, max_tokens=40, priority=5) for _ in range(2)]
    for _ in range(4):
        harness.step()
    urgent = harness.submit(10, max_tokens=3, priority=0)
    harness.run()
    assert harness.outputs[urgent, 0][-1].at < harness.outputs[low[0], 0][-1].at
    assert [entry for entry in harness.log.entries if entry[0] == "displace"] == [
        ("displace", low[1], urgent)
    ]
    for request in low:
        assert harness.tokens(request) == [request * 1000 + i % 10 for i in range(40)]


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("rows", [2, 8])
def test_a_better_request_gets_a_token_of_a_step_that_decodes_fill(rows: int, depth: int) -> None:
    """One of them makes way, although rows and blocks may be left; the lowest ticket never does."""
    harness = Harness(policy=Priorities, rows=rows, budget=2, depth=depth)
    low = [harness.submit(4, max_tokens=60, priority=5) for _ in range(2)]
    for _ in range(8):
        harness.step()
    urgent = harness.submit(4, max_tokens=3, priority=0)
    harness.run()
    displaced = [entry for entry in harness.log.entries if entry[0] == "displace"]
    assert displaced == [("displace", low[1], urgent)]
    assert harness.outputs[urgent, 0][-1].at < harness.clock.now() / 2
    for request in low:
        assert harness.tokens(request) == [request * 1000 + i % 4 for i in range(60)]


def test_a_step_that_decodes_fill_has_one_displacement_at_most_and_none_among_equals() -> None:
    harness = Harness(policy=Priorities, rows=8, budget=4)
    for _ in range(4):
        harness.submit(4, max_tokens=60, priority=5)
    for _ in range(8):
        harness.step()
    for priority in (0, 0, 0, 5):
        harness.submit(20, max_tokens=3, priority=priority)
    harness.run()
    steps = [0]
    for entry in harness.log.entries:
        if entry[0] == "step":
            steps.append(0)
        steps[-1] += entry[0] == "displace"
    assert max(steps) == 1
    newcomers = {entry[2] for entry in harness.log.entries if entry[0] == "displace"}
    assert newcomers <= {5, 6, 7}


def test_equal_priority_displaces_nobody() -> None:
    harness = Harness(policy=Priorities, rows=1)
    for _ in range(4):
        harness.submit(4, max_tokens=5, priority=1)
    harness.run()
    assert harness.scheduler.counters.preemptions == 0


def test_the_lowest_ticket_gives_way_only_if_it_alone_fills_the_rows() -> None:
    harness = Harness(policy=Priorities, rows=1)
    low = harness.submit(4, max_tokens=30, priority=5)
    harness.step()
    urgent = harness.submit(4, max_tokens=2, priority=0)
    harness.run()
    assert harness.outputs[urgent, 0][-1].at < harness.outputs[low, 0][-1].at
    assert len(harness.tokens(low)) == 30


class Pausing(Policy):
    """Decodes may wait in every step but each third."""

    def may_wait(self, request, step):
        return step.index % 3 != 0


def test_decodes_skip_the_steps_in_which_they_may_wait() -> None:
    harness = Harness(policy=Pausing, budget=4)
    short = harness.submit(2, max_tokens=6)
    harness.submit(60, max_tokens=1)
    harness.run()
    served = [
        batch.step
        for batch in harness.backend.batches[1:]
        if any(row.request == short for row in batch.rows)
    ]
    assert all(step % 3 == 0 for step in served[:4])


class Chunking(Policy):
    """Chunks of 6 tokens where a prompt has at least 6 to go, of 2 otherwise; 10 a step at most."""

    def share(self, step):
        self.left = 10
        self.asked = []
        return super().share(step)

    def chunk(self, request, start, most, step):
        self.asked.append((request.id, start, most))
        count = min(self.left, 6 if most >= 6 else 2)
        self.left -= count
        return count


def test_the_policy_sizes_each_chunk_and_ends_the_prompt_work_of_a_step_with_0() -> None:
    harness = Harness(policy=Chunking, budget=32)
    requests = [harness.submit(15, max_tokens=1) for _ in range(3)]
    harness.step()
    assert harness.policy.asked == [(1, 0, 15), (2, 0, 15), (3, 0, 15)]
    assert [row.count for row in harness.backend.batches[0].rows] == [6, 4]
    harness.step()
    assert harness.policy.asked == [(1, 6, 9), (2, 4, 11), (3, 0, 15)]
    harness.run()
    assert all(len(harness.tokens(request)) == 1 for request in requests)


class NoChunks(Policy):
    def chunk(self, request, start, most, step):
        return 0


def test_prompts_go_on_although_the_policy_gives_them_nothing() -> None:
    harness = Harness(policy=NoChunks, budget=8)
    alone = harness.submit(20, max_tokens=40)
    for _ in range(3):
        harness.step()
    assert len(harness.tokens(alone)) == 1
    late = harness.submit(20, max_tokens=2)
    harness.run()
    assert len(harness.tokens(late)) == 2
    assert harness.outputs[late, 0][-1].at < harness.outputs[alone, 0][-1].at


class Doorman(Policy):
    """Refuses long prompts once somebody runs."""

    def admit(self, request, step):
        return Reject("no room") if step.decoding and request.prompt > 10 else ACCEPT


def test_a_head_is_judged_although_it_does_not_fit() -> None:
    harness = Harness(policy=Doorman, rows=1)
    running, refused = harness.submit(4, max_tokens=9), harness.submit(20)
    harness.step()
    harness.step()
    assert harness.end(running) is None
    assert harness.end(refused).failure.message == "no room"


def test_a_step_counts_the_decodes_of_a_group_one_by_one() -> None:
    harness = Harness(policy=Listening)
    seen = []
    harness.policy.share = lambda step: (
        seen.append(step.decoding) or Policy.share(harness.policy, step)
    )
    harness.submit(4, max_tokens=4, n=3)
    harness.run()
    assert max(seen) == 3


# ---------------------------------------------------------------- classes and deadlines


def test_a_class_at_its_limit_waits_and_others_pass() -> None:
    classes = {"batch": ClassLimits(max_running=1)}
    harness = Harness(classes=classes)
    batch = [harness.submit(4, max_tokens=6, slo_class="batch") for _ in range(3)]
    chat = harness.submit(4, max_tokens=2)
    harness.step()
    assert harness.outputs[chat, 0]
    assert [bool(harness.outputs[request, 0]) for request in batch] == [True, False, False]
    harness.run()
    ends = [harness.outputs[request, 0][-1].at for request in batch]
    assert ends == sorted(ends)


def test_a_class_holds_no_more_than_its_share_of_the_blocks() -> None:
    classes = {"batch": ClassLimits(max_blocks_fraction=0.5)}
    harness = Harness(blocks=8, classes=classes, budget=128)
    first, second = (harness.submit(30, max_tokens=2, slo_class="batch") for _ in range(2))
    third = harness.submit(30, max_tokens=2, slo_class="batch")
    chat = harness.submit(30, max_tokens=2)
    harness.step()
    started = [bool(harness.outputs[request, 0]) for request in (first, second, third, chat)]
    assert started == [True, True, False, True]
    harness.run()
    assert len(harness.tokens(third)) == 2


def test_what_its_class_can_never_hold_is_refused_at_the_door() -> None:
    harness = Harness(blocks=8, classes={"batch": ClassLimits(max_blocks_fraction=0.5)})
    request = harness.submit(70, max_tokens=2, slo_class="batch")
    harness.run()
    assert harness.end(request).failure.kind is FailureKind.NEVER_FITS


def test_a_full_queue_of_a_class_refuses_the_next() -> None:
    harness = Harness(rows=1, classes={"batch": ClassLimits(max_waiting=2)})
    requests = [harness.submit(4, max_tokens=3, slo_class="batch") for _ in range(5)]
    harness.run()
    reasons = [harness.end(request).reason for request in requests]
    assert reasons.count(FinishReason.REJECTED) == 3
    assert harness.end(requests[4]).failure.kind is FailureKind.SHED


def test_the_policy_is_told_of_a_request_that_a_full_queue_refuses() -> None:
    harness = Harness(policy=Listening, rows=1, classes={"batch": ClassLimits(max_waiting=1)})
    requests = [harness.submit(4, max_tokens=3, slo_class="batch") for _ in range(2)]
    harness.run()
    assert [event.request.id for event in events_of(harness, Shed)] == requests[1:]


def test_who_waits_past_its_deadline_is_expired_and_who_started_is_not() -> None:
    harness = Harness(rows=1)
    started = harness.submit(4, max_tokens=40, queue_deadline=0.010)
    waiting = harness.submit(4, max_tokens=4, queue_deadline=0.010)
    patient = harness.submit(4, max_tokens=4)
    harness.run()
    assert harness.end(started).reason is FinishReason.LENGTH
    assert harness.end(waiting).failure.kind is FailureKind.DEADLINE
    assert harness.outputs[waiting, 0][0].at == pytest.approx(0.010, abs=0.0011)
    assert len(harness.tokens(patient)) == 4
    assert harness.scheduler.counters.expired == 1


# ---------------------------------------------------------------- swap and inspection


@pytest.mark.parametrize("depth", [0, 1])
def test_policies_can_be_swapped_every_few_steps_without_anybody_noticing(depth: int) -> None:
    harness = Harness(depth=depth, blocks=12, rows=4)
    requests = [harness.submit(20, max_tokens=20) for _ in range(10)]
    policies = [Priorities, FCFS, Listening, ByNumber]
    for number in range(200):
        if number % 5 == 0:
            policy = policies[number // 5 % 4](services=services())
            harness.mail.append(Reconfigure(policy))
        harness.step()
    harness.run()
    for request in requests:
        assert harness.tokens(request) == [request * 1000 + i for i in range(20)]


class Accounts(Policy):
    """Hands its books over."""

    def __init__(self, *, services):
        super().__init__(services=services)
        self.books: dict = {}
        self.live: list[int] = []

    def export(self):
        return {"books": 7}

    def restore(self, state, live, step):
        self.books, self.live = dict(state), [view.id for view in live]


def test_state_is_handed_over_with_everybody_who_is_live() -> None:
    harness = Harness(policy=Accounts, rows=1)
    requests = [harness.submit(4, max_tokens=9) for _ in range(2)]
    harness.step()
    new = Accounts(services=services())
    harness.mail.append(Reconfigure(new))
    harness.step()
    assert new.books["books"] == 7
    assert new.live == requests
    assert harness.scheduler.guard.policy is new


def test_what_a_policy_exported_waits_for_its_like_and_the_engine_tells_who_got_what() -> None:
    harness = Harness(policy=Accounts, budget=128)
    harness.submit(20, max_tokens=4, n=3, tenant="a", weight=2.0)
    harness.submit(list(range(40)), max_tokens=5, tenant="b")
    harness.run()
    harness.submit(list(range(40)), max_tokens=1, tenant="b")
    harness.mail.append(Reconfigure(FCFS(services=services())))
    harness.run()
    harness.mail.append(Reconfigure(Accounts(services=services())))
    harness.step()
    state = harness.scheduler.guard.policy.books
    assert state == {
        OWN: {"books": 7},
        SERVICE: {"a": Service(20 + 2, 12, 2.0), "b": Service(40 + 8, 6, 1.0)},
    }


def test_a_group_is_charged_for_its_prompt_once_and_a_preempted_request_for_nothing_again() -> None:
    harness = Harness(policy=Listening, blocks=8, rows=4)
    group = harness.submit(20, max_tokens=30, n=2)
    single = harness.submit(20, max_tokens=30)
    harness.run()
    told = [(event.request.id, event.first_computed) for event in events_of(harness, Admitted)]
    assert harness.scheduler.counters.preemptions > 0
    assert told[:2] == [(group, 21), (single, 20)]
    assert {count for _, count in told[2:]} == {0}


def test_blocks_that_only_siblings_share_are_private() -> None:
    harness = Harness(budget=128)
    prefix = list(range(40))
    group = harness.submit(prefix, max_tokens=20, n=2)
    harness.step()
    harness.step()
    view = harness.scheduler.request(group).view
    assert (view.blocks, view.private_blocks) == (6, 4)
    harness.submit([*prefix, 1], max_tokens=20)
    harness.step()
    assert view.private_blocks == 2


class BrokenRestore(Policy):
    def restore(self, state, live, step):
        raise RuntimeError("planted")


def test_a_policy_that_cannot_take_over_leaves_fcfs_in_charge() -> None:
    harness = Harness(guard=replace(NO_CPU_LIMIT, fallback_steps=1000))
    request = harness.submit(4, max_tokens=9)
    harness.step()
    harness.mail.append(Reconfigure(BrokenRestore(services=services())))
    harness.run()
    assert harness.scheduler.guard.fallen_back
    assert len(harness.tokens(request)) == 9


def test_a_look_inside_shows_the_oldest_requests_and_their_blocks() -> None:
    harness = Harness(rows=1)
    running, waiting = harness.submit(20, max_tokens=9), harness.submit(4)
    harness.step()
    looks = []
    harness.mail.append(Inspect(looks.append, limit=5))
    harness.step()
    (look,) = looks
    assert (look.policy, look.fallen_back) == ("FCFS", False)
    assert [snapshot.id for snapshot in look.requests] == [running, waiting]
    assert [snapshot.phase for snapshot in look.requests] == ["decode", "waiting"]
    assert len(look.requests[0].blocks[0]) == 2
    assert look.stats.running == 1


# ---------------------------------------------------------------- other limits in force


def relimit(harness: Harness, **classes: ClassLimits) -> Handover:
    """Put other class limits in force; takes a step."""
    told: list[Handover] = []
    harness.mail.append(Reconfigure(classes=classes, reply=told.append))
    harness.step()
    return told[0]


def test_a_limit_that_is_raised_lets_more_in_and_one_that_is_lowered_ends_nobody() -> None:
    harness = Harness(classes={"batch": ClassLimits(max_running=1)})
    requests = [harness.submit(4, max_tokens=30, slo_class="batch") for _ in range(4)]
    harness.step()
    running = harness.scheduler.roster.running
    assert len(running) == 1
    assert relimit(harness, batch=ClassLimits(max_running=3)).step == 1
    assert len(running) == 3
    relimit(harness, batch=ClassLimits(max_running=1))
    assert len(running) == 3
    harness.abort(requests[0])
    harness.abort(requests[1])
    harness.step()
    assert list(running) == [requests[2]]
    relimit(harness)
    assert list(running) == requests[2:]
    harness.run()


def test_who_waits_for_more_blocks_than_its_class_may_hold_now_is_served_alone() -> None:
    """It was let in at the door under another limit; nobody may wait for ever."""
    harness = Harness(blocks=16, classes={"batch": ClassLimits(max_running=1)})
    requests = [harness.submit(100, max_tokens=20, slo_class="batch") for _ in range(2)]
    harness.step()
    relimit(harness, batch=ClassLimits(max_blocks_fraction=0.25))
    harness.run()
    assert [len(harness.tokens(request)) for request in requests] == [20, 20]
    refused = harness.submit(100, max_tokens=20, slo_class="batch")
    harness.run()
    assert harness.end(refused).failure.kind is FailureKind.NEVER_FITS


def test_a_policy_that_cannot_take_over_is_told_of_in_the_reply() -> None:
    harness = Harness()
    told: list[Handover] = []
    for policy in (BrokenRestore, FCFS):
        harness.mail.append(Reconfigure(policy(services=services()), reply=told.append))
        harness.step()
    assert [handover.fault for handover in told] == ["restore raised RuntimeError", ""]
