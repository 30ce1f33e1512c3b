"""Preemption by offload: nothing the client can see changes, and no host block is lost.

Tokens, logprobs and ends are compared to those in a pool in which nobody is preempted, as in
test_preemption, whose requests and helpers these are.
"""

from __future__ import annotations

import random
from itertools import product

import pytest
from support.beams import branching
from support.engines import Harness, services
from support.hashed import HashedBackend
from support.odd_policies import ODD_POLICIES, LastComeFirst, Stingy
from support.scripts import hashed
from test_preemption import (
    ALWAYS_DISPLACING,
    BIG,
    SMALL,
    Ask,
    Progress,
    asks,
    leave_at_random,
    one_thread,
    prompt_of,
    said,
    serve,
    undisturbed,
)

from engine.allocation import RESERVE
from engine.backends.scripted import ScriptedBackend, raising
from engine.batch import BLOCK
from engine.beam_search import BeamSearch
from engine.controls import RowControls
from engine.cost import LinearCost
from engine.errors import RowFault
from engine.inbox import Reconfigure
from engine.outputs import Failure, FailureKind, Finish, FinishReason
from engine.relief import Offload, Relief, ReliefSettings
from policies.base import Admitted, Policy, Preempted
from policies.fcfs import FCFS

ROOMY = 100
"""More host blocks than the requests of a test can fill."""

SHUT = Failure(FailureKind.SHUTTING_DOWN, "over")

__all__ = ["one_thread"]

SOON = [(Stingy, 6, 1), (LastComeFirst, ROOMY, 0)]
"""What runs in `make test`."""


def engine(host_blocks: int, blocks: int = SMALL, *, hooks=None, nan_rows=None, **options):
    """An engine like that of test_preemption, with host memory."""
    backend = HashedBackend(
        blocks,
        host_blocks=host_blocks,
        hooks=hooks,
        nan_rows=nan_rows,
        move_seconds=options.pop("move_seconds", 0.0),
    )
    options = {"budget": 32, "rows": 8} | options
    return Harness(blocks=blocks, backend=backend, **options)


def assert_empty(harness: Harness) -> None:
    """E12, for both memories."""
    host = harness.scheduler.roster.host
    assert harness.scheduler.pool.free == harness.pool.total
    assert host.free == host.total


def offloaded(harness: Harness) -> list[int]:
    """Requests that wait with their KV in host memory."""
    requests = harness.scheduler.roster.requests.values()
    return [r.id for r in requests if any(s.host for s in r.sequences)]


def until_offloaded(harness: Harness) -> int:
    """Step until somebody's KV is in host memory; whose."""
    for _ in range(500):
        harness.step()
        if found := offloaded(harness):
            return found[0]
    raise AssertionError("nobody was offloaded")


def three(harness: Harness, n: int = 1, **fields) -> list[int]:
    """Three requests of which two fit."""
    rng = random.Random(5)
    return [harness.submit(prompt_of(rng, 40), max_tokens=48, n=n, **fields) for _ in range(3)]


# ── nothing the client can see changes ────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("policy", "host_blocks", "depth"),
    [
        pytest.param(*case, marks=[] if case in SOON else [pytest.mark.slow])
        for case in product(ODD_POLICIES, (6, ROOMY), (0, 1))
    ],
)
def test_30_requests_say_in_12_blocks_what_they_say_in_600(policy, host_blocks, depth) -> None:
    harness = engine(host_blocks, policy=policy, depth=depth)
    found = serve(harness, asks())
    for key, expected in undisturbed().items():
        rejected = found[key][2].reason is FinishReason.REJECTED
        assert rejected or found[key] == expected, key
    assert_empty(harness)


@pytest.mark.parametrize("depth", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_with_enough_host_memory_nothing_is_computed_again(depth: int) -> None:
    lost = {}
    for host_blocks in (0, 6, ROOMY):
        backend = ScriptedBackend(SMALL, script=hashed, host_blocks=host_blocks)
        harness = Harness(
            blocks=SMALL, backend=backend, budget=32, rows=8, policy=Stingy, depth=depth
        )
        serve(harness, asks())
        counters = harness.stats.counters
        assert counters.preemptions > 0
        assert (counters.restored_blocks > 20) == (host_blocks > 0)
        assert counters.restored_blocks <= counters.offloaded_blocks
        lost[host_blocks] = counters.recomputed_tokens
    assert lost[ROOMY] == 0 < lost[6] < lost[0]


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("host_blocks", [pytest.param(0, marks=pytest.mark.slow), 12, ROOMY])
@pytest.mark.parametrize("prefix_cache", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_groups_of_four_say_the_same_alone_and_beside_others(
    host_blocks: int, depth: int, prefix_cache: bool
) -> None:
    rng = random.Random(7)
    wanted = [
        Ask(prompt_of(rng, 37), 20, RowControls(seed=s, logprobs=1), fields={"n": 4})
        for s in range(3)
    ]
    expected = serve(engine(0, BIG, budget=512, rows=32), wanted)
    harness = engine(host_blocks, 17, depth=depth, policy=Stingy, prefix_cache=prefix_cache)
    assert serve(harness, wanted) == expected
    assert harness.stats.counters.preemptions > 0
    assert_empty(harness)


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("host_blocks", [6, ROOMY])
def test_leaving_at_random_moments_leaks_nothing_and_harms_nobody(depth, host_blocks) -> None:
    leave_at_random(depth, rounds=5, host_blocks=host_blocks)


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize(
    ("policy", "host_blocks"),
    [
        (FCFS, ROOMY),
        pytest.param(Stingy, ROOMY, marks=pytest.mark.slow),
        pytest.param(FCFS, 9, marks=pytest.mark.slow),
        pytest.param(Stingy, 9, marks=pytest.mark.slow),
    ],
)
def test_beams_find_the_same_when_they_are_offloaded(policy, host_blocks: int, depth: int) -> None:
    found = []
    for blocks, host in ((200, 0), (12, host_blocks)):
        harness = Harness(
            blocks=blocks,
            host_blocks=host,
            branches=branching,
            policy=policy,
            depth=depth,
            budget=32,
            rows=10,
        )
        for number in range(5):
            harness.submit(12 + number, 20, n=4, beams=BeamSearch(4))
        harness.run()
        found.append(said(harness))
    assert found[0] == found[1]
    assert harness.stats.counters.restored_blocks > 0
    assert_empty(harness)


# ── with everything switched on ───────────────────────────────────────────────────────────────


@pytest.mark.parametrize("depth", [0, 1])
def test_rounds_of_chats_that_begin_alike_answer_the_same_and_leave_every_block(depth) -> None:
    """Whole prompts are cached, groups share them, and most who give way go to host memory."""
    shared = list(range(48))
    texts: dict[tuple[int, ...], list[list[int]]] = {}
    harness = Harness(blocks=14, host_blocks=12, budget=24, rows=8, depth=depth, script=hashed)
    for turn in range(12):
        asked = {}
        for length in (48, 47, 33, 48):
            prompt = shared[:length] + [900] * (turn % 3)
            asked[harness.submit(prompt, 24, n=2)] = prompt
        harness.run()
        assert_empty(harness)
        for request, prompt in asked.items():
            answers = [harness.tokens(request, index) for index in range(2)]
            assert answers == texts.setdefault(tuple(prompt), answers)
    counters = harness.stats.counters
    assert counters.cached_tokens > 0
    assert counters.restored_blocks > 0
    whole = harness.submit([7], max_tokens=14 * BLOCK)
    harness.run()
    assert len(harness.tokens(whole)) == 14 * BLOCK, "a request still gets the whole pool"


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("policy", [FCFS, Stingy, *ALWAYS_DISPLACING])
def test_two_of_60_percent_of_the_pool_take_turns_with_progress(policy, depth: int) -> None:
    harness = Harness(blocks=20, host_blocks=ROOMY, budget=64, rows=8, policy=policy, depth=depth)
    requests = [harness.submit(64, max_tokens=129) for _ in range(2)]
    progress = Progress(harness)
    while progress.step() or harness.scheduler.live:
        pass
    for request in requests:
        assert harness.tokens(request) == [request * 1000 + i % 64 for i in range(129)]
    assert_empty(harness)


def test_host_memory_lets_nobody_in_who_does_not_fit_into_the_pool() -> None:
    harness = Harness(blocks=12, host_blocks=ROOMY, rows=8)
    never = harness.submit([1] * 300, max_tokens=10)
    behind = harness.submit([1] * 5, max_tokens=3)
    harness.run()
    assert harness.end(never).failure.kind is FailureKind.NEVER_FITS
    assert len(harness.tokens(behind)) == 3


# ── reserved blocks ───────────────────────────────────────────────────────────────────────────


class Strict(Policy):
    """A better class pushes out a worse one."""

    def key(self, request):
        return (request.priority, request.ticket)

    def displaces(self, newcomer, running):
        return newcomer.priority < running.priority


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize(("host_blocks", "displaced"), [(0, 0), (2, 0), (ROOMY, 1)])
def test_without_recompute_only_who_fits_into_host_memory_is_displaced(
    host_blocks: int, displaced: int, n: int, depth: int
) -> None:
    """However long it takes to move there. With reserved blocks nobody has to give way."""
    harness = engine(
        host_blocks,
        14 if n == 1 else 16,  # room for two
        policy=Strict,
        depth=depth,
        allocation=RESERVE,
        recompute=False,
        move_seconds=1e9,
    )
    rng = random.Random(4)
    asked = [(prompt_of(rng, 40), 20, {"n": n, "priority": p}) for p in (1, 1, 0)]
    plain = engine(0, BIG, budget=512)
    for prompt, tokens, fields in asked:
        plain.submit(prompt, tokens * (3 - n), **fields)
    plain.run()
    for number, (prompt, tokens, fields) in enumerate(asked):
        if number == 2:
            for _ in range(8):
                harness.step()
        harness.submit(prompt, tokens * (3 - n), **fields)
    harness.run()
    counters = harness.stats.counters
    assert counters.preemptions == displaced
    assert counters.recomputed_tokens == 0
    assert (counters.restored_blocks > 0) == (displaced > 0)
    assert said(harness) == said(plain)
    assert_empty(harness)


# ── what moves ────────────────────────────────────────────────────────────────────────────────


class Listening(Policy):
    """Keeps what it hears; the youngest gives way."""

    def __init__(self, *, services) -> None:
        super().__init__(services=services)
        self.heard: list = []

    def observe(self, events):
        self.heard += [
            (type(e), getattr(e, "lost", None), getattr(e, "recomputed", None))
            for e in events
            if isinstance(e, Preempted | Admitted)
        ]
        return ()


def test_who_is_offloaded_loses_nothing_and_goes_on_with_its_last_token() -> None:
    harness = engine(ROOMY, 9, policy=Listening)
    for number in (1, 2):
        harness.submit(prompt_of(random.Random(number), 40), max_tokens=48)
    request = until_offloaded(harness)
    (sequence,) = harness.scheduler.request(request).sequences
    stored = sequence.stored
    assert harness.scheduler.request(request).view.blocks == 0, "E3"
    assert stored == len(sequence.tokens) - 1 > 40
    batches = harness.backend.batches
    (moved,) = [batch for batch in batches if batch.offloads]
    assert [host for _, host in moved.offloads] == list(sequence.host)
    harness.run()
    (back,) = [batch for batch in batches if batch.restores]
    (row,) = [row for row in back.rows if row.request == request]
    assert (row.start, row.count, row.samples) == (stored, 1, True)
    log = harness.log.entries
    (preempted,) = [entry for entry in log if entry[0] == "preempt"]
    assert preempted == ("preempt", request, 0)
    assert log[log.index(preempted) + 1] == ("offload", request, len(moved.offloads))
    (restored,) = [entry for entry in log if entry[0] == "restore"]
    assert restored == ("restore", request, len(back.restores))
    assert log[log.index(restored) - 1] == ("admit", request, False, 0)
    assert [lost for kind, lost, _ in harness.policy.heard if kind is Preempted] == [0]
    assert {again for kind, _, again in harness.policy.heard if kind is Admitted} == {0}
    counters = harness.stats.counters
    assert counters.offloaded_blocks == len(moved.offloads)
    assert counters.restored_blocks == len(back.restores)
    assert counters.recomputed_tokens == 0
    assert counters.prompt_tokens == 2 * 40


def test_what_is_still_cached_is_shared_and_only_the_rest_is_copied_back() -> None:
    harness = engine(ROOMY, 9)
    three(harness)
    until_offloaded(harness)
    harness.run()
    counters = harness.stats.counters
    assert 0 < counters.restored_blocks < counters.offloaded_blocks
    plain = engine(ROOMY, 9, prefix_cache=False)
    three(plain)
    plain.run()
    counters = plain.stats.counters
    assert counters.restored_blocks == counters.offloaded_blocks > 0
    assert said(plain) == said(harness)


def test_siblings_are_offloaded_once_and_share_again_what_they_shared() -> None:
    """Two full blocks of the prompt are in four tables, and go to the host and back once."""
    harness = engine(ROOMY, 20, prefix_cache=False)
    requests = [harness.submit([r] * 40, max_tokens=40, n=4) for r in (1, 2)]
    request = until_offloaded(harness)
    assert request in requests
    sequences = harness.scheduler.request(request).sequences
    assert {tuple(s.host[:2]) for s in sequences} == {tuple(sequences[0].host[:2])}
    held = {host for s in sequences for host in s.host}
    assert len(held) == sum(len(s.host) for s in sequences) - 3 * 2
    while offloaded(harness):
        harness.step()
    tables = [s.table for s in sequences]
    assert {tuple(table[:2]) for table in tables} == {tuple(tables[0][:2])}
    harness.run()
    assert_empty(harness)


def test_only_what_has_landed_is_offloaded_and_the_token_in_flight_still_comes() -> None:
    harness = engine(ROOMY, 9, depth=1)
    three(harness)
    request = until_offloaded(harness)
    (sequence,) = harness.scheduler.request(request).sequences
    heard = len(harness.tokens(request))
    assert sequence.stored == 40 + heard - 2, "one more was computed, and given up"
    harness.run()
    plain = engine(0, BIG)
    three(plain)
    plain.run()
    assert said(harness) == said(plain)


# ── when it does not ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("room", "moves"), [(2, False), (3, True)])
def test_without_room_for_all_of_it_it_is_computed_again(room: int, moves: bool) -> None:
    harness = engine(room, 9)
    three(harness)
    while not harness.scheduler.counters.preemptions:
        harness.step()
    assert bool(offloaded(harness)) == moves
    harness.run()
    assert harness.stats.counters.recomputed_tokens > 0, "later there is not enough room"


@pytest.mark.parametrize(
    ("cost", "moves"),
    [
        (LinearCost(base=9.0, decode=9.0), False),  # what every step costs, and decodes
        (LinearCost(prompt_token=0.5), True),
        (LinearCost(prompt_token=0.01), False),
        (LinearCost(kv_read=0.5), True),
        (LinearCost(chunk_context=0.1), True),
        (LinearCost(chunk_context=0.0001), False),
    ],
)
def test_what_is_computed_sooner_than_moved_is_computed(cost: LinearCost, moves: bool) -> None:
    """A block takes a second to the host, and one back."""
    harness = engine(ROOMY, 9, move_seconds=1.0, offload_cost=cost)
    three(harness)
    harness.run()
    counters = harness.stats.counters
    assert counters.preemptions > 0
    assert (counters.offloaded_blocks > 0) == moves


def test_the_prompt_of_a_group_counts_once_in_what_recomputing_costs() -> None:
    harness = engine(ROOMY, BIG)
    request = harness.submit([2] * 40, max_tokens=20, n=4)
    while len(harness.tokens(request, 3)) < 5:
        harness.step()
    group = harness.scheduler.request(request)
    memory, host = harness.scheduler.memory, harness.scheduler.roster.host
    contents = host.contents(group)
    blocks = len({block for each in contents.values() for block in each})
    assert blocks == 2 + 4
    tokens = 40 + sum(s.computed - 40 for s in group.sequences)
    for factor, moved in ((0.99, 0), (1.01, blocks)):
        cost = LinearCost(prompt_token=factor * 2 * blocks / tokens)
        settings = ReliefSettings(Offload(ROOMY, 1.0, cost))
        assert Relief(memory, host, settings, chunk=32).keep(group) == moved


def test_a_step_that_moves_blocks_teaches_nothing_about_what_computing_costs() -> None:
    harness = engine(ROOMY, 9, move_seconds=1.0)
    learned: list[object] = []
    done: list[tuple[float, float]] = []

    class Learning(LinearCost):
        def observe(self, shape, seconds):
            learned.append(shape)

    harness.engine.cost = Learning()
    step_done = harness.scheduler.step_done
    harness.scheduler.step_done = lambda *times: (done.append(times), step_done(*times))
    three(harness)
    harness.run()
    moved = [len(b.offloads) + len(b.restores) for b in harness.backend.batches]
    assert len(learned) == moved.count(0) < len(moved)
    assert [predicted for predicted, _ in done] == moved


# ── however a request ends ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("how", ["abort", "abort twice", "finish", "finish twice", "both"])
def test_an_offloaded_request_can_leave(how: str, n: int, depth: int) -> None:
    harness = engine(ROOMY, 9 * n, depth=depth)
    requests = three(harness, n)
    leaver = until_offloaded(harness)
    heard = {index: harness.tokens(leaver, index) for index in range(n)}
    for _ in range(2 if "twice" in how else 1):
        for index in range(n) if how != "abort" else ():
            harness.finish(leaver, tokens=1, index=index)
        if how != "finish":
            harness.abort(leaver)
        harness.step()
    host = harness.scheduler.roster.host
    assert leaver not in offloaded(harness)
    assert host.free == host.total - len(
        {
            h
            for r in offloaded(harness)
            for s in harness.scheduler.request(r).sequences
            for h in s.host
        }
    )
    harness.run()
    assert_empty(harness)
    for index in range(n):
        assert harness.tokens(leaver, index)[: len(heard[index])] == heard[index]
        for stayer in set(requests) - {leaver}:
            assert len(harness.tokens(stayer, index)) == 48


def test_one_sequence_of_an_offloaded_group_ends_and_the_other_is_restored_alone() -> None:
    harness = engine(ROOMY, 18)
    three(harness, n=2)
    request = until_offloaded(harness)
    harness.finish(request, tokens=2, index=0)
    harness.run()
    assert harness.end(request, 0) == Finish(FinishReason.STOP)
    assert_empty(harness)
    big = engine(0, BIG)
    three(big, n=2)
    big.run()
    assert harness.tokens(request, 1) == big.tokens(request, 1)


@pytest.mark.parametrize("depth", [0, 1])
def test_a_policy_swap_loses_nobody_in_host_memory(depth: int) -> None:
    harness = engine(ROOMY, 9, depth=depth)
    three(harness)
    until_offloaded(harness)
    harness.mail.append(Reconfigure(Stingy(services=services())))
    harness.run()
    assert harness.stats.counters.restored_blocks > 0
    assert harness.stats.counters.recomputed_tokens == 0
    big = engine(0, BIG)
    three(big)
    big.run()
    assert said(harness) == said(big)
    assert_empty(harness)


def test_a_queue_deadline_ends_nobody_whose_answer_has_begun() -> None:
    harness = engine(ROOMY, 9)
    requests = three(harness, queue_deadline=0.2)
    until_offloaded(harness)
    harness.clock.advance(1.0)
    harness.run()
    assert all(harness.end(request) == Finish(FinishReason.LENGTH) for request in requests)
    assert_empty(harness)


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("how", ["fail_everything", "close"])
def test_nothing_is_left_in_host_memory_when_everything_ends(how: str, depth: int) -> None:
    harness = engine(ROOMY, 9, depth=depth)
    three(harness)
    until_offloaded(harness)
    if how == "close":
        harness.engine.close(SHUT, [])
    else:
        harness.scheduler.fail_everything(SHUT, 0.0)
        while harness.step():
            pass
    assert_empty(harness)
    assert harness.scheduler.live == 0
    again = harness.submit([1, 2, 3], max_tokens=2)
    harness.run()
    assert len(harness.tokens(again)) == 2


# ── faults ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize(
    ("n", "when"),
    [
        (1, "collected"),
        pytest.param(2, "collected", marks=pytest.mark.slow),
        pytest.param(1, "submit", marks=pytest.mark.slow),
        pytest.param(2, "submit", marks=pytest.mark.slow),
    ],
)
def test_after_a_fault_in_any_step_everybody_else_says_the_same(when, n, depth) -> None:
    """A fault makes the moves of its step and of those behind it void: what was only there is
    computed again."""
    big = engine(0, BIG)
    three(big, n)
    big.run()
    expected = said(big)
    plain = engine(ROOMY, 9 * n, depth=depth)
    three(plain, n)
    steps = plain.run()
    void = crashed = 0
    moving = [bool(b.offloads or b.restores or b.copies) for b in plain.backend.batches]
    near = [step for step in range(steps) if any(moving[max(0, step - 1) : step + 2])]
    for step in near:
        rows = [step % len(plain.backend.batches[step].rows)]
        hooks = {step: raising(RowFault(rows, "planted"))} if when == "submit" else {}
        nan_rows = {step: rows} if when == "collected" else {}
        harness = engine(ROOMY, 9 * n, depth=depth, hooks=hooks, nan_rows=nan_rows)
        requests = three(harness, n)
        harness.run()
        assert_empty(harness)
        ends = {harness.end(request, 0).reason for request in requests}
        assert ends <= {FinishReason.ERROR, FinishReason.LENGTH}
        keys = [(r, index) for r in requests for index in range(n)]
        failed = {r for r, i in keys if harness.end(r, i).reason is FinishReason.ERROR}
        assert len(failed) <= 1, "it may have ended before the fault"
        for key, words in said(harness).items():
            if key[0] in failed:
                assert words[0] == expected[key][0][: len(words[0])]
            else:
                assert words == expected[key]
        crashed += len(failed)
        void += harness.stats.counters.recomputed_tokens > 0
    assert len(near) >= 4
    assert crashed >= 4
    assert void > 0


# ── whose turn it is ──────────────────────────────────────────────────────────────────────────


class OldestGivesWay(Policy):
    """The older ones give way first, and whoever comes may push them out."""

    def victim(self, request, step):
        return (request.ticket,)


@pytest.mark.parametrize("host_blocks", [0, ROOMY])
def test_who_was_just_let_in_again_is_the_last_to_give_way(host_blocks: int) -> None:
    """By the policy's order alone the one that comes back would be the next to go."""
    harness = engine(host_blocks, 12, policy=OldestGivesWay)
    rng = random.Random(3)
    for _ in range(4):
        harness.submit(prompt_of(rng, 40), max_tokens=60)
    planner = harness.scheduler.planner
    chosen: list[tuple[bool, bool]] = []
    preempt = planner._preempt

    def watched(request, plan, by=None):
        running = harness.scheduler.roster.running.values()
        oldest = min(r.ticket for r in running)
        others = [r for r in running if r.ticket != oldest and r is not request]
        chosen.append((request.resuming, all(r.resuming for r in others)))
        preempt(request, plan, by)

    planner._preempt = watched
    harness.run()
    assert len(chosen) > 2
    assert all(alone for resuming, alone in chosen if resuming)


def test_moves_of_a_plan_that_launches_nothing_are_made_by_the_next_step() -> None:
    """The younger of two wants a block, and gives way itself, while the older is all in flight."""
    harness = engine(ROOMY, 5, budget=64, depth=1, prefix_cache=False)
    older = harness.submit([1] * 30, max_tokens=4)
    younger = harness.submit([2] * 29, max_tokens=40)
    harness.run()
    assert (len(harness.tokens(older)), len(harness.tokens(younger))) == (4, 40)
    log = harness.log.entries
    at = log.index(("preempt", younger, 0))
    assert log[at + 1] == ("offload", younger, 2)
    after = [entry[0] for entry in log[at + 2 :] if entry[0] in ("step", "decode", "chunk")]
    assert after[0] == "step", "the plan has a row after all"
    (moved,) = [batch for batch in harness.backend.batches if batch.offloads]
    assert len(moved.restores) == 2, "there and back in one step"
    assert harness.stats.counters.recomputed_tokens == 0
