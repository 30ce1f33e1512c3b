"""Requests with several sequences: one ticket, one prefill, preempted and ended as a whole."""

import pytest
from support.engines import GREEDY, Harness
from support.odd_policies import ODD_POLICIES

from engine.outputs import FinishReason
from policies.base import Policy


def echoed(prompt: int, count: int) -> list[int]:
    return [1000 + i % prompt for i in range(count)]


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("prompt", [1, 15, 16, 17, 100])
@pytest.mark.parametrize("budget", [16, 64])
def test_the_prompt_is_computed_once_and_shared_with_the_siblings(depth, prompt, budget) -> None:
    harness = Harness(depth=depth, budget=budget)
    request = harness.submit(prompt, max_tokens=5, n=4)
    harness.run()
    for index in range(4):
        assert harness.tokens(request, index) == echoed(prompt, 5)
    # Each sibling computes the last prompt token for itself, to have logits to sample from.
    assert harness.scheduler.counters.prompt_tokens == prompt + 3
    # Of four owners of a block that is partly filled, three copy it before they write.
    copies = [pair for batch in harness.backend.batches for pair in batch.copies]
    assert len(copies) == (3 if (prompt - 1) % 16 else 0)


def test_rows_and_blocks_are_reserved_together_at_admission() -> None:
    harness = Harness(rows=4, budget=16)
    group = harness.submit(40, max_tokens=4, n=3)
    second = harness.submit(4, max_tokens=4, n=2)
    third = harness.submit(4, max_tokens=4)
    harness.step()
    running = {view.id for view in (r.view for r in harness.scheduler.roster.running.values())}
    assert running == {group}, "two rows are not free while the group's siblings wait to fork"
    harness.run()
    assert len(harness.tokens(second, 1)) == len(harness.tokens(third)) == 4


def test_eight_samples_of_a_long_prompt_take_few_blocks_more_than_one() -> None:
    blocks = {}
    for n in (1, 8):
        harness = Harness(blocks=200, budget=1024, model_len=2048)
        harness.submit(1000, max_tokens=9, n=n)
        harness.step()
        harness.step()
        blocks[n] = harness.pool.total - harness.pool.free
    assert blocks[8] < 1.2 * blocks[1]


@pytest.mark.parametrize("depth", [0, 1])
def test_the_prompt_stays_until_all_have_copied_it_when_the_first_ends_at_once(depth) -> None:
    harness = Harness(depth=depth, budget=40)
    request = harness.submit(40, max_tokens=1, n=5)
    harness.run()
    assert [harness.tokens(request, index) for index in range(5)] == [[1000]] * 5
    assert harness.scheduler.counters.prompt_tokens == 40 + 4
    assert harness.pool.free == harness.pool.total


@pytest.mark.parametrize("policy", ODD_POLICIES)
@pytest.mark.parametrize("depth", [0, 1])
def test_groups_in_a_tiny_pool_are_preempted_as_a_whole_and_lose_nothing(policy, depth) -> None:
    harness = Harness(policy=policy, depth=depth, blocks=16, budget=32, rows=8)
    requests = [harness.submit(20, max_tokens=30, n=1 + number % 3) for number in range(6)]
    harness.run()
    for number, request in enumerate(requests):
        for index in range(1 + number % 3):
            finish = harness.end(request, index)
            if finish.reason is FinishReason.REJECTED:
                continue
            tokens = harness.tokens(request, index)
            assert tokens == [request * 1000 + i % 20 for i in range(30)]
    for entry in harness.log.entries:
        assert entry[0] != "preempt" or entry[1] in requests


def test_the_pool_is_tight_enough_that_groups_are_preempted() -> None:
    harness = Harness(blocks=16, budget=32, rows=8)
    for number in range(6):
        harness.submit(20, max_tokens=30, n=1 + number % 3)
    harness.run()
    assert harness.scheduler.counters.preemptions > 0


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("steps", range(8))
def test_an_abort_in_the_middle_frees_all_sequences(depth: int, steps: int) -> None:
    harness = Harness(depth=depth, budget=16)
    request = harness.submit(40, max_tokens=20, n=4)
    for _ in range(steps):
        harness.step()
    harness.abort(request)
    harness.run()
    assert harness.pool.free == harness.pool.total
    assert harness.scheduler.counters.cancelled == 1


def test_sequences_end_one_by_one_and_the_others_go_on() -> None:
    harness = Harness()
    request = harness.submit(20, max_tokens=10, n=3)
    for _ in range(4):
        harness.step()
    harness.finish(request, tokens=2, index=1)
    harness.run()
    assert harness.end(request, 1).reason is FinishReason.STOP
    for index in (0, 2):
        assert harness.tokens(request, index) == echoed(20, 10)


class LateForks(Policy):
    """Leaves little for prompts, so that forks take their time."""

    def share(self, step):
        return super().share(step).__class__(decode=step.budget, prompt=1, chunk=1)


def test_a_sibling_that_ends_before_it_forked_holds_nothing_back() -> None:
    harness = Harness(policy=LateForks, budget=8, rows=8)
    request = harness.submit(20, max_tokens=2, n=3, controls=GREEDY)
    for _ in range(21):
        harness.step()
    harness.finish(request, tokens=0, index=2)
    harness.run()
    assert harness.tokens(request, 1) == echoed(20, 2)
    assert harness.pool.free == harness.pool.total
