"""A draft model's guesses make steps fewer, change no token, and leave nothing behind."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest
from support.draft_models import SMALL, TARGET, draft_model, wrong_in
from support.engines import GREEDY, Harness
from support.hashed import HashedBackend

from engine.backends.scripted import ScriptedBackend, echo, raising
from engine.backends.simulated import SimulatedBackend, alphabet
from engine.batch import Batch
from engine.clock import VirtualClock
from engine.controls import RowControls
from engine.cost import FittedCost, LinearCost
from engine.drafting.model import MEASURE_EVERY, TRY_EVERY, DraftModel, DraftSettings
from engine.outputs import Failure, FailureKind, FinishReason

PROMPT = [5, 6, 7, 8, 9, 10, 11]


def answer(length: int, prompt: list[int] = PROMPT) -> list[int]:
    return [prompt[i % len(prompt)] for i in range(length)]


def empty(drafter: DraftModel) -> bool:
    """Whether nothing is held for anybody; what is cached is nobody's."""
    return not drafter.memory.drafts and drafter.memory.pool.free == drafter.memory.pool.total


def batches(drafter: DraftModel) -> list[Batch]:
    return drafter._steps._backend.batches


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("wrong", [0, 4, 8])
def test_the_answer_is_what_it_is_without_guesses(depth, wrong) -> None:
    drafter = draft_model(wrong)
    harness = Harness(drafter=drafter, depth=depth)
    request = harness.submit(PROMPT, 100)
    harness.run()
    assert harness.tokens(request) == answer(100)
    counters = harness.scheduler.counters
    assert counters.draft_tokens > 0
    assert (counters.accepted_tokens == 0) == (wrong == 8)
    assert empty(drafter)


def test_a_model_that_is_always_right_guesses_as_far_as_it_may() -> None:
    drafter = draft_model()
    harness = Harness(drafter=drafter)
    harness.submit(PROMPT, 200)
    assert harness.run() < 30
    assert max(len(batch.token_ids) for batch in harness.backend.batches) > 12


@pytest.mark.parametrize("tokens", [1, 4])
def test_it_guesses_no_more_than_it_may(tokens) -> None:
    harness = Harness(drafter=draft_model(tokens=tokens))
    harness.submit(PROMPT, 50)
    harness.run()
    steps = harness.backend.batches[1:]
    assert max(len(batch.token_ids) for batch in steps) == 1 + tokens


def test_a_model_that_is_always_wrong_is_soon_asked_only_now_and_then() -> None:
    drafter = draft_model(wrong=8)
    harness = Harness(drafter=drafter)
    harness.submit(PROMPT, 400)
    harness.run()
    assert 400 / TRY_EVERY - 2 < harness.scheduler.counters.drafts < 400 / TRY_EVERY + 12


def test_it_is_asked_again_when_its_guesses_come_true() -> None:
    """Wrong for 100 tokens, then right: it is tried, found right, and trusted again."""

    def says(row) -> int:
        return row.tokens[(row.position - row.prompt_length) % row.prompt_length] * (
            row.position > 107
        )

    drafter = draft_model(backend=ScriptedBackend(64, says))
    harness = Harness(drafter=drafter)
    request = harness.submit(PROMPT, 300)
    steps = harness.run()
    assert harness.tokens(request) == answer(300)
    assert steps < 100 + 2 * TRY_EVERY + 40


def test_the_price_of_drafting_counts() -> None:
    """A draft as slow as the model itself is not worth asking."""
    drafter = draft_model(draft_cost=TARGET)
    harness = Harness(drafter=drafter)
    harness.submit(PROMPT, MEASURE_EVERY)
    harness.run()
    assert not batches(drafter)
    harness.submit(PROMPT, 400)
    harness.run()
    assert 3 <= len(batches(drafter)) <= 4, "now and then it is measured again"


def test_the_more_decode_the_less_is_guessed() -> None:
    means = []
    for rows in (1, 2, 8, 32):
        harness = Harness(drafter=draft_model(blocks=400), rows=64, blocks=400, budget=128)
        for number in range(rows):
            harness.submit([100 * number + i for i in range(7)], 100)
        harness.run()
        means.append(harness.scheduler.counters.draft_tokens / rows)
    assert means == sorted(means, reverse=True)
    assert means[-1] < means[0] / 3


def test_nothing_is_computed_for_guesses_that_would_not_pay() -> None:
    """In a full batch the draft model does not even catch up."""
    drafter = draft_model(blocks=400, cost=LinearCost(base=1e-3, decode=1e-3))
    harness = Harness(drafter=drafter, rows=20, blocks=400, budget=128)
    for _ in range(20):
        harness.submit(30, TRY_EVERY - 8)
    harness.run()
    assert not batches(drafter)


# ── its own memory of what is known ───────────────────────────────────────────────────────────


def test_a_long_prompt_is_computed_in_pieces_and_guessed_when_it_has_caught_up() -> None:
    drafter = draft_model(blocks=64, piece=32)
    harness = Harness(drafter=drafter, budget=256, blocks=64)
    request = harness.submit(list(range(100, 300)), 60)
    harness.run()
    assert harness.tokens(request) == list(range(100, 160))
    sizes = [len(batch.token_ids) for batch in batches(drafter)]
    assert max(sizes) <= 32 + 2
    caught_up = next(i for i, batch in enumerate(batches(drafter)) if batch.rows.samples[0])
    assert caught_up == 6
    assert harness.scheduler.counters.accepted_tokens > 30


def test_beside_others_a_piece_takes_no_longer_than_a_part_of_their_step() -> None:
    slow = replace(SMALL, prompt_token=1e-4)
    drafter = draft_model(blocks=200, draft_cost=slow)
    harness = Harness(drafter=drafter, budget=512, blocks=200)
    for start in (0, 1000):
        harness.submit(list(range(start, start + 400)), 60)
    harness.run()
    pieces = [batch for batch in batches(drafter) if batch.shape.prefill > 4]
    assert pieces
    for batch in pieces:
        assert slow.of(batch.shape) <= 0.6 * TARGET.seconds(0, 2, 1000, 0)


def test_a_wrong_guess_is_cut_back_to_what_is_agreed_and_no_more() -> None:
    """Behind wrong guesses one token is computed anew, and two where all were right."""
    drafter = draft_model(wrong=1)
    harness = Harness(drafter=drafter)
    harness.submit(PROMPT, 100)
    harness.run()
    first, *others = [batch.rows for batch in batches(drafter)]
    assert first.counts == [8]
    assert {rows.counts[0] for rows in others} == {1, 2}
    again = sum(b.starts[0] <= a.starts[0] for a, b in pairwise(others))
    assert 0 < again < len(others) / 2


def test_blocks_behind_wrong_guesses_are_given_back_even_if_nothing_more_is_guessed() -> None:
    """A text is guessed far, all at once wrongly, and then so many come that guesses do not pay."""
    for length in range(1, 17):
        lies: list[int] = []
        drafter = draft_model(
            blocks=100, backend=ScriptedBackend(100, lambda row, lies=lies: echo(row) + sum(lies))
        )
        harness = Harness(drafter=drafter, rows=32, blocks=200, budget=256)
        request = harness.submit(length, 150)
        while len(harness.tokens(request)) < 60:
            harness.step()
        lies.append(1)
        for _ in range(30):
            harness.submit(5, 20)
        drafts = harness.scheduler.counters.drafts
        harness.step()
        harness.step()
        harness.step()  # the harness checks after each step
        assert harness.scheduler.counters.drafts <= drafts + 1


def test_siblings_and_followers_share_what_the_draft_has_computed() -> None:
    drafter = draft_model()
    harness = Harness(drafter=drafter, budget=128)
    prompt = list(range(100, 164))
    harness.submit(prompt, 20)
    harness.run()
    first = len(batches(drafter))
    harness.submit(prompt, 20, n=2)
    harness.run()
    starts = [start for batch in batches(drafter)[first:] for start in batch.rows.starts]
    assert min(starts) == 64
    assert empty(drafter)


@pytest.mark.parametrize("depth", [0, 1])
def test_nothing_is_held_for_who_left(depth) -> None:
    drafter = draft_model()
    harness = Harness(drafter=drafter, depth=depth)
    gone, stays = harness.submit(20, 200), harness.submit(20, 60, n=2)
    for _ in range(6):
        harness.step()
    assert len(drafter.memory.drafts) == 3
    harness.abort(gone)
    harness.step()
    assert len(drafter.memory.drafts) <= 2
    harness.finish(stays, tokens=5, index=1)
    harness.step()
    assert len(drafter.memory.drafts) <= 1
    harness.run()
    assert empty(drafter)


def test_whoever_is_preempted_gives_the_blocks_of_its_draft_back_too() -> None:
    drafter = draft_model()
    harness = Harness(drafter=drafter, blocks=8, budget=64)
    requests = [harness.submit(30, 60) for _ in range(2)]
    while not harness.scheduler.counters.preemptions:
        harness.step()
        assert len(drafter.memory.drafts) <= 2
    running = harness.scheduler.roster.running
    assert {s.request.id for s in drafter.memory.drafts} == set(running)
    harness.run()
    assert all(len(harness.tokens(request)) == 60 for request in requests)
    assert empty(drafter)


@pytest.mark.parametrize("blocks", [1, 3, 5, 7])
def test_a_dry_pool_costs_guesses_only(blocks) -> None:
    drafter = draft_model(blocks=blocks)
    harness = Harness(drafter=drafter)
    requests = [harness.submit(20 + 9 * i, 50) for i in range(4)]
    harness.run()
    assert all(len(harness.tokens(request)) == 50 for request in requests)
    assert (harness.scheduler.counters.drafts > 0) == (blocks > 1)
    assert empty(drafter)


def test_in_a_tight_pool_those_who_can_be_guessed_are_not_turned_out_by_those_who_cannot() -> None:
    """Six blocks for two sequences of five: one is guessed to its end, then the other."""
    drafter = draft_model(blocks=6)
    harness = Harness(drafter=drafter)
    harness.submit(40, 40)
    harness.submit(40, 40)
    harness.run()
    computed = sum(len(batch.token_ids) for batch in batches(drafter))
    assert computed < 2 * 80 + 40


def test_a_sequence_beyond_the_draft_models_context_is_guessed_no_more() -> None:
    drafter = draft_model(context=40)
    harness = Harness(drafter=drafter)
    request = harness.submit(PROMPT, 100)
    harness.run()
    assert harness.tokens(request) == answer(100)
    assert max(int(batch.positions.max()) for batch in batches(drafter)) < 40
    assert harness.scheduler.counters.drafts > 0


# ── what is guessed ───────────────────────────────────────────────────────────────────────────


CONTROLS = {
    "drawn": RowControls(temperature=0.8, seed=4),
    "top k": RowControls(seed=6, top_k=4),
    "penalties": RowControls(seed=5, repetition_penalty=1.4, frequency_penalty=0.3),
    "bad words": RowControls(seed=7, allowed_ids=frozenset({1, 2, 3}), bad_words=((1, 2), (3, 3))),
    "logprobs": RowControls(seed=8, logprobs=2, min_tokens=20, stop_ids=frozenset(range(8))),
}


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("controls", CONTROLS.values(), ids=CONTROLS)
def test_the_same_model_as_draft_draws_what_will_be_drawn(controls, depth) -> None:
    """Under the same controls, history and random numbers, of which all depend on all before."""

    def said(drafter: DraftModel | None) -> Harness:
        harness = Harness(backend=HashedBackend(64), drafter=drafter, depth=depth)
        for seed in range(2):
            harness.submit([1, 2, seed], 40, replace(controls, seed=seed), n=2)
        harness.run()
        return harness

    alone, guessed = said(None), said(draft_model(backend=HashedBackend(64)))
    assert guessed.outputs.keys() == alone.outputs.keys()
    for name in alone.outputs:
        assert guessed.tokens(*name) == alone.tokens(*name)
        found = [p for output in guessed.outputs[name] for p in output.logprobs]
        assert found == [p for output in alone.outputs[name] for p in output.logprobs]
    counters = guessed.scheduler.counters
    assert counters.draft_tokens > 20
    ends = 4 if controls.stop_ids else 0  # of a guess that ends a text nothing is said behind it
    assert counters.draft_tokens - ends <= counters.accepted_tokens


def test_it_guesses_nothing_behind_the_end_of_a_text() -> None:
    harness = Harness(drafter=draft_model())
    prompt = list(range(100, 160))
    request = harness.submit(prompt, 100, replace(GREEDY, stop_ids=frozenset({157})))
    harness.run()
    assert harness.tokens(request) == prompt[:58]
    assert harness.end(request).reason is FinishReason.STOP
    assert len(harness.backend.batches[-1].token_ids) > 2
    assert max(int(batch.token_ids.max()) for batch in harness.backend.batches[1:]) == 157


def test_a_token_that_the_other_model_does_not_know_is_neither_guessed_nor_computed() -> None:
    drafter = draft_model(vocab=10)
    harness = Harness(drafter=drafter)
    known = harness.submit([5, 6, 7, 8, 9], 30)
    unknown = harness.submit(PROMPT, 30)  # has 10 and 11
    harness.run()
    assert harness.tokens(known) == answer(30, [5, 6, 7, 8, 9])
    assert harness.tokens(unknown) == answer(30)
    assert max(int(batch.token_ids.max()) for batch in batches(drafter)) < 10
    says_ten = draft_model(vocab=10, backend=ScriptedBackend(64, lambda row: 10))
    harness = Harness(drafter=says_ten)
    harness.submit([5, 6, 7, 8, 9], 30)
    harness.run()
    assert harness.scheduler.counters.draft_tokens == 0


# ── faults ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("step", [0, 1, 9])
def test_a_draft_model_that_fails_is_switched_off_and_no_answer_suffers(step, depth) -> None:
    drafter = draft_model(
        backend=ScriptedBackend(64, wrong_in(1), {step: raising(MemoryError("none left"))})
    )
    harness = Harness(drafter=drafter, depth=depth)
    requests = [harness.submit(PROMPT, 80) for _ in range(2)]
    harness.run()
    assert all(harness.tokens(request) == answer(80) for request in requests)
    assert harness.scheduler.counters.draft_faults == 1
    assert len(batches(drafter)) == step + 1
    assert empty(drafter)


def test_a_row_that_fails_is_guessed_no_more_and_its_neighbours_are() -> None:
    """As when a client's controls forbid every token behind a guess: nobody else may suffer."""
    drafter = draft_model(backend=ScriptedBackend(64, nan_rows={4: [0]}))
    harness = Harness(drafter=drafter)
    requests = [harness.submit(PROMPT, 80) for _ in range(2)]
    harness.run()
    assert all(harness.tokens(request) == answer(80) for request in requests)
    assert harness.scheduler.counters.draft_faults == 0
    assert all(len(batch.rows) == 1 for batch in batches(drafter)[5:])
    assert len(batches(drafter)) > 20
    assert empty(drafter)


def test_after_an_engine_that_died_it_starts_empty() -> None:
    drafter = draft_model()
    harness = Harness(drafter=drafter)
    harness.submit(PROMPT, 80)
    for _ in range(4):
        harness.step()
    assert drafter.memory.drafts
    harness.scheduler.abandon(Failure(FailureKind.ENGINE_FAULT, "died"), 0.0)
    assert empty(drafter)
    harness.scheduler.check()


# ── time ──────────────────────────────────────────────────────────────────────────────────────


def test_what_a_draft_step_takes_is_learned() -> None:
    """In virtual time, by a simulated draft: at first it is thought to be as slow as the model."""
    clock, learned = VirtualClock(), FittedCost(LinearCost(base=2e-3, decode=2e-4))
    backend = SimulatedBackend.virtual(SMALL, 64, clock)
    drafter = DraftModel(backend, DraftSettings(TARGET, learned, clock))
    harness = Harness(
        backend=SimulatedBackend(TARGET, 64, wait=lambda seconds: None), drafter=drafter
    )
    request = harness.submit(10, 300)
    steps = harness.run()
    assert harness.tokens(request) == [97 + i % 26 for i in range(300)]
    assert steps < 150
    assert learned.seconds(0, 1, 100, 0) == pytest.approx(SMALL.seconds(0, 1, 100, 0), rel=0.2)


def test_random_times_keep_every_text() -> None:
    rng = random.Random(0)
    for depth in (0, 1):
        drafter = draft_model(wrong=2, blocks=12, piece=8)
        harness = Harness(drafter=drafter, blocks=24, rows=6, budget=24, depth=depth)
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
        assert harness.scheduler.counters.accepted_tokens > 0
        assert empty(drafter)


@pytest.mark.parametrize(("wrong", "least"), [(0, 3.0), (2, 1.5), (8, 0.95)])
def test_in_virtual_time_a_small_draft_makes_answers_come_sooner(wrong, least) -> None:
    """A tenth of the model's size; where it is always wrong, it costs next to nothing."""

    def seconds(drafts: bool) -> float:
        clock = VirtualClock()
        drafter = None
        if drafts:
            backend = SimulatedBackend(SMALL, 64, clock, clock.advance, wrong_in(wrong, alphabet))
            learned = FittedCost()
            drafter = DraftModel(backend, DraftSettings(TARGET, learned, clock))
            drafter.measure()
        began = clock.now()
        harness = Harness(backend=SimulatedBackend.virtual(TARGET, 64, clock), drafter=drafter)
        harness.submit(100, 400)
        harness.run()
        return clock.now() - began

    assert seconds(drafts=False) / seconds(drafts=True) > least


def test_memory_that_nobody_has_touched_yet_says_nothing_of_what_a_step_takes() -> None:
    clock, cold = VirtualClock(), iter([5.0] * 7)
    backend = SimulatedBackend(SMALL, 64, clock, lambda s: clock.advance(s * next(cold, 1.0)))
    learned = FittedCost()
    DraftModel(backend, DraftSettings(TARGET, learned, clock)).measure()
    assert learned.observations > 5
    assert learned.seconds(0, 1, 64, 0) == pytest.approx(SMALL.seconds(0, 1, 64, 0), rel=0.1)
