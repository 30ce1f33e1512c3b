"""Faults in a step or in the engine's own thread end the right requests; nobody else notices.

Requests are met in every state: streaming, queued for a row, waiting or paused for blocks.
"""

from __future__ import annotations

import logging
import queue
import random
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

import pytest
from support.beams import branching
from support.engines import Harness
from support.odd_policies import ODD_POLICIES
from support.scripts import hashed

from engine.backends.scripted import ScriptedBackend, stall_until
from engine.batch import Batch
from engine.beam_search import BeamSearch
from engine.controls import RowControls, Sampled, SampleRow
from engine.errors import RowFault
from engine.inbox import Abort, FinishAt, Message, Stop
from engine.outputs import FailureKind, FinishReason, Output
from engine.thread import EngineThread
from policies.base import Phase, Policy

BLOCKS = 10
HOST_BLOCKS = 4
"""Some of those who give way are offloaded, and some computed again."""

Texts = dict[tuple[int, int], list[int]]
"""What each (request, index) said."""


@dataclass(frozen=True)
class Ask:
    prompt: list[int]
    max_tokens: int
    n: int
    controls: RowControls
    beams: BeamSearch | None = None

    def submit(self, harness: Harness, **fields: object) -> int:
        fields |= {"n": self.n, "beams": self.beams}
        return harness.submit(self.prompt, self.max_tokens, self.controls, **fields)


def asks(many: int, seed: int = 0) -> list[Ask]:
    """Requests that fit alone and not together; every fourth has two sequences, some search."""
    rng = random.Random(seed)
    return [
        Ask(
            [rng.randrange(50_000) for _ in range(rng.randrange(3, 40))],
            rng.randrange(8, 30),
            2 if number % 4 == 3 else 1,
            RowControls(seed=rng.randrange(1000)),
            BeamSearch(2) if number % 7 in (3, 5) else None,
        )
        for number in range(many)
    ]


def engine(backend: ScriptedBackend | None = None, **options) -> Harness:
    """An engine in which about half of `asks` find room."""
    backend = backend or ScriptedBackend(BLOCKS, script=hashed, branches=branching)
    return Harness(blocks=backend.total_blocks, backend=backend, budget=24, rows=5, **options)


def undisturbed(wanted: Sequence[Ask]) -> Texts:
    """What the requests say when nothing fails and nobody waits for anything."""
    harness = engine(ScriptedBackend(400, script=hashed, branches=branching))
    for ask in wanted:
        ask.submit(harness)
    harness.run()
    return {key: harness.tokens(*key) for key in harness.outputs}


# ── faults in a step ──────────────────────────────────────────────────────────────────────────

CALLS = ["submit", "sample", "collect", "collected"]


class FaultyBackend(ScriptedBackend):
    """Fails where it is told: `faults` maps (call, ticket) to what it raises there.

    A fault at "collect" leaves the step uncomputed, one at "collected" comes when it is computed.
    doomed: the requests that must end, and when. A fault in a step that is dropped anyway, because
    the one before it failed, dooms nobody.
    """

    def __init__(self, faults: Mapping[tuple[str, int], Exception]) -> None:
        super().__init__(BLOCKS, script=hashed, branches=branching, host_blocks=HOST_BLOCKS)
        self.now: Callable[[], float] = lambda: 0.0
        self._faults = faults
        self._dropped: set[int] = set()
        self._dooms: dict[int, dict[int, float]] = {}

    @property
    def doomed(self) -> dict[int, float]:
        return {request: at for doom in self._dooms.values() for request, at in doom.items()}

    def submit(self, batch: Batch) -> int:
        ticket = super().submit(batch)
        self._maybe_fail("submit", ticket)
        return ticket

    def sample(self, ticket: int, rows: Collection[SampleRow]) -> None:
        super().sample(ticket, rows)
        self._maybe_fail("sample", ticket)

    def collect(self, ticket: int) -> Sampled:
        self._maybe_fail("collect", ticket)
        result = super().collect(ticket)
        self._maybe_fail("collected", ticket)
        return result

    def _maybe_fail(self, call: str, ticket: int) -> None:
        fault = self._faults.get((call, ticket))
        if fault is None:
            return
        rows = self.batches[ticket].rows
        if ticket not in self._dropped:
            named = set(getattr(fault, "rows", ())) & set(range(len(rows))) or range(len(rows))
            self._dooms[ticket] = {rows[row].request: self.now() for row in named}
        if call.startswith("collect"):
            for later in range(ticket + 1, len(self.batches)):
                self._dropped.add(later)
                self._dooms.pop(later, None)
        raise fault


def faulty(faults: Mapping[tuple[str, int], Exception], **options) -> Harness:
    backend = FaultyBackend(faults)
    harness = engine(backend, **options)
    backend.now = harness.clock.now
    return harness


def failed(harness: Harness) -> set[int]:
    """Requests that ended with an error."""
    return {
        request
        for (request, _), outputs in harness.outputs.items()
        for output in outputs
        if output.finish is not None and output.finish.reason is FinishReason.ERROR
    }


def assert_who_ended(harness: Harness, expected: Texts, left: set[int] = frozenset()) -> None:
    """The doomed ended with an error unless they were done by then; all others said everything.

    left: whose client went away, at some moment or other.
    """
    doomed = harness.backend.doomed
    assert failed(harness) <= set(doomed), "a fault ended a request that it did not concern"
    for key, text in expected.items():
        request, outputs = key[0], harness.outputs[key]
        tokens = harness.tokens(*key)
        ends = [output.finish for output in outputs if output.finish is not None]
        if request in left:
            assert tokens == text[: len(tokens)]
            assert len(ends) <= 1
            continue
        (finish,) = ends
        assert outputs[-1].finish is finish, "something came after the end"
        if finish.reason is FinishReason.REJECTED:
            continue
        if finish.reason is FinishReason.ERROR:
            assert finish.failure.kind is FailureKind.ENGINE_FAULT
            assert "planted" not in finish.failure.message, "internals are not for clients"
            assert tokens == text[: len(tokens)]
        else:
            assert tokens == text
            assert outputs[-1].at <= doomed.get(request, outputs[-1].at)
    assert harness.scheduler.live == 0
    assert harness.pool.free == harness.pool.total
    host = harness.scheduler.roster.host
    assert host.free == host.total


FAULTS = {
    "a row": RowFault([1], "planted"),
    "two rows": RowFault([0, 2], "planted"),
    "a row that is not there": RowFault([99, -1], "planted"),
    "all": RuntimeError("planted"),
}


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_a_fault_ends_the_requests_it_concerns_whatever_the_others_are_at(
    fault: Exception, call: str, depth: int
) -> None:
    wanted = asks(9)
    expected = undisturbed(wanted)
    states: set[str] = set()
    for step in range(0, 40, 5):
        harness = faulty({(call, step): fault}, depth=depth)
        for ask in wanted:
            ask.submit(harness)
        while not harness.backend.doomed:
            states |= states_of(harness)
            harness.step()
        harness.run()
        assert failed(harness), "everybody was done before the fault"
        assert_who_ended(harness, expected)
    assert states == {"streams", "queued", "in prefill", "lost its blocks"}


def states_of(harness: Harness) -> set[str]:
    states = set()
    for request in harness.scheduler.roster.requests.values():
        if request.phase is Phase.PREEMPTED:
            states.add("lost its blocks")
        elif request.phase is Phase.WAITING:
            states.add("queued")
        elif request.phase is Phase.PREFILL:
            states.add("in prefill")
        elif request.view.output:
            states.add("streams")
    return states


@pytest.mark.parametrize("depth", [0, 1])
def test_faults_in_a_row_leave_who_is_not_concerned_alone(depth: int) -> None:
    """A fault in every step until nobody is left who was there before."""
    wanted = asks(9)
    faults = {("collected", step): RowFault([0], "planted") for step in range(0, 400, 2)}
    harness = faulty(faults, depth=depth)
    for ask in wanted:
        ask.submit(harness)
    harness.run()
    assert_who_ended(harness, undisturbed(wanted))
    assert len(failed(harness)) > len(wanted) // 2


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("call", CALLS)
def test_a_prompt_whose_last_chunk_came_to_nothing_is_computed_as_a_prompt_again(
    call: str, depth: int
) -> None:
    """And not token by token, as if it decoded already."""
    harness = faulty({(call, 0): RowFault([0], "planted")}, depth=depth)
    doomed, other = harness.submit(4), harness.submit(20)
    harness.run()
    rows = [[(r.request, r.start, r.count) for r in b.rows] for b in harness.backend.batches]
    assert rows[0] == [(doomed, 0, 4), (other, 0, 20)]
    assert [row for step in rows[1:] for row in step if row[2] > 1] == [(other, 0, 20)]
    assert len(harness.tokens(other)) == 4


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("step", range(2, 30, 4))
def test_a_group_fails_as_a_whole(step: int, depth: int) -> None:
    wanted = [Ask([1, 2, 3], 40, 3, RowControls(seed=1)), Ask([4, 5, 6], 40, 2, RowControls())]
    harness = faulty({("collected", step): RowFault([1], "planted")}, depth=depth)
    first, second = (ask.submit(harness) for ask in wanted)
    harness.run()
    assert_who_ended(harness, undisturbed(wanted))
    (doomed,) = failed(harness)
    indices = range(3 if doomed == first else 2)
    assert all(harness.end(doomed, i).reason is FinishReason.ERROR for i in indices)
    assert doomed in (first, second)
    assert harness.scheduler.counters.failed == 1


@pytest.mark.parametrize("prompt", [16, 17, 18, 33, 40])
@pytest.mark.parametrize("ticket", range(6))
@pytest.mark.parametrize("call", CALLS)
def test_a_fault_beside_a_group_leaves_nobody_with_blocks_that_were_never_written(
    call: str, ticket: int, prompt: int
) -> None:
    """At depth 1 siblings start, and copy shared blocks, while steps they build on may fail."""
    wanted = [Ask([5] * 4, 30, 1, RowControls()), Ask([*range(prompt)], 12, 3, RowControls())]
    for rows in ([0], [99]):
        harness = faulty({(call, ticket): RowFault(rows, "planted")}, depth=1)
        for ask in wanted:
            ask.submit(harness)
        harness.run()
        assert_who_ended(harness, undisturbed(wanted))


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("call", ["collect", "collected"])
def test_a_copy_in_the_second_of_two_failing_steps_counts_as_not_made(call: str, n: int) -> None:
    """The first sequence shares its last block while it decodes, and copies it for the next."""
    wanted = [Ask([5] * 4, 30, 1, RowControls()), Ask([*range(20)], 12, n, RowControls())]
    faults = {(call, 1): RowFault([0], "planted"), ("collect", 2): RuntimeError("planted")}
    harness = faulty(faults, depth=1)
    for ask in wanted:
        ask.submit(harness)
    harness.run()
    first, second = harness.backend.batches[1:3]
    assert (2, 0) in {(row.request, row.index) for row in first.rows}
    assert second.copies
    assert_who_ended(harness, undisturbed(wanted))
    assert failed(harness) == {1}


# ── faults, leavers and policies at random ────────────────────────────────────────────────────


def play_at_random(policy: type[Policy], depth: int, seed: int) -> tuple[int, int]:
    """Random faults in a tenth of the steps; how many requests failed, and how many ended."""
    rng = random.Random(seed)
    faults: dict[tuple[str, int], Exception] = {}
    for step in range(600):
        if rng.random() < 0.1:
            rows = rng.sample(range(6), rng.randrange(1, 3))
            fault = RowFault(rows, "planted") if rng.random() < 0.8 else RuntimeError("planted")
            faults[rng.choice(CALLS), step] = fault
    wanted = asks(14, seed)
    harness = faulty(faults, policy=policy, depth=depth)
    left: set[int] = set()
    for ask in wanted:
        fields = {"tenant": rng.choice("ab"), "priority": rng.randrange(3)}
        request = ask.submit(harness, **fields)
        for _ in range(rng.randrange(4)):
            harness.step()
        if rng.random() < 0.2:
            leaver = rng.randrange(1, request + 1)
            left.add(leaver)
            if rng.random() < 0.5:
                harness.abort(leaver)
            else:
                harness.finish(leaver, tokens=min(2, len(harness.tokens(leaver))))
    harness.run()
    expected = undisturbed(wanted)
    cut = {key: text for key, text in expected.items() if key[0] not in left}
    assert_who_ended(harness, cut)
    for request in left:
        for index in range(wanted[request - 1].n):
            tokens = harness.tokens(request, index)
            assert tokens == expected[request, index][: len(tokens)]
    return len(failed(harness)), harness.scheduler.counters.finished


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("policy", ODD_POLICIES)
def test_random_faults_under_every_policy(policy, depth: int, caplog) -> None:
    caplog.set_level(logging.CRITICAL)
    results = [play_at_random(policy, depth, seed) for seed in range(4)]
    assert sum(fails for fails, _ in results) > 4
    assert sum(ends for _, ends in results) > 4


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("policy", ODD_POLICIES)
def test_many_more_random_faults(policy, depth: int, caplog) -> None:
    caplog.set_level(logging.CRITICAL)
    results = [play_at_random(policy, depth, seed) for seed in range(100, 180)]
    assert all(fails + ends > 0 for fails, ends in results)


# ── the engine's own thread ───────────────────────────────────────────────────────────────────


class Live:
    """A harness whose engine runs on its own thread; outputs arrive in `news`, as they come."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.news: queue.Queue[Output] = queue.Queue()
        self.exited = threading.Event()
        harness.engine.emit = self._emit
        self.thread = EngineThread(harness.engine, on_exit=self.exited.set)

    def _emit(self, outputs, look) -> None:
        self.harness._take(outputs, look)
        for output in outputs:
            self.news.put(output)

    def post(self, *messages: Message) -> None:
        """Post what was submitted to the harness, then these."""
        mail, self.harness.mail = self.harness.mail, []
        for message in [*mail, *messages]:
            self.thread.post(message)

    def ends(self, many: int) -> list[Output]:
        """Wait until so many sequences have ended."""
        ends: list[Output] = []
        while len(ends) < many:
            output = self.news.get(timeout=60)
            if output.finish is not None:
                ends.append(output)
        return ends


@pytest.fixture
def live() -> Iterator[Callable[[Harness], Live]]:
    started: list[Live] = []

    def start(harness: Harness) -> Live:
        started.append(Live(harness))
        return started[-1]

    yield start
    for one in started:
        one.post(Stop())
        one.thread.join(60)
        assert not one.thread.alive


def break_at(owner: object, method: str, call: int) -> None:
    """Let a method raise when it is called for the `call`-th time, the first being 0."""
    calls = count()
    original = getattr(owner, method)

    def broken(*arguments, **options):
        if next(calls) == call:
            raise RuntimeError("planted")
        return original(*arguments, **options)

    setattr(owner, method, broken)


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("call", [0, 1, 7])
@pytest.mark.parametrize(
    ("part", "method"),
    [
        ("scheduler", "schedule"),
        ("scheduler", "launch"),
        ("scheduler", "land"),
        ("planner", "plan"),
        ("memory", "extend"),
        ("memory", "release"),
    ],
)
def test_a_broken_engine_ends_everybody_with_an_error(
    live, part: str, method: str, call: int, depth: int
) -> None:
    wanted = asks(9)
    expected = undisturbed(wanted)
    harness = engine(depth=depth)
    scheduler = harness.scheduler
    break_at(scheduler if part == "scheduler" else getattr(scheduler, part), method, call)
    one = live(harness)
    for ask in wanted:
        ask.submit(harness)
    one.post()
    one.thread.start()
    assert one.exited.wait(60)
    assert one.thread.ended.kind is FailureKind.ENGINE_FAULT
    assert failed(harness)
    for key, text in expected.items():
        ends = [output.finish for output in harness.outputs[key] if output.finish is not None]
        assert len(ends) == 1
        assert harness.tokens(*key) == text[: len(harness.tokens(*key))]
        if ends[0].reason is FinishReason.ERROR:
            assert ends[0].failure.kind is FailureKind.ENGINE_FAULT
            assert "planted" not in ends[0].failure.message
        else:
            assert harness.tokens(*key) == text
    scheduler.check()
    assert scheduler.live == 0
    assert scheduler.pool.free == BLOCKS


@pytest.mark.parametrize("depth", [0, 1])
def test_who_wrote_in_the_same_post_as_the_message_that_broke_the_engine_is_answered(
    live, depth: int
) -> None:
    harness = engine(depth=depth)
    one = live(harness)
    first, second, third = asks(3)
    running = first.submit(harness)
    one.post(FinishAt(running, 99, 1))  # no such sequence: a bug of whoever sent it
    behind = [ask.submit(harness) for ask in (second, third)]
    one.post()
    one.thread.start()
    assert one.exited.wait(60)
    for request in (running, *behind):
        (output,) = harness.outputs[request, 0]
        assert output.finish.failure.kind is FailureKind.ENGINE_FAULT


@pytest.mark.parametrize("broken", [0, 1, 2])
def test_a_submission_that_breaks_the_engine_is_answered_once(live, broken: int) -> None:
    harness = engine()
    break_at(harness.scheduler, "submit", broken)
    one = live(harness)
    requests = [ask.submit(harness) for ask in asks(3)]
    one.post()
    one.thread.start()
    assert one.exited.wait(60)
    for request in requests:
        assert [output.finish.reason for output in harness.outputs[request, 0]] == [
            FinishReason.ERROR
        ]


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("step", [0, 1, 9])
def test_while_a_step_stalls_anybody_may_post_and_is_served_afterwards(
    live, step: int, depth: int
) -> None:
    stalled, gate = threading.Event(), threading.Event()

    def wait() -> None:
        stalled.set()
        assert gate.wait(60)

    hooks = {step: stall_until(wait)}
    backend = ScriptedBackend(BLOCKS, script=hashed, hooks=hooks, branches=branching)
    harness = engine(backend, depth=depth)
    one = live(harness)
    wanted = asks(9)
    early = [ask.submit(harness) for ask in wanted[:6]]
    one.post()
    one.thread.start()
    assert stalled.wait(60)
    heard = one.news.qsize()
    late = [ask.submit(harness) for ask in wanted[6:]]
    poster = threading.Thread(target=one.post, args=(Abort(early[0]), Abort(late[0])))
    poster.start()
    poster.join(60)
    assert not poster.is_alive(), "posting waits for nobody"
    assert one.news.qsize() == heard, "nothing can have been computed"
    gone = {early[0], late[0]}
    gate.set()
    expected = undisturbed(wanted)
    one.ends(sum(request not in gone for request, _ in expected))
    for key, text in expected.items():
        tokens = harness.tokens(*key)
        assert tokens == (text[: len(tokens)] if key[0] in gone else text)
    assert harness.tokens(late[0]) == []
    assert one.thread.ended is None


def test_a_stop_during_a_stall_ends_everybody_who_is_open(live) -> None:
    gate = threading.Event()
    hooks = {2: stall_until(lambda: gate.wait(60))}
    backend = ScriptedBackend(BLOCKS, script=hashed, hooks=hooks, branches=branching)
    harness = engine(backend, depth=1)
    one = live(harness)
    requests = [ask.submit(harness) for ask in asks(9)]
    one.post(Stop())
    gate.set()
    one.thread.start()
    assert one.exited.wait(60)
    for request in requests:
        assert harness.end(request).failure.kind is FailureKind.SHUTTING_DOWN


# ── a policy's fault that is none ─────────────────────────────────────────────────────────────


class BackfillsAndRekeys(Policy):
    """Two may pass a head that does not fit; everybody is queued anew at every event."""

    def __init__(self, *, services):
        super().__init__(services=services)
        self.known: set[int] = set()

    def backfill(self, step):
        return 2

    def observe(self, events):
        self.known.update(event.request.id for event in events if hasattr(event, "request"))
        return self.known


@pytest.mark.parametrize("depth", [0, 1])
def test_a_head_set_aside_may_be_named_by_observe(depth: int) -> None:
    wanted = asks(14)
    harness = engine(policy=BackfillsAndRekeys, depth=depth)
    for ask in wanted:
        ask.submit(harness)
    harness.run()
    expected = undisturbed(wanted)
    assert {key: harness.tokens(*key) for key in harness.outputs} == expected
    admitted = [entry[1] for entry in harness.log.entries if entry[0] == "admit"]
    assert admitted != sorted(admitted), "nobody was passed"
