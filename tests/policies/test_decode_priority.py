"""decode-priority: decodes come first, chunks keep to the target, and both sides go on.

All with the guard off: these are the policy's own bounds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engines import GREEDY, Harness
from support.grammars import Expecting
from support.simulated import simulated

from engine.cost import LinearCost, StepShape
from engine.inbox import Abort
from policies.base import Services
from policies.decode_priority import DecodePriority

COST = LinearCost(
    base=0.004, prompt_token=0.0005, decode=0.0003, kv_read=0.000_002, chunk_context=0.000_001
)


@dataclass(frozen=True)
class Traffic:
    """A request: `shared` of its prompt tokens are those that others begin with."""

    prompt: int
    shared: int
    max_tokens: int
    n: int
    gap: int
    leaves_after: int | None


TRAFFIC = st.lists(
    st.builds(
        Traffic,
        prompt=st.integers(1, 90),
        shared=st.sampled_from([0, 0, 16, 48]),
        max_tokens=st.integers(1, 30),
        n=st.sampled_from([1, 1, 1, 2]),
        gap=st.integers(0, 4),
        leaves_after=st.sampled_from([None, None, None, 3, 12]),
    ),
    min_size=1,
    max_size=12,
)


class Watch:
    """Steps through traffic and looks at each step's batch.

    waits: for each sequence that decodes, the steps since its last token in which it got none
    although blocks were free. prompts: steps in which prompts that run got nothing.
    """

    def __init__(self, *, slack: int, tbt_s: float, window: int = 16, **setup: int) -> None:
        policy = partial(DecodePriority, tbt_s=tbt_s, decode_slack=slack, window=window)
        self.harness = simulated(COST, policy=policy, **setup)
        self.tbt_s, self.slack, self.window = tbt_s, slack, window
        self.budget = setup["budget"]
        self.waits: dict[tuple[int, int], int] = {}
        self.prompt_waits = 0
        self.most_decodes = 0

    def tick(self) -> bool:
        harness = self.harness
        scheduler = harness.scheduler
        leaving = {message.id for message in harness.mail if isinstance(message, Abort)}
        decoding, prefilling = (
            {(s.request.id, s.index) for s in sequences if s.request.id not in leaving}
            for sequences in (scheduler.roster.decoding, scheduler.roster.prefilling)
        )
        preemptions = scheduler.counters.preemptions
        before = len(harness.backend.batches)
        worked = harness.step()
        if len(harness.backend.batches) > before:
            tight = scheduler.counters.preemptions > preemptions or harness.pool.free < 2
            self._look(harness.backend.batches[-1], decoding, prefilling, tight)
        return worked

    def _look(self, batch, decoding, prefilling, tight: bool) -> None:
        rows = {(row.request, row.index): row for row in batch.rows}
        self.most_decodes = max(self.most_decodes, len(decoding))
        bound = -(-self.most_decodes // self.budget) + self.slack
        self.waits = {key: self.waits.get(key, 0) for key in decoding}
        for key in decoding:
            self.waits[key] = 0 if tight or key in rows else self.waits[key] + 1
            assert self.waits[key] <= bound, f"{key} waited through {self.waits[key]} steps"
        chunks = [row for key, row in rows.items() if key not in decoding]
        if prefilling and not chunks and not tight:
            self.prompt_waits += 1
            most = max(self.window, -(-self.most_decodes // self.budget) + 1)
            assert self.prompt_waits <= most, "prompts that run got nothing"
        else:
            self.prompt_waits = 0
        seconds = COST.of(StepShape.of(batch.rows))
        if decoding and seconds > self.tbt_s * (1 + 1e-9):
            alone = [row for key, row in rows.items() if key in decoding]
            least = COST.seconds(0, len(alone) + 1, sum(r.start + 1 for r in alone) + 1, 0)
            granted = sum(row.count for row in chunks)
            assert not chunks or (least > self.tbt_s * (1 - 1e-9) and granted <= 16), seconds


def play(watch: Watch, traffic: list[Traffic]) -> None:
    harness = watch.harness
    leaving: list[tuple[int, int]] = []
    ticks = 0

    def tick() -> bool:
        nonlocal ticks
        for when, request in leaving:
            if when == ticks:
                harness.abort(request)
        ticks += 1
        return watch.tick()

    for number, each in enumerate(traffic, start=1):
        for _ in range(each.gap):
            tick()
        shared = min(each.shared, each.prompt)
        own = [number * 1000 + i for i in range(each.prompt - shared)]
        request = harness.submit(
            [7_000_000 + i for i in range(shared)] + own, each.max_tokens, n=each.n
        )
        if each.leaves_after is not None:
            leaving.append((ticks + each.leaves_after, request))
    for _ in range(4_000):
        if not tick() and not harness.mail and harness.scheduler.live == 0:
            return
    raise AssertionError("a request never ended")


@settings(max_examples=60)
@given(
    traffic=TRAFFIC,
    slack=st.integers(0, 2),
    tbt_ms=st.sampled_from([4, 6, 12, 40]),
    blocks=st.integers(14, 40),
    budget=st.sampled_from([1, 2, 5, 24, 64]),
    rows=st.integers(2, 12),
    depth=st.integers(0, 1),
)
def test_decodes_and_prompts_both_go_on_and_steps_keep_to_the_target(
    traffic, slack, tbt_ms, blocks, budget, rows, depth
) -> None:
    watch = Watch(
        slack=slack, tbt_s=tbt_ms / 1000, blocks=blocks, budget=budget, rows=rows, depth=depth
    )
    play(watch, traffic)


def test_a_chunk_is_the_largest_that_the_target_leaves_and_shrinks_with_the_context() -> None:
    harness = simulated(
        COST, policy=partial(DecodePriority, tbt_s=0.05), blocks=80, budget=512, model_len=1200
    )
    reading = harness.submit(10, max_tokens=60)
    harness.step()
    harness.submit(900, max_tokens=1)
    counts = []
    while len(harness.tokens(reading)) < 40:
        harness.step()
        batch = harness.backend.batches[-1]
        chunk = next((row for row in batch.rows if row.request != reading), None)
        if chunk is None or chunk.samples:
            continue
        counts.append(chunk.count)
        shape = StepShape.of(batch.rows)
        assert COST.of(shape) <= 0.05
        end = chunk.start + chunk.count
        wider = COST.seconds(
            shape.prefill + 1,
            shape.decodes,
            shape.kv_read + 1,
            shape.chunk_context + end + chunk.count + 1,
        )
        assert wider > 0.05
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > counts[-1] > 1


def test_every_decode_gets_a_token_in_every_step_beside_a_long_prompt() -> None:
    harness = simulated(
        COST, policy=partial(DecodePriority, tbt_s=0.02), blocks=80, budget=512, model_len=1200
    )
    readers = [harness.submit(10, max_tokens=30) for _ in range(5)]
    harness.step()
    harness.submit(800, max_tokens=1)
    for _ in range(20):
        before = [len(harness.tokens(reader)) for reader in readers]
        harness.step()
        after = [len(harness.tokens(reader)) for reader in readers]
        assert after == [count + 1 for count in before]
    gaps = [
        later.at - sooner.at
        for reader in readers
        for sooner, later in zip(
            harness.outputs[reader, 0], harness.outputs[reader, 0][1:], strict=False
        )
    ]
    assert max(gaps[1:]) <= 0.02 + 1e-9


def test_prompts_have_a_turn_where_decodes_take_longer_than_the_target() -> None:
    policy = partial(DecodePriority, tbt_s=0.001, window=4)
    harness = simulated(COST, policy=policy, blocks=40, budget=64)
    harness.submit(10, max_tokens=60)
    while not harness.backend.batches or not harness.backend.batches[-1].rows[0].samples:
        harness.step()
    late = harness.submit(40, max_tokens=1)
    chunks = []
    while not harness.tokens(late):
        harness.step()
        rows = [row for row in harness.backend.batches[-1].rows if row.request == late]
        chunks.append(sum(row.count for row in rows))
    assert [count for count in chunks if count] == [16, 16, 8]
    assert len(chunks) <= 3 * 4 + 1


def served(harness: Harness) -> set[int]:
    return {row.request for row in harness.backend.batches[-1].rows}


@pytest.mark.parametrize("slack", [0, 1, 2])
def test_decodes_ahead_of_their_schedule_make_way_in_rotation(slack: int) -> None:
    policy = partial(DecodePriority, tbt_s=0.06, decode_slack=slack)
    harness = simulated(COST, policy=policy, blocks=80, budget=512, model_len=1200)
    readers = {harness.submit(10, max_tokens=60) for _ in range(6)}
    for _ in range(25):  # steps of 6 ms where 60 are allowed: they get ahead
        harness.step()
    harness.submit(900, max_tokens=1)
    waits = dict.fromkeys(readers, 0)
    for _ in range(6):
        harness.step()
        got = served(harness) & readers
        assert len(got) >= 6 // (slack + 1)
        assert (len(got) < 6) == (slack > 0)
        waits = {reader: 0 if reader in got else waits[reader] + 1 for reader in readers}
        assert max(waits.values()) <= slack


def test_a_decode_behind_its_schedule_does_not_make_way() -> None:
    policy = partial(DecodePriority, tbt_s=0.008, decode_slack=3)
    harness = simulated(COST, policy=policy, blocks=80, budget=512, model_len=1200)
    readers = {harness.submit(10, max_tokens=40) for _ in range(6)}
    harness.step()
    harness.submit(900, max_tokens=1)
    for _ in range(8):
        harness.step()
        assert readers <= served(harness) or not readers & served(harness)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"tbt_s": 0.0}, "tbt_s must be a positive"),
        ({"tbt_s": float("inf")}, "tbt_s must be a positive"),
        ({"decode_slack": -1}, "decode_slack must not be negative"),
        ({"window": 0}, "window must be at least 1"),
    ],
)
def test_parameters_are_checked(params, message) -> None:
    with pytest.raises(ValueError, match=message):
        DecodePriority(services=Services(COST, None), **params)


def test_it_says_what_leaves_how_much_time_for_prompts() -> None:
    harness = simulated(COST, policy=partial(DecodePriority, tbt_s=0.02), rows=1)
    harness.submit(10, max_tokens=9)
    waiting = harness.submit(10)
    harness.step()
    view, step = harness.scheduler.request(waiting).view, harness.view()
    assert harness.policy.explain(view, step) == (
        "decodes go first: 1 of them take 4.3 ms of the 20 ms that a step may take, and prompts "
        "share the rest in order of arrival"
    )


def test_chunks_leave_time_for_tokens_that_grammars_forced_on_decodes() -> None:
    harness = simulated(COST, policy=partial(DecodePriority, tbt_s=0.04), budget=128, blocks=128)
    for prompt in ([5, 6, 7], [8, 9]):
        grammar = Expecting(lambda k, p=prompt: p[k % len(p)], lambda k: 24 if k % 3 else 0)
        harness.submit(prompt, 400, replace(GREEDY, grammar=grammar))
    for _ in range(3):
        harness.step()
    late = harness.submit(400, 1)
    steps = []
    for _ in range(10):
        harness.step()
        steps.append(harness.backend.batches[-1].rows)
    assert all(len(rows) == 3 for rows in steps)
    assert not harness.end(late)
    assert max(sum(row.count for row in rows if row.request != late) for rows in steps) > 40
    assert 0.035 < max(COST.of(StepShape.of(rows)) for rows in steps) < 0.042
