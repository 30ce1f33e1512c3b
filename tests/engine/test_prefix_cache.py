"""The prefix cache behind the scheduler: who begins alike computes it once."""

import pytest
from support.engines import GREEDY, Harness

from engine.prefix import block_keys
from policies.base import Admitted, Policy


def computed(harness: Harness) -> int:
    return sum(batch.tokens for batch in harness.backend.batches)


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("budget", [16, 64])
@pytest.mark.parametrize("length", [15, 16, 17, 32, 48, 50])
def test_a_repeated_prompt_is_found_up_to_its_last_token(length, budget, depth) -> None:
    harness = Harness(budget=budget, depth=depth)
    prompt = list(range(100, 100 + length))
    for turn in range(3):
        request = harness.submit(prompt, max_tokens=4)
        harness.run()
        assert harness.tokens(request) == [100 + i % length for i in range(4)]
        expected = 0 if turn == 0 else (length - 1) // 16 * 16
        assert harness.outputs[request, 0][0].cached == expected
    assert harness.pool.free == harness.pool.total
    counters = harness.scheduler.counters
    assert counters.cached_tokens == 2 * ((length - 1) // 16 * 16)
    assert counters.looked_up_tokens == counters.admitted_tokens == 3 * length


def test_two_at_once_share_what_the_first_has_written_and_nothing_before() -> None:
    harness = Harness(budget=16, rows=4)
    prompt = list(range(100, 148))
    first = harness.submit(prompt, max_tokens=8)
    harness.step()
    harness.step()
    second = harness.submit(prompt, max_tokens=8)
    harness.run()
    assert harness.outputs[first, 0][0].cached == 0
    assert harness.outputs[second, 0][0].cached in (16, 32)
    assert harness.tokens(first) == harness.tokens(second)


def test_generated_tokens_are_found_in_the_next_turn_of_a_chat() -> None:
    harness = Harness()
    first = harness.submit(list(range(100, 120)), max_tokens=30)
    harness.run()
    history = [*range(100, 120), *harness.tokens(first), *range(500, 510)]
    second = harness.submit(history, max_tokens=2)
    harness.run()
    assert harness.outputs[second, 0][0].cached == 48  # the last token generated has no KV


def test_another_salt_shares_nothing() -> None:
    harness = Harness()
    prompt = list(range(100, 148))
    for salt, cached in ((b"a", 0), (b"b", 0), (b"a", 32), (b"b", 32)):
        request = harness.submit(prompt, salt=salt)
        harness.run()
        assert harness.outputs[request, 0][0].cached == cached


def test_keys_made_by_the_front_end_are_those_the_engine_would_make() -> None:
    harness = Harness()
    prompt = list(range(100, 148))
    harness.submit(prompt, prompt_keys=block_keys(prompt, b""))
    harness.run()
    request = harness.submit(prompt)
    harness.run()
    assert harness.outputs[request, 0][0].cached == 32


def test_without_the_cache_nothing_is_found() -> None:
    harness = Harness(prefix_cache=False)
    for _ in range(2):
        request = harness.submit(list(range(100, 148)))
        harness.run()
        assert harness.outputs[request, 0][0].cached == 0
    assert harness.pool.cached == 0
    assert harness.scheduler.counters.admitted_tokens == 96
    assert harness.scheduler.counters.looked_up_tokens == 0


def test_who_is_let_in_again_is_not_looked_up_again() -> None:
    harness = Harness(blocks=4)
    for _ in range(2):
        harness.submit(list(range(100, 116)), max_tokens=40)
    harness.run()
    assert harness.scheduler.counters.preemptions > 0
    assert harness.scheduler.counters.looked_up_tokens == 32


def test_cached_blocks_are_evicted_for_whoever_needs_the_whole_pool() -> None:
    harness = Harness(blocks=8)
    for number in range(20):
        base = 1000 * (number % 2)
        harness.submit([base + i for i in range(64 + number)], max_tokens=2)
        harness.run()
        assert harness.pool.free == harness.pool.total
        assert harness.stats.blocks_free == harness.pool.total, "cached blocks are not in use"
    assert harness.pool.evictions > 0
    whole = harness.submit([5000 + i for i in range(127)], max_tokens=2)
    harness.run()
    assert len(harness.tokens(whole)) == 2


def test_who_was_preempted_finds_most_of_what_it_lost() -> None:
    lost = {}
    for cache in (False, True):
        harness = Harness(blocks=8, rows=4, prefix_cache=cache)
        requests = [harness.submit(30, max_tokens=40) for _ in range(3)]
        harness.run()
        assert harness.scheduler.counters.preemptions > 0
        lost[cache] = harness.scheduler.counters.recomputed_tokens
        for request in requests:
            assert harness.tokens(request) == [request * 1000 + i % 30 for i in range(40)]
    assert lost[True] < lost[False]


class Charges(Policy):
    """Adds up what admissions charge."""

    def __init__(self, *, services):
        super().__init__(services=services)
        self.charged = 0

    def observe(self, events):
        self.charged += sum(e.first_computed for e in events if isinstance(e, Admitted))
        return ()


def test_only_tokens_that_are_computed_are_charged() -> None:
    harness = Harness(policy=Charges)
    for _ in range(2):
        harness.submit(list(range(100, 148)))
        harness.run()
    assert harness.policy.charged == 48 + 16


def test_groups_share_a_cached_prompt_too() -> None:
    harness = Harness()
    prompt = list(range(100, 148))
    harness.submit(prompt)
    harness.run()
    before = computed(harness)
    request = harness.submit(prompt, max_tokens=1, n=4, controls=GREEDY)
    harness.run()
    assert [harness.tokens(request, i) for i in range(4)] == [[100]] * 4
    assert computed(harness) - before == 16 + 3


def test_a_fault_leaves_nothing_published_that_was_not_written() -> None:
    from engine.backends.scripted import raising

    harness = Harness(budget=64, hooks={0: raising(RuntimeError("planted"))})
    prompt = list(range(100, 148))
    harness.submit(prompt)
    harness.run()
    assert harness.pool.cached == 0
    request = harness.submit(prompt)
    harness.run()
    assert harness.outputs[request, 0][0].cached == 0
    assert harness.tokens(request) == [100, 101, 102, 103]
