"""Engines whose backend is dealt to several ranks: what they say, and what becomes of a fault."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.draft_models import draft_model
from support.engines import Harness
from support.float_parity import CLEAR, Ask, differences, said
from support.ranks import HANG_S, Gate, Ranks, ranks, wanted

from engine.backends.cpu import on_torch
from engine.backends.parallel.wanted import Wanted
from engine.backends.parallel.wire import Kind
from engine.backends.runners import ModelRunner
from engine.controls import RowControls
from engine.cost import LinearCost
from engine.errors import CollectiveFailed, ConfigurationError, GroupLost
from engine.models.files import load_weights, read_config
from engine.outputs import FailureKind, FinishReason
from engine.speculation import PromptLookup, SpeculationSettings
from tests.engine.backends.batches import Work, make_batch
from tests.engine.backends.parallel.asked import ASKS, answers
from tests.engine.models.tiny_llama import CONFIG, random_tensors, write_gguf

CHEAP, FREE = LinearCost(base=1.0), LinearCost(base=1e-6)
"""Guesses cost nothing, and neither does a draft."""

SOON = 1.0
"""Seconds: gloo notices at once that a process has ended, but not that a thread has."""

STEP = make_batch([Work([0], 0, [1, 2, 3])])


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize(
    ("blocks", "host_blocks", "n"), [(64, 0, 1), (9, 0, 1), (9, 8, 1), (64, 0, 3)]
)
def test_answers_are_those_of_one_process_whatever_moves(path, depth, blocks, host_blocks, n):
    """In few blocks requests are preempted, and offloaded where there is room; siblings copy."""
    config = read_config(path)
    single = on_torch(load_weights(path, config), config, 64)
    expected = answers(single, 64, n=n)
    with ranks(path, 2, blocks, host_blocks=host_blocks) as both:
        found = answers(both.backend, blocks, depth, n)
    parted = differences(ASKS, expected, found)
    assert parted["drawn"] <= 1


@pytest.mark.parametrize("drafting", [False, True])
def test_guesses_and_scored_prompts_are_those_of_one_process(path, drafting):
    """Whether they are looked up, or drafted by a model that rank 0 has for itself."""
    config = read_config(path)
    weights = load_weights(path, config)
    prompt = [*range(20, 32)] * 3
    asks = [
        Ask(prompt[: 30 + i], 24, RowControls(temperature=0.0, logprobs=2, prompt_logprobs=1))
        for i in range(2)
    ] + [Ask(prompt[: 25 + i], 24, RowControls(temperature=0.0, logprobs=2)) for i in range(3)]

    def run(backend: Any) -> tuple[list, list, int]:
        guessing = (
            draft_model(backend=on_torch(weights, config, 64), cost=CHEAP, draft_cost=FREE)
            if drafting
            else PromptLookup(SpeculationSettings(CHEAP, 8, 1))
        )
        harness = Harness(backend=backend, budget=48, model_len=128, drafter=guessing)
        asked = [harness.submit(ask.prompt, ask.max_tokens, ask.controls) for ask in asks]
        harness.run()
        scores = [
            [
                each.logprob
                for output in harness.outputs[request, 0]
                for each in output.prompt_logprobs
            ]
            for request in asked
        ]
        return (
            [said(harness, request) for request in asked],
            scores,
            harness.stats.counters.draft_tokens,
        )

    expected, scores, _ = run(on_torch(weights, config, 64))
    with ranks(path, 2, 64) as both:
        found, scored, guessed = run(both.backend)
    assert guessed > 0
    assert differences(asks, expected, found)["greedy"] <= 1
    assert [len(each) for each in scored] == [29, 30, 0, 0, 0]
    for ours, theirs in zip(scored, scores, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=CLEAR)


def test_followers_end_with_rank_0(path):
    with ranks(path, 4, 8) as four:
        pass
    assert [future.result(HANG_S) for future in four.ended.values()] == [None] * 3
    assert four.followers.lost is None


def test_all_have_as_many_blocks_as_the_smallest_has_room_for(path):
    others = {1: wanted(path, 2, 5, 4)}
    with ranks(path, 2, 9, host_blocks=3, others=others) as both:
        assert (both.backend.total_blocks, both.backend.host_blocks) == (5, 3)


@pytest.mark.parametrize(
    ("config", "seed", "message"),
    [
        (replace(CONFIG, norm_eps=1e-3), 0, "rank 1 differs from rank 0 in model: ModelConfig"),
        (CONFIG, 1, "rank 1 differs from rank 0 in weights: [0-9a-f]{64}, not [0-9a-f]{64}$"),
    ],
)
def test_a_rank_with_something_else_is_refused(path, tmp_path, config, seed, message):
    write_gguf(tmp_path / "other.gguf", random_tensors(config, seed), config=config)
    others = {1: wanted(tmp_path / "other.gguf", 2, 8)}
    with pytest.raises(ConfigurationError, match=message), ranks(path, 2, 8, others=others):
        pass


def test_a_rank_that_cannot_load_its_part_ends_rank_0_with_its_words(path, tmp_path):
    others = {1: Wanted(tmp_path / "nowhere.gguf")}
    with (
        pytest.raises(GroupLost, match=r"rank 1 cannot go on: ModelError.*nowhere.gguf"),
        ranks(path, 2, 8, others=others),
    ):
        pass


def test_another_format_of_the_kv_cache_is_refused(path):
    others = {1: replace(wanted(path, 2, 8), kv_dtype="bfloat16")}
    with (
        pytest.raises(ConfigurationError, match="rank 0 in KV format: bfloat16, not f"),
        ranks(path, 2, 8, others=others),
    ):
        pass


class Broken(Gate):
    """Fails before anything is computed."""

    def run(self, *step: Any) -> Any:
        raise ArithmeticError("a bit has flipped")


def broken(which: int):
    def runner(rank: int, runner: ModelRunner) -> Any:
        return Broken(runner) if rank == which else runner

    return runner


@pytest.mark.parametrize("world", [2, 4])
def test_a_follower_that_raises_is_named_with_its_last_words(path, world: int):
    with ranks(path, world, 8, hook=broken(1), timeout_s=SOON) as some:
        with pytest.raises(GroupLost, match=r"rank 1 cannot go on: ArithmeticError.'a bit has"):
            some.backend.submit(STEP)
        with pytest.raises(ArithmeticError):
            some.ended[1].result(HANG_S)
        with pytest.raises(GroupLost, match="rank 1"):  # and nothing is computed any more
            some.backend.submit(STEP)


def test_rank_0_that_raises_ends_the_others(path):
    with ranks(path, 2, 8, hook=broken(0), timeout_s=SOON) as both:
        with pytest.raises(GroupLost, match="rank 0 cannot go on: ArithmeticError"):
            both.backend.submit(STEP)
        with pytest.raises((GroupLost, CollectiveFailed)):
            both.ended[1].result(HANG_S)


def hung_up(both: Ranks) -> None:
    """What the kernel does for a process that is killed."""
    both.ends[1].close()


def test_a_follower_that_goes_while_nothing_is_computed_is_noticed_at_once(path):
    told = threading.Event()
    with ranks(path, 2, 8) as both:
        both.followers.when_one_leaves(told.set)
        hung_up(both)
        assert told.wait(HANG_S)
        assert str(both.followers.lost) == "rank 1 has ended without a word"
        with pytest.raises(GroupLost, match="rank 1 has ended without a word"):
            both.backend.submit(STEP)


def test_who_asks_late_is_told_at_once_that_one_has_gone(path):
    with ranks(path, 2, 8) as both:
        first, late = threading.Event(), threading.Event()
        both.followers.when_one_leaves(first.set)
        hung_up(both)
        assert first.wait(HANG_S)
        both.followers.when_one_leaves(late.set)
        assert late.is_set()


@pytest.mark.slow
def test_a_follower_that_does_not_come_is_waited_for_no_longer_than_the_time_out(path):
    gates: list[Gate] = []

    def gated(rank: int, runner: ModelRunner) -> Any:
        if rank != 1:
            return runner
        gates.append(Gate(runner))
        return gates[0]

    with ranks(path, 2, 8, hook=gated, timeout_s=SOON) as both:
        both.backend.submit(STEP)
        gates[0].open.clear()
        try:
            with pytest.raises(GroupLost, match="rank 1 does not answer"):
                both.backend.submit(STEP)
        finally:
            gates[0].open.set()


def test_of_four_the_one_that_fails_is_blamed_and_not_those_it_left_alone(path):
    with ranks(path, 4, 8, hook=broken(2), timeout_s=SOON) as four:
        with pytest.raises(GroupLost, match="rank 2 cannot go on"):
            four.backend.submit(STEP)
        assert four.followers.lost.rank == 2
        for rank in (1, 3):
            with pytest.raises(GroupLost, match=r"rank 0 cannot go on without rank 2, which canno"):
                four.ended[rank].result(HANG_S)


def test_a_follower_that_is_told_to_end_ends_all_in_good_order(path):
    told = threading.Event()
    with ranks(path, 2, 8) as both:
        both.followers.when_one_leaves(told.set)
        both.ends[1].tell(Kind.LEAVING)
        assert told.wait(HANG_S)
        both.backend.submit(STEP)  # whoever is being answered is answered
    assert both.followers.lost is None
    assert both.ended[1].result(HANG_S) is None


def test_a_lost_rank_ends_requests_with_an_engine_fault_and_the_log_names_it(path, caplog):
    with ranks(path, 2, 64, hook=broken(1), timeout_s=SOON) as both:
        harness = Harness(backend=both.backend, blocks=64, model_len=128)
        asked = [harness.submit(ask.prompt, ask.max_tokens, ask.controls) for ask in ASKS]
        harness.run()
        for request in asked:
            end = harness.end(request)
            assert (end.reason, end.failure.kind) == (FinishReason.ERROR, FailureKind.ENGINE_FAULT)
    assert "rank 1 cannot go on: ArithmeticError('a bit has flipped')" in caplog.text


def test_a_follower_whose_leader_goes_without_a_word_ends(path):
    with ranks(path, 2, 8) as both, ThreadPoolExecutor() as threads:
        both.backend.submit(STEP)
        for link in both.followers._links.values():
            threads.submit(link.close)
        with pytest.raises(GroupLost, match="rank 0 has ended without a word"):
            both.ended[1].result(HANG_S)
