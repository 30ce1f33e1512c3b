"""Guesses are verified in the step that computes a decode anyway, and change no token."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from support.drafts import Guesser, repeating
from support.engines import GREEDY, Harness
from support.grammars import Expecting
from support.hashed import HashedBackend

from engine.backends.simulated import SimulatedBackend
from engine.batch import Rows
from engine.beam_search import BeamSearch
from engine.controls import RowControls
from engine.cost import LinearCost
from engine.outputs import FinishReason, Output
from engine.plan import Plan
from engine.prompt_lookup import Outlook
from engine.request import Sequence
from engine.speculation import MOST_ROWS, PromptLookup, SpeculationSettings
from policies.base import Share
from policies.fcfs import FCFS

CHEAP = LinearCost(base=4e-3, decode=4e-4, chunk_context=1e-7)
"""About what the default model takes on two cores: a step of a few tokens reads all weights."""

PROMPT = [5, 6, 7, 8, 9, 10, 11]


def guessing(wrong: int = 0, most: int = 8, **fields) -> Harness:
    return Harness(drafter=Guesser(repeating, wrong, most), **fields)


def by_lookup(cost: LinearCost = CHEAP, **fields) -> Harness:
    return Harness(drafter=PromptLookup(SpeculationSettings(cost, 15, 3)), **fields)


def answer(length: int, prompt: list[int] = PROMPT) -> list[int]:
    return [prompt[i % len(prompt)] for i in range(length)]


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("wrong", [0, 3, 8])
def test_the_answer_is_what_it_is_without_guesses(depth, wrong) -> None:
    harness = guessing(wrong, depth=depth)
    request = harness.submit(PROMPT, 60)
    harness.run()
    assert harness.tokens(request) == answer(60)
    counters = harness.scheduler.counters
    assert counters.generated_tokens == 60
    assert counters.draft_tokens > 0
    assert counters.accepted_tokens == 60 - counters.steps
    assert (counters.accepted_tokens == 0) == (wrong == 8)


def test_a_text_that_repeats_its_prompt_takes_few_steps() -> None:
    harness = by_lookup()
    request = harness.submit(PROMPT, 100)
    assert harness.run() < 25
    assert harness.tokens(request) == answer(100)


def test_at_depth_one_who_can_be_guessed_waits_for_its_token_and_takes_few_steps_too() -> None:
    harness = by_lookup(depth=1)
    requests = [harness.submit(PROMPT, 100), harness.submit(20, 100)]
    harness.run()
    assert harness.scheduler.counters.steps < 60
    assert harness.tokens(requests[0]) == answer(100)


def test_a_row_of_guesses_has_logits_for_each_of_its_tokens() -> None:
    harness = by_lookup()
    harness.submit(PROMPT, 100)
    harness.run()
    wide = [batch for batch in harness.backend.batches if batch.rows.verified]
    assert wide
    for batch in wide:
        assert batch.sample_rows.tolist() == [0] * batch.tokens
        assert batch.logit_rows.tolist() == list(range(batch.tokens))
        assert batch.shape.decodes == batch.tokens
        assert batch.shape.prefill == 0


def test_blocks_that_were_looked_ahead_into_are_given_back_at_once() -> None:
    harness = guessing(wrong=8, most=40)
    harness.submit(15, 100)
    taken = 0
    while harness.step():
        held = harness.pool.total - harness.pool.free
        sequences = [s for r in harness.scheduler.roster.requests.values() for s in r.sequences]
        assert held == sum(-(-s.computed // 16) for s in sequences)
        batch = harness.backend.batches[-1]
        taken = max(taken, len(batch.kv_indices) - held)
    assert taken >= 1
    assert harness.pool.free == harness.pool.total


def test_nobody_gives_way_for_a_guess() -> None:
    """Three requests in nine blocks: guesses find no block to spare, and take none from others."""
    harness = guessing(most=40, blocks=9, budget=64)
    requests = [harness.submit(20, 24) for _ in range(3)]
    harness.run()
    assert harness.scheduler.counters.preemptions == 0
    assert all(len(harness.tokens(request)) == 24 for request in requests)


def test_guesses_take_only_what_prompts_leave_of_the_budget() -> None:
    harness = guessing(most=40, budget=16)
    harness.submit(PROMPT, 60)
    harness.step()
    harness.step()
    assert harness.backend.batches[-1].tokens > 1
    harness.submit(150, 1)
    while not harness.scheduler.roster.prefilling:
        harness.step()
    while harness.scheduler.roster.prefilling:
        harness.step()
        assert harness.backend.batches[-1].tokens <= 16
        assert len(harness.backend.batches[-1].rows.verified) <= (
            not harness.scheduler.roster.prefilling
        )


class FewDecodes(FCFS):
    def share(self, step) -> Share:
        return Share(decode=3, prompt=step.budget, chunk=step.budget)


def test_guesses_count_in_the_share_that_a_policy_gives_decodes() -> None:
    harness = guessing(most=40, policy=FewDecodes)
    harness.submit(PROMPT, 60)
    harness.run()
    sizes = {batch.tokens for batch in harness.backend.batches[1:]}
    assert max(sizes) == 3


def test_the_end_of_a_text_ends_it_in_the_midst_of_guesses() -> None:
    harness = guessing(most=40)
    stop = replace(GREEDY, stop_ids=frozenset({9}), logprobs=1)
    request = harness.submit(PROMPT, 60, stop)
    harness.run()
    assert harness.tokens(request) == [5, 6, 7, 8, 9]
    assert harness.end(request).stop_token == 9
    outputs = harness.outputs[request, 0]
    assert [len(output.logprobs) for output in outputs] == [len(o.tokens) for o in outputs]


def test_no_more_tokens_come_than_were_asked_for() -> None:
    harness = guessing(most=40)
    request = harness.submit(PROMPT, 11)
    harness.run()
    assert harness.tokens(request) == answer(11)
    assert harness.end(request).reason is FinishReason.LENGTH


def test_a_stop_string_ends_a_sequence_whose_guesses_are_in_flight() -> None:
    harness = guessing(depth=1)
    request, other = harness.submit(PROMPT, 60), harness.submit(20, 60)
    for _ in range(4):
        harness.step()
    harness.finish(request, tokens=2)
    harness.run()
    assert harness.end(request).reason is FinishReason.STOP
    assert len(harness.tokens(other)) == 60


def test_only_tokens_that_were_accepted_are_cached() -> None:
    harness = guessing(wrong=3, most=40)
    request = harness.submit(PROMPT, 90)
    harness.run()
    again = harness.submit(PROMPT + harness.tokens(request), 1)
    harness.run()
    assert harness.outputs[again, 0][0].cached == 96  # the shadow cache was looked into
    assert harness.tokens(again) == [5]


@pytest.mark.parametrize(
    "controls",
    [
        replace(GREEDY, prompt_logprobs=0),
        replace(GREEDY, grammar=Expecting(lambda place: PROMPT[place % len(PROMPT)])),
    ],
    ids=["prompt logprobs", "grammar"],
)
def test_who_needs_one_token_at_a_time_is_not_guessed(controls) -> None:
    harness = guessing()
    request = harness.submit(PROMPT, 20, controls)
    harness.run()
    assert harness.tokens(request) == answer(20)
    assert harness.scheduler.counters.drafts == 0


def test_beams_are_not_guessed() -> None:
    harness = guessing()
    harness.submit(PROMPT, 8, beams=BeamSearch(2))
    harness.run()
    assert harness.scheduler.counters.drafts == 0


@pytest.mark.parametrize("depth", [0, 1])
def test_each_sample_looks_back_on_the_guesses_before_it(depth) -> None:
    """Each with the history that it would have alone, so that penalties and bad words are right."""
    few = frozenset({1, 2, 3})
    controls = RowControls(
        seed=5, allowed_ids=few, repetition_penalty=1.2, bad_words=((1, 2), (3, 3)), logprobs=1
    )

    def answers(drafter: Guesser | None) -> list[list[Output]]:
        harness = Harness(backend=HashedBackend(64), drafter=drafter, depth=depth)
        requests = [harness.submit([1, 2, seed], 80, controls, n=2) for seed in range(6)]
        harness.run()
        accepted = harness.scheduler.counters.accepted_tokens
        assert (accepted > 10) == (drafter is not None)
        return [harness.outputs[request, index] for request in requests for index in (0, 1)]

    def anything(sequence: Sequence, place: int) -> int:
        return 1 + (place + sequence.index) % 3

    expected, found = answers(None), answers(Guesser(anything, 0))
    for ours, theirs in zip(found, expected, strict=True):
        assert [t for o in ours for t in o.tokens] == [t for o in theirs for t in o.tokens]
        assert [p for o in ours for p in o.logprobs] == [p for o in theirs for p in o.logprobs]


# ── how much is guessed ───────────────────────────────────────────────────────────────────────


def planned(rows: int, cost: LinearCost, most: int = 128) -> dict[Sequence, list[int]]:
    """What is guessed in a step of so many sequences that all repeat themselves."""
    harness = by_lookup(cost, rows=64, budget=128, blocks=400)
    drafter = PromptLookup(SpeculationSettings(cost, 15, 3))
    for number in range(rows):
        harness.submit([100 * number + i for i in range(7)], 200)
    harness.scheduler.planner.speculation = None
    for _ in range(90):
        harness.step()
    for sequence in harness.scheduler.roster.decoding:  # it has been watched all the time
        sequence.outlook = Outlook(3)
        for known in range(len(sequence.tokens)):
            sequence.outlook.follow(sequence.tokens[:known])
    return dict(drafter.propose(list(harness.scheduler.roster.decoding), most))


def test_alone_a_text_is_guessed_as_far_as_it_may_be() -> None:
    (draft,) = planned(1, CHEAP).values()
    assert len(draft) == 15


def test_the_more_decode_the_less_is_guessed() -> None:
    counts = [sum(map(len, planned(rows, CHEAP).values())) / rows for rows in (1, 2, 8, 32)]
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] < 2


def decode(rows: Rows) -> int:
    """How many go on with their answer, of prompts of ten tokens."""
    return sum(start >= 10 for start in rows.starts)


def test_nothing_is_guessed_in_a_full_batch() -> None:
    harness = guessing(rows=64, budget=128, blocks=800)
    for _ in range(MOST_ROWS + 1):
        harness.submit(10, 60)
    harness.run()
    full = [batch.rows for batch in harness.backend.batches if decode(batch.rows) > MOST_ROWS]
    assert len(full) > 5
    assert not any(rows.verified for rows in full)


def test_nothing_is_guessed_where_a_token_costs_as_much_as_a_step() -> None:
    assert planned(1, LinearCost(decode=1e-3)) == {}


def test_others_are_not_held_up_for_long() -> None:
    cost = LinearCost(base=4e-3, decode=1e-4)
    alone, step = cost.seconds(0, 2, 0, 0), 0.0
    step = alone + 1e-4 * sum(map(len, planned(2, cost, most=100).values()))
    assert alone < step <= 1.5 * alone


def test_the_budget_goes_to_the_best_guesses() -> None:
    assert sum(map(len, planned(2, CHEAP, most=3).values())) == 3


def test_a_simulated_server_guesses_too() -> None:
    """Its texts are the alphabet over and over."""
    harness = Harness(
        backend=SimulatedBackend(CHEAP, 64, wait=lambda seconds: None),
        drafter=PromptLookup(SpeculationSettings(CHEAP, 15, 3)),
    )
    request = harness.submit(10, 120)
    assert harness.run() < 60
    assert harness.tokens(request) == [97 + i % 26 for i in range(120)]


def test_a_plan_forgets_no_token_of_its_guesses() -> None:
    plan = Plan(0, 0.0, 10)
    harness = Harness()
    harness.submit(3, 5)
    harness.step()
    (sequence,) = harness.scheduler.roster.decoding
    plan.grant_one_each([sequence])
    plan.widen(sequence, [1, 2, 3])
    assert (plan.tokens, plan.left, plan.rows) == (4, 6, 1)
    assert plan.ordered() == ([sequence], [4])


def test_guesses_at_random_times_keep_every_text() -> None:
    rng = random.Random(0)
    harness = guessing(wrong=2, most=12, blocks=24, rows=6, budget=24, depth=1)
    asked = {}
    for _ in range(200):
        if rng.random() < 0.2:
            length = rng.randrange(1, 30)
            asked[harness.submit(list(range(100, 100 + length)), rng.randrange(1, 50))] = length
        if asked and rng.random() < 0.05:
            harness.abort(rng.choice(list(asked)))
        harness.step()
    harness.run()
    for request, length in asked.items():
        tokens = harness.tokens(request)
        assert tokens == [100 + i % length for i in range(len(tokens))]
