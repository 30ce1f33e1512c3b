"""Preemption with recompute is invisible: a tiny pool says what a big one says, and nobody starves.

The text comes from the real sampler over a hash of all tokens so far (`support.hashed`), so that
a token lost, doubled or counted twice by a penalty would change everything after it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise

import pytest
import torch
from support.engines import Harness
from support.hashed import VOCAB, HashedBackend
from support.odd_policies import ODD_POLICIES, Judging, Nonsense, Starving, Stingy, Window

from engine.backends.scripted import ScriptedBackend
from engine.controls import RowControls
from engine.outputs import FailureKind, Finish, FinishReason
from policies.base import Phase, Policy

SMALL, BIG = 12, 600
MODEL_LEN = 512


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Threads of torch that wait for each other cost more than rows this short take."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


Said = dict[tuple[int, int], tuple[list[int], list[object], Finish | None]]
"""What each (request, index) said: tokens, logprobs, end."""


@dataclass
class Ask:
    """A request to be submitted `gap` steps after the one before."""

    prompt: list[int]
    max_tokens: int
    controls: RowControls
    gap: int = 0
    fields: dict[str, object] = field(default_factory=dict)


def prompt_of(rng: random.Random, length: int) -> list[int]:
    return [rng.randrange(VOCAB) for _ in range(length)]


def controls_of(rng: random.Random) -> RowControls:
    """Seeds, penalties, stops, bad words and logprobs, in any mixture."""
    return RowControls(
        temperature=rng.choice([0.0, 0.8, 1.3]),
        seed=rng.randrange(2**40),
        top_k=rng.choice([0, 12]),
        top_p=rng.choice([1.0, 0.9]),
        presence_penalty=rng.choice([0.0, 1.5, -0.5]),
        frequency_penalty=rng.choice([0.0, 0.7]),
        repetition_penalty=rng.choice([1.0, 1.3]),
        min_tokens=rng.choice([0, 9]),
        eos_ids=frozenset(rng.choice([(), (5,)])),
        ignore_eos=rng.random() < 0.3,
        bad_words=rng.choice([(), ((7,), (1, 2))]),
        logprobs=rng.choice([None, 0, 3]),
    )


def asks(seed: int = 3, count: int = 30) -> list[Ask]:
    """Requests of which any fits the small pool alone, a third of them of two sequences."""
    rng = random.Random(seed)
    made = []
    for number in range(count):
        n = 2 if number % 3 == 0 else 1
        prompt = rng.randrange(1, 50)
        most = SMALL // n * 16 - prompt + 1
        made.append(
            Ask(
                prompt_of(rng, prompt),
                rng.randrange(16, min(48, most)),
                controls_of(rng),
                gap=rng.randrange(3),
                fields={"n": n, "tenant": rng.choice("ab"), "priority": rng.randrange(3)},
            )
        )
    return made


def engine(blocks: int = SMALL, backend: type = HashedBackend, **options) -> Harness:
    options = {"budget": 32, "rows": 8, "model_len": MODEL_LEN} | options
    return Harness(blocks=blocks, backend=backend(blocks), **options)


def submit(harness: Harness, ask: Ask) -> int:
    return harness.submit(ask.prompt, ask.max_tokens, ask.controls, **ask.fields)


def serve(harness: Harness, wanted: list[Ask]) -> Said:
    """Submit everything with its gaps, run to the end, and collect what was said."""
    for ask in wanted:
        for _ in range(ask.gap):
            harness.step()
        submit(harness, ask)
    harness.run()
    assert harness.pool.free == harness.pool.total
    return said(harness)


def said(harness: Harness) -> Said:
    return {
        key: (
            [token for output in outputs for token in output.tokens],
            [each for output in outputs for each in output.logprobs],
            outputs[-1].finish,
        )
        for key, outputs in harness.outputs.items()
    }


@lru_cache
def undisturbed(seed: int = 3) -> Said:
    """What the requests say when the pool holds them all and each is served as it comes."""
    harness = engine(BIG, budget=512, rows=64)
    result = serve(harness, asks(seed))
    assert harness.scheduler.counters.preemptions == 0
    return result


PLAYED = [
    pytest.param(policy, marks=[pytest.mark.slow] if policy in (Starving, Window, Judging) else [])
    for policy in ODD_POLICIES
]
"""In `make test` those that make the most difference to who gives way."""


# ── nothing the client can see changes ────────────────────────────────────────────────────────


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("policy", PLAYED)
def test_30_requests_say_in_12_blocks_what_they_say_in_600(policy, depth: int) -> None:
    harness = engine(policy=policy, depth=depth)
    found = serve(harness, asks())
    rejected = {key for key, (_, _, end) in found.items() if end.reason is FinishReason.REJECTED}
    assert len(rejected) <= len(found) // 6, "only Judging refuses, and only every seventh"
    for key, expected in undisturbed().items():
        assert key in rejected or found[key] == expected, key
    counters = harness.stats.counters
    if policy is not Nonsense:  # which may let requests run one at a time
        assert counters.preemptions > 0
        assert counters.recomputed_tokens > 0
    assert counters.admitted + counters.rejected == counters.arrived == 30
    work = sum(len(ask.prompt) for ask in asks()) + counters.generated_tokens
    assert counters.recomputed_tokens <= 2 * work


def test_the_requests_end_in_every_way_and_use_every_control() -> None:
    """Else the comparison above would show little."""
    ends = [end for _, _, end in undisturbed().values()]
    assert {end.reason for end in ends} == {FinishReason.STOP, FinishReason.LENGTH}
    texts = [tuple(tokens) for tokens, _, _ in undisturbed().values()]
    assert len(set(texts)) > 30
    assert any(logprobs for _, logprobs, _ in undisturbed().values())


def test_recomputed_tokens_are_the_positions_that_were_computed_again() -> None:
    harness = engine(9, budget=64)
    for number in range(3):
        harness.submit(prompt_of(random.Random(number), 40), max_tokens=48)
    harness.run()
    computed: set[tuple[int, int]] = set()
    again = 0
    for batch in harness.backend.batches:
        for row in batch.rows:
            positions = {(row.request, p) for p in range(row.start, row.start + row.count)}
            again += len(positions & computed)
            computed |= positions
    counters = harness.stats.counters
    assert counters.recomputed_tokens == again > 0
    readmitted = [e for e in harness.log.entries if e[0] == "admit" and e[3] > 0]
    assert sum(entry[3] for entry in readmitted) == again
    assert len(readmitted) == counters.preemptions


def test_what_was_generated_before_is_recomputed_as_prompt_in_as_few_chunks_as_it_needs() -> None:
    harness = engine(9, budget=64)
    for number in range(3):
        harness.submit(prompt_of(random.Random(number), 40), max_tokens=48)
    harness.run()
    restored: dict[int, int] = {}
    for kind, request, *rest in harness.log.entries:
        if kind == "admit" and rest[1]:
            restored[request] = rest[1] + 1  # all it had, and the token that was to be next
        elif kind == "chunk" and request in restored:
            restored[request] -= rest[1]
        elif kind == "decode":
            for number in request[::2]:
                assert restored.pop(number, 0) == 0, "it decodes with a part not restored"
    assert harness.scheduler.counters.preemptions > 0


@pytest.mark.parametrize("depth", [0, 1])
def test_a_request_preempted_again_and_again_repeats_nothing_and_keeps_its_prompt(depth) -> None:
    rng = random.Random(1)
    penalised = RowControls(temperature=0.0, presence_penalty=1.0, logprobs=2)
    wanted = [
        Ask(prompt_of(rng, 40), 48, RowControls(temperature=0.0, logprobs=2)),
        Ask(prompt_of(rng, 40), 48, penalised),
        Ask(prompt_of(rng, 40), 48, RowControls(seed=4, logprobs=2)),
        Ask(prompt_of(rng, 40), 48, RowControls(seed=5, frequency_penalty=0.4, logprobs=0)),
    ]
    expected = serve(engine(BIG, budget=512), wanted)
    harness = engine(9, depth=depth, policy=Stingy)
    requests = [submit(harness, ask) for ask in wanted]
    most = 0
    while harness.step():
        live = [harness.scheduler.request(request) for request in requests]
        most = max([most, *(request.preemptions for request in live if request)])
        assert all(request.view.prompt == 40 for request in live if request)
        for request in filter(None, live):
            generated = sum(s.generated for s in request.sequences)
            assert generated == len(harness.tokens(request.id)), "told once, as soon as known"
    assert most >= 2, "nobody was preempted twice"
    assert said(harness) == expected
    for request in requests:
        firsts = [o for o in harness.outputs[request, 0] if o.timing is not None]
        assert firsts == harness.outputs[request, 0][:1]


@pytest.mark.parametrize("depth", [0, 1])
def test_a_stop_string_cuts_at_the_same_token_in_a_small_pool(depth: int) -> None:
    """The text side finds it after the tokens are out, as a client of the engine does."""

    def play(blocks: int) -> tuple[list[list[int]], int]:
        harness = engine(blocks, depth=depth)
        rng = random.Random(2)
        requests = [harness.submit(prompt_of(rng, 40), max_tokens=48) for _ in range(3)]
        cut: dict[int, int] = {}
        while harness.step() or harness.mail:
            for request in requests:
                tokens = harness.tokens(request)
                at = next(
                    (i for i, pair in enumerate(pairwise(tokens)) if sum(pair) % 23 == 7), None
                )
                if at is not None and request not in cut:
                    cut[request] = at + 2
                    harness.finish(request, tokens=at + 2)
        texts = [harness.tokens(r)[: cut.get(r)] for r in requests]
        assert cut, "no stop string was found"
        for request in cut:
            assert harness.end(request) == Finish(FinishReason.STOP)
        assert harness.pool.free == harness.pool.total
        return texts, harness.scheduler.counters.preemptions

    (small, preemptions), (big, none) = play(7), play(BIG)
    assert preemptions > none == 0
    assert small == big


# ── aborts and ends of preempted requests ─────────────────────────────────────────────────────


def until_preempted(harness: Harness) -> int:
    """Step until somebody has lost its blocks; who."""
    for _ in range(500):
        harness.step()
        for request in harness.scheduler.roster.requests.values():
            if request.phase is Phase.PREEMPTED:
                assert request.view.blocks == 0
                assert request.view.output > 0
                return request.id
    raise AssertionError("nobody was preempted")


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("how", ["abort", "abort twice", "finish", "finish twice", "both"])
def test_a_preempted_request_can_leave(how: str, n: int, depth: int) -> None:
    harness = engine(9 * n, backend=HashedBackend, depth=depth)
    rng = random.Random(5)
    requests = [harness.submit(prompt_of(rng, 40), max_tokens=48, n=n) for _ in range(3)]
    leaver = until_preempted(harness)
    heard = {index: harness.tokens(leaver, index) for index in range(n)}
    for _ in range(2 if "twice" in how else 1):
        for index in range(n) if how != "abort" else ():
            if "finish" in how or how == "both":
                harness.finish(leaver, tokens=1, index=index)
        if "abort" in how or how == "both":
            harness.abort(leaver)
        harness.step()
    assert harness.scheduler.request(leaver) is None
    harness.run()
    assert harness.pool.free == harness.pool.total
    counters = harness.scheduler.counters
    assert counters.cancelled == (1 if "abort" in how else 0)
    assert counters.finished == 3 - counters.cancelled
    for index in range(n):
        assert harness.tokens(leaver, index) == heard[index], "it was never computed again"
        for stayer in set(requests) - {leaver}:
            assert len(harness.tokens(stayer, index)) == 48


def test_one_sequence_of_a_preempted_group_ends_and_the_other_is_restored_alone() -> None:
    harness = engine(18)
    rng = random.Random(5)
    requests = [harness.submit(prompt_of(rng, 40), max_tokens=48, n=2) for _ in range(3)]
    preempted = until_preempted(harness)
    harness.finish(preempted, tokens=2, index=0)
    harness.run()
    assert harness.end(preempted, 0) == Finish(FinishReason.STOP)
    big = engine(BIG)
    rng = random.Random(5)
    for _ in requests:
        big.submit(prompt_of(rng, 40), max_tokens=48, n=2)
    big.run()
    assert harness.tokens(preempted, 1) == big.tokens(preempted, 1)
    assert harness.pool.free == harness.pool.total


def test_a_request_whose_last_token_was_in_flight_when_it_gave_way_ends_in_the_queue() -> None:
    harness = engine(2, depth=1)
    first = harness.submit(list(range(16)), max_tokens=10)  # needs its second block at once
    second = harness.submit([1, 2, 3], max_tokens=1)
    harness.run()
    kinds = [entry[:2] for entry in harness.log.entries]
    assert kinds.index(("preempt", second)) < kinds.index(("finish", second))
    assert [entry for entry in kinds if entry == ("admit", second)] == [("admit", second)]
    assert len(harness.tokens(second)) == 1
    assert len(harness.tokens(first)) == 10


def leave_at_random(depth: int, rounds: int, host_blocks: int = 0) -> None:
    """Rounds of six requests in one engine, most of which somebody leaves."""
    harness = Harness(blocks=SMALL, budget=48, rows=8, depth=depth, host_blocks=host_blocks)
    rng = random.Random(depth)
    preempted_leavers = 0
    for _ in range(rounds):
        requests = [harness.submit(60, max_tokens=80) for _ in range(6)]
        left: set[int] = set()
        while harness.step() or harness.mail:
            if rng.random() < 0.06:
                leaver = rng.choice(requests)
                request = harness.scheduler.request(leaver)
                preempted_leavers += request is not None and request.phase is Phase.PREEMPTED
                left.add(leaver)
                for _ in range(rng.choice([1, 2])):
                    if rng.random() < 0.7:
                        harness.abort(leaver)
                    else:
                        harness.finish(leaver, tokens=min(3, len(harness.tokens(leaver))))
        assert harness.pool.free == harness.pool.total
        for request in requests:
            tokens = harness.tokens(request)
            assert tokens == [request * 1000 + i % 60 for i in range(len(tokens))]
            assert request in left or len(tokens) == 80
        harness.backend.batches.clear()
    assert harness.scheduler.live == 0
    assert harness.scheduler.counters.preemptions > rounds
    assert preempted_leavers > 0


@pytest.mark.parametrize("depth", [0, 1])
def test_leaving_at_random_moments_leaks_nothing_and_harms_nobody(depth: int) -> None:
    leave_at_random(depth, rounds=20)


@pytest.mark.slow
@pytest.mark.parametrize("depth", [0, 1])
def test_leaving_at_random_moments_200_rounds_long(depth: int) -> None:
    leave_at_random(depth, rounds=200)


# ── what can never fit ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("policy", ODD_POLICIES)
@pytest.mark.parametrize(("prompt", "max_tokens"), [(300, 10), (150, 100), (1, 193)])
def test_what_can_never_fit_is_refused_at_once_and_blocks_nobody(policy, prompt, max_tokens):
    harness = engine(policy=policy, backend=ScriptedBackend)
    waiting = harness.submit([1] * 100, max_tokens=20)
    never = harness.submit([1] * prompt, max_tokens=max_tokens)
    behind = harness.submit([1] * 5, max_tokens=3)
    harness.step()
    failure = harness.end(never).failure
    assert failure.kind is FailureKind.NEVER_FITS
    assert f"{-(-(prompt + max_tokens - 1) // 16)} KV blocks" in failure.message
    assert "12" in failure.message
    harness.run()
    assert len(harness.tokens(behind)) == 3
    assert len(harness.tokens(waiting)) == 20
    assert harness.tokens(never) == []


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("policy", ODD_POLICIES)
@pytest.mark.parametrize(
    ("prompt", "max_tokens", "n"), [(192, 1, 1), (1, 192, 1), (90, 7, 2), (16, 1, 8)]
)
def test_what_fills_the_pool_exactly_runs_to_its_end(policy, depth, prompt, max_tokens, n) -> None:
    """Also beside others that want the same blocks."""
    harness = engine(policy=policy, depth=depth, backend=ScriptedBackend)
    other = harness.submit([1] * 30, max_tokens=60)
    for _ in range(3):
        harness.step()
    whole = harness.submit([2] * prompt, max_tokens=max_tokens, n=n)
    harness.run()
    for index in range(n):
        assert len(harness.tokens(whole, index)) == max_tokens
        assert harness.end(whole, index) == Finish(FinishReason.LENGTH)
    assert len(harness.tokens(other)) == 60


# ── no livelock ───────────────────────────────────────────────────────────────────────────────


class AlwaysDisplacing(Policy):
    """Whoever is head pushes out whoever runs."""

    def displaces(self, newcomer, running):
        return True

    def victim(self, request, step):
        return (0,)


class Fickle(AlwaysDisplacing):
    """Ranks that grow from call to call, so that the head always comes before who runs."""

    def __init__(self, *, services):
        super().__init__(services=services)
        self.calls = 0

    def rank(self, request):
        self.calls += 1
        return (self.calls,)


ALWAYS_DISPLACING = [AlwaysDisplacing, Fickle]
BLOCKS = 20


class Progress:
    """Positions computed for the first time, and preemptions, as the steps go by."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.computed: set[tuple[int, int, int]] = set()
        self.again = 0

    def step(self) -> bool:
        """One step; at least one position of net progress for each preemption so far."""
        batches = self.harness.backend.batches
        before = len(batches)
        worked = self.harness.step()
        for batch in batches[before:]:
            for row in batch.rows:
                for position in range(row.start, row.start + row.count):
                    key = (row.request, row.index, position)
                    self.again += key in self.computed
                    self.computed.add(key)
        assert self.harness.scheduler.counters.preemptions <= len(self.computed)
        return worked


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("policy", ODD_POLICIES + ALWAYS_DISPLACING)
@pytest.mark.parametrize(("count", "prompt", "max_tokens"), [(2, 64, 129), (3, 48, 81)])
def test_requests_that_do_not_fit_together_take_turns_with_progress(
    policy, depth: int, count: int, prompt: int, max_tokens: int
) -> None:
    """Two of 60% of the pool each, or three of 40%."""
    blocks = -(-(prompt + max_tokens - 1) // 16)
    assert blocks == (BLOCKS * 6 // 10 if count == 2 else BLOCKS * 4 // 10)
    harness = Harness(blocks=BLOCKS, budget=64, rows=8, policy=policy, depth=depth)
    requests = [harness.submit(prompt, max_tokens=max_tokens) for _ in range(count)]
    progress = Progress(harness)
    while progress.step() or harness.scheduler.live:
        pass
    for request in requests:
        expected = [request * 1000 + i % prompt for i in range(max_tokens)]
        assert harness.tokens(request) == expected
    if policy not in ALWAYS_DISPLACING:
        assert progress.again <= len(progress.computed), "recomputed more than the work itself"


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("policy", ALWAYS_DISPLACING)
def test_displacing_everybody_all_the_time_ends(policy, depth: int) -> None:
    harness = Harness(blocks=SMALL, rows=2, policy=policy, depth=depth)
    requests = [harness.submit(20, max_tokens=20) for _ in range(6)]
    harness.run(limit=200)
    for request in requests:
        assert harness.tokens(request) == [request * 1000 + i for i in range(20)]


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("policy", ALWAYS_DISPLACING)
def test_nobody_displaces_after_it_gave_way_in_the_same_step(policy, depth: int) -> None:
    harness = Harness(blocks=SMALL, rows=2, policy=policy, depth=depth)
    for _ in range(6):
        harness.submit(20, max_tokens=20)
    harness.run()
    gone: set[int] = set()
    for entry in harness.log.entries:
        if entry[0] == "step":
            gone = set()
        elif entry[0] == "displace":
            assert entry[2] not in gone
            gone.add(entry[1])


# ── prompts in chunks ─────────────────────────────────────────────────────────────────────────


@lru_cache
def beside_decodes(budget: int, prompt: int, logprobs: int | None, depth: int) -> Harness:
    """Three requests decode; then one comes with a prompt of so many tokens."""
    harness = engine(BIG, budget=budget, rows=4, depth=depth)
    rng = random.Random(prompt)
    for number in range(3):
        harness.submit(prompt_of(rng, 4), 40, RowControls(seed=number, logprobs=logprobs))
    for _ in range(4):
        harness.step()
    harness.submit(prompt_of(rng, prompt), 10, RowControls(temperature=0.0, logprobs=logprobs))
    harness.run()
    return harness


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("logprobs", [None, 2])
@pytest.mark.parametrize("prompt", [31, 32, 33, 200])
@pytest.mark.parametrize("budget", [16, 32])
def test_a_prompt_in_chunks_beside_decodes_says_what_it_says_in_one_piece(
    budget: int, prompt: int, logprobs: int | None, depth: int
) -> None:
    whole = beside_decodes(512, prompt, logprobs, 0)
    harness = beside_decodes(budget, prompt, logprobs, depth)
    assert said(harness) == said(whole)
    chunks = [entry[3] for entry in harness.log.entries if entry[:2] == ("chunk", 4)]
    assert sum(chunks) == prompt
    assert chunks == [budget - 3] * (prompt // (budget - 3)) + [prompt % (budget - 3)]
    assert harness.scheduler.counters.prompt_tokens == 3 * 4 + prompt
    assert harness.scheduler.counters.generated_tokens == 3 * 40 + 10


@pytest.mark.parametrize("depth", [0, 1])
def test_a_prompt_alone_is_cut_by_the_budget_and_says_nothing_before_its_end(depth: int) -> None:
    harness = engine(BIG, budget=16, depth=depth)
    request = harness.submit([3] * 31, max_tokens=2)
    harness.step()
    counts = []
    while not harness.outputs[request, 0]:
        counts.append(harness.scheduler.counters.prompt_tokens)
        harness.step()
    counts.append(harness.scheduler.counters.prompt_tokens)
    assert sorted(set(counts) - {0}) == [16, 31]
    assert harness.log.entries[2:4] == [("admit", 1, False, 0), ("chunk", 1, 0, 16)]
