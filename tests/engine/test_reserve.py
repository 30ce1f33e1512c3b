"""Reserve mode: a running sequence holds the blocks of its maximum, its own ones, all the time."""

from __future__ import annotations

import pytest
from support.engines import Harness
from support.odd_policies import ODD_POLICIES

from engine.allocation import ALLOCATIONS, PAGED, RESERVE
from engine.blocks import BlockPool, blocks_for
from engine.limits import ClassLimits
from engine.memory import KVMemory
from engine.outputs import FinishReason
from policies.base import Policy


def tables(harness: Harness) -> dict[tuple[int, int], int]:
    """Blocks of every live sequence."""
    return {
        (request.id, s.index): len(s.table)
        for request in harness.scheduler.roster.requests.values()
        for s in request.sequences
    }


def echoed(request: int, prompt: int, count: int) -> list[int]:
    return [request * 1000 + i % prompt for i in range(count)]


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize(("prompt", "max_tokens"), [(1, 1), (1, 16), (16, 1), (16, 2), (30, 40)])
def test_the_blocks_of_the_maximum_are_held_from_admission_to_the_end(
    depth, prompt, max_tokens
) -> None:
    harness = Harness(allocation=RESERVE, depth=depth, budget=8)
    request = harness.submit(prompt, max_tokens)
    maximum = blocks_for(prompt + max_tokens - 1)
    seen = set()
    while harness.step() or harness.scheduler.live:
        if harness.scheduler.live:
            seen.add(tables(harness)[request, 0])
    assert seen <= {maximum}
    assert harness.tokens(request) == echoed(1, prompt, max_tokens)
    assert harness.pool.free == harness.pool.total


def test_nobody_is_admitted_who_could_not_grow_to_the_end() -> None:
    harness = Harness(allocation=RESERVE, blocks=10)
    first = harness.submit(4, max_tokens=60)  # 4 blocks
    second = harness.submit(4, max_tokens=60)
    third = harness.submit(4, max_tokens=60)
    harness.step()
    assert tables(harness) == {(first, 0): 4, (second, 0): 4, (third, 0): 0}
    harness.run()
    assert harness.scheduler.counters.preemptions == 0
    assert harness.tokens(third) == echoed(3, 4, 60)


def test_paged_admits_more_at_once_in_the_same_pool_and_pays_with_preemptions() -> None:
    most, preemptions = {}, {}
    for name, allocation in ALLOCATIONS.items():
        harness = Harness(allocation=allocation, blocks=16, rows=16)
        for _ in range(16):
            harness.submit(4, max_tokens=60)
        running = []
        while harness.step() or harness.scheduler.live:
            running.append(harness.stats.running)
        most[name] = max(running)
        preemptions[name] = harness.scheduler.counters.preemptions
    assert most == {"paged": 16, "reserve": 4}
    assert preemptions["paged"] > preemptions["reserve"] == 0


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("prompt", [2, 15, 16, 17, 100])
def test_siblings_copy_the_prompt_and_share_nothing(depth, prompt) -> None:
    harness = Harness(allocation=RESERVE, depth=depth, budget=16)
    request = harness.submit(prompt, max_tokens=5, n=4)
    while harness.step() or harness.scheduler.live:
        live = harness.scheduler.roster.requests.values()
        held = [block for r in live for s in r.sequences for block in s.table]
        assert len(set(held)) == len(held)
    for index in range(4):
        assert harness.tokens(request, index) == echoed(1, prompt, 5)
    assert harness.scheduler.counters.prompt_tokens == prompt + 3
    copies = [pair for batch in harness.backend.batches for pair in batch.copies]
    assert len(copies) == 3 * blocks_for(prompt - 1)


@pytest.mark.parametrize("depth", [0, 1])
def test_siblings_of_a_first_one_that_ends_at_once_still_get_their_answers(depth) -> None:
    harness = Harness(allocation=RESERVE, depth=depth, budget=40)
    request = harness.submit(40, max_tokens=1, n=5)
    harness.run()
    assert [harness.tokens(request, index) for index in range(5)] == [[1000]] * 5
    assert harness.scheduler.counters.prompt_tokens == 40 + 4


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("step", range(6))
def test_a_step_that_comes_to_nothing_leaves_the_others_what_they_hold(depth, step) -> None:
    """Whoever was to copy starts again: the copy was not made."""
    harness = Harness(allocation=RESERVE, depth=depth, budget=24, rows=8, nan_rows={step: [0]})
    alone = harness.submit(8, max_tokens=6)
    group = harness.submit(20, max_tokens=6, n=3)
    late = harness.submit(30, max_tokens=6)
    harness.run()
    for request, prompt, n in ((alone, 8, 1), (group, 20, 3), (late, 30, 1)):
        for index in range(n):
            end = harness.end(request, index)
            assert end is not None
            if end.reason is not FinishReason.ERROR:
                assert harness.tokens(request, index) == echoed(request, prompt, 6)
    assert harness.pool.free == harness.pool.total


class Sprinters(Policy):
    """Short prompts push long ones out."""

    def key(self, request):
        return (request.prompt,)

    def displaces(self, newcomer, running):
        return newcomer.prompt < running.prompt

    def victim(self, request, step):
        return (-request.prompt,)


@pytest.mark.parametrize("depth", [0, 1])
def test_displacement_takes_everything_and_the_displaced_request_comes_back_whole(depth) -> None:
    harness = Harness(allocation=RESERVE, blocks=12, policy=Sprinters, depth=depth)
    first = harness.submit(40, max_tokens=20)  # the lowest ticket is displaced by nobody
    long = harness.submit(60, max_tokens=20, n=1)  # 4 and 5 blocks
    for _ in range(4):
        harness.step()
    short = harness.submit(4, max_tokens=60)
    harness.run()
    assert ("displace", long, short) in harness.log.entries
    for request, prompt, count in ((first, 40, 20), (long, 60, 20), (short, 4, 60)):
        assert harness.tokens(request) == echoed(request, prompt, count)


def test_a_class_holds_its_fraction_of_reserved_blocks_and_no_more() -> None:
    harness = Harness(
        allocation=RESERVE, blocks=16, classes={"batch": ClassLimits(max_blocks_fraction=0.5)}
    )
    batch = [harness.submit(4, max_tokens=60, slo_class="batch") for _ in range(3)]
    other = harness.submit(4, max_tokens=60)
    harness.step()
    held = tables(harness)
    assert [held[request, 0] for request in [*batch, other]] == [4, 4, 0, 4]
    harness.run()


def test_a_request_that_exceeds_the_pool_at_its_maximum_is_refused_at_the_door() -> None:
    harness = Harness(allocation=RESERVE, blocks=4)
    request = harness.submit(4, max_tokens=62)
    harness.run()
    end = harness.end(request)
    assert end is not None
    assert end.reason is FinishReason.REJECTED


def test_an_emptied_scheduler_still_reserves() -> None:
    harness = Harness(allocation=RESERVE)
    harness.scheduler.abandon(None, 0.0)  # type: ignore[arg-type]
    assert harness.scheduler.memory.allocation is RESERVE


def test_a_cache_over_reserved_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match="prefix cache"):
        KVMemory(BlockPool(4), cache=True, allocation=RESERVE)
    assert KVMemory(BlockPool(4), cache=True).allocation is PAGED


@pytest.mark.parametrize("policy", ODD_POLICIES)
def test_outputs_are_those_of_paged_mode_whatever_the_policy(policy) -> None:
    said = []
    for allocation in (PAGED, RESERVE):
        harness = Harness(allocation=allocation, blocks=24, budget=24, rows=6, policy=policy)
        requests = [harness.submit(5 + 7 * i, max_tokens=10 + i, n=1 + i % 2) for i in range(6)]
        harness.run()
        said.append([harness.tokens(r, i % 2) for i, r in enumerate(requests)])
    assert said[0] == said[1]
