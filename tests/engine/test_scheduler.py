"""Scheduling with the scripted backend: exact steps, exact rows, exact blocks."""

import math

import pytest
from support.engines import GREEDY, Harness

from engine.backends.scripted import by_prompt
from engine.controls import RowControls
from engine.inbox import Submission
from engine.limits import ClassLimits
from engine.outputs import FailureKind, Finish, FinishReason
from policies.base import Demote, Hold, Policy, Reject, Share, StepView


def rows_of(harness: Harness) -> list[list[tuple[int, int, int]]]:
    """(request, start, count) of each row, step by step."""
    return [[(r.request, r.start, r.count) for r in b.rows] for b in harness.backend.batches]


def test_continuous_batching_takes_20_steps_and_30_rows_where_a_static_batch_computes_60() -> None:
    harness = Harness(blocks=5)
    lengths = [2, 8, 20]
    for length in lengths:
        harness.submit(12, max_tokens=length)
    assert harness.run() == 20
    assert harness.scheduler.counters.computed_rows == sum(lengths) == 30
    assert len(lengths) * max(lengths) == 60
    assert [len(harness.tokens(i)) for i in (1, 2, 3)] == lengths
    assert harness.pool.free == 5


def test_a_fourth_request_runs_in_the_very_next_step_in_the_blocks_that_the_first_gave_back() -> (
    None
):
    # 16 tokens each, so that every block is taken from the first step on.
    harness = Harness(blocks=3)
    for prompt, length in ((15, 2), (9, 8), (5, 12)):
        harness.submit(prompt, max_tokens=length)
    harness.step()
    assert harness.pool.free == 0
    first_block = harness.scheduler.request(1).sequences[0].table[0]
    fourth = harness.submit(10, max_tokens=3)
    harness.step()  # the first ends here; the fourth waits for its block
    assert harness.end(1) == Finish(FinishReason.LENGTH)
    assert harness.tokens(fourth) == []
    harness.step()
    assert harness.scheduler.request(fourth).sequences[0].table.tolist() == [first_block]
    assert len(harness.tokens(fourth)) == 1
    harness.run()
    assert len(harness.tokens(fourth)) == 3


def test_long_prompts_are_chunked_and_decodes_go_first() -> None:
    harness = Harness(budget=16)
    short = harness.submit(4, max_tokens=6)
    harness.step()
    long = harness.submit(40, max_tokens=2)
    harness.run()
    assert rows_of(harness)[1:4] == [
        [(short, 4, 1), (long, 0, 15)],
        [(short, 5, 1), (long, 15, 15)],
        [(short, 6, 1), (long, 30, 10)],
    ]
    assert len(harness.tokens(long)) == 2


@pytest.mark.parametrize("budget", [1, 2, 7, 16, 33, 64])
@pytest.mark.parametrize("prompt", [1, 15, 16, 17, 31, 32, 33, 200])
def test_chunking_changes_no_token_and_counts_each_prompt_token_once(
    budget: int, prompt: int
) -> None:
    harness = Harness(budget=budget, rows=4)
    first, second = harness.submit(prompt), harness.submit(prompt)
    harness.run()
    for request in (first, second):
        assert harness.tokens(request) == [request * 1000 + i % prompt for i in range(4)]
    assert harness.scheduler.counters.prompt_tokens == 2 * prompt
    assert all(batch.tokens <= budget for batch in harness.backend.batches)


def test_prompts_get_a_larger_budget_where_nobody_decodes() -> None:
    harness = Harness(budget=16, prompt_budget=24)
    short = harness.submit(30, max_tokens=3)
    harness.step()
    long = harness.submit(60, max_tokens=1)
    harness.run()
    assert rows_of(harness) == [
        [(short, 0, 24)],
        [(short, 24, 6), (long, 0, 18)],
        [(short, 30, 1), (long, 18, 15)],
        [(short, 31, 1), (long, 33, 15)],
        [(long, 48, 12)],
    ]


def test_a_policy_sees_the_budget_that_its_step_has() -> None:
    seen = []

    class Looking(Policy):
        def share(self, step: StepView) -> Share:
            seen.append((step.decoding, step.budget))
            return super().share(step)

    harness = Harness(policy=Looking, budget=16, prompt_budget=24)
    harness.submit(30, max_tokens=3)
    harness.step()
    harness.submit(60, max_tokens=1)
    harness.run()
    assert seen == [(0, 24), (0, 24), (1, 16), (1, 16), (0, 24)]


def test_no_output_comes_before_the_last_chunk() -> None:
    harness = Harness(budget=16)
    request = harness.submit(33)
    harness.step()
    harness.step()
    assert harness.outputs[request, 0] == []
    harness.step()
    assert len(harness.tokens(request)) == 1


class TwoDecodes(Policy):
    def share(self, step):
        return Share(decode=2, prompt=step.budget, chunk=step.budget)


def test_decodes_beyond_their_share_take_turns() -> None:
    harness = Harness(policy=TwoDecodes, rows=5)
    requests = [harness.submit(1, max_tokens=8) for _ in range(5)]
    assert harness.run() == 1 + 18  # the prompts, then 5 × 7 decodes two by two
    served: dict[int, int] = {}
    for step, rows in enumerate(rows_of(harness)):
        for request, _, _ in rows:
            assert step - served.get(request, step) <= 3, "a decode waited more than ⌈5/2⌉ steps"
            served[request] = step
    assert all(len(harness.tokens(r)) == 8 for r in requests)


def test_the_row_limit_holds_and_the_next_in_line_takes_the_free_row() -> None:
    harness = Harness(rows=2)
    requests = [harness.submit(4, max_tokens=3) for _ in range(5)]
    harness.run()
    assert max(len(batch.rows) for batch in harness.backend.batches) == 2
    firsts = [harness.outputs[r, 0][0].at for r in requests]
    assert firsts == sorted(firsts)


def test_stop_ids_end_a_sequence_and_count_as_its_last_token() -> None:
    harness = Harness(script=by_prompt({(7,): [5, 6, 2, 9]}))
    controls = RowControls(temperature=0.0, eos_ids=frozenset({2}), stop_ids=frozenset({9}))
    request = harness.submit([7], max_tokens=9, controls=controls)
    harness.run()
    assert harness.tokens(request) == [5, 6, 2]
    assert harness.end(request) == Finish(FinishReason.STOP, stop_token=2)


def test_ignore_eos_runs_on_to_a_stop_id_of_the_client() -> None:
    harness = Harness(script=by_prompt({(7,): [5, 2, 9]}))
    controls = RowControls(
        temperature=0.0, ignore_eos=True, eos_ids=frozenset({2}), stop_ids=frozenset({9})
    )
    request = harness.submit([7], max_tokens=9, controls=controls)
    harness.run()
    assert harness.tokens(request) == [5, 2, 9]


def test_finish_at_ends_a_sequence_and_frees_its_blocks() -> None:
    harness = Harness()
    request = harness.submit(20, max_tokens=50)
    for _ in range(5):
        harness.step()
    harness.finish(request, tokens=3)
    harness.run()
    assert harness.end(request) == Finish(FinishReason.STOP)
    assert harness.pool.free == harness.pool.total
    assert harness.scheduler.counters.finished == 1
    assert harness.scheduler.counters.cancelled == 0


def test_finish_and_abort_of_unknown_or_ended_requests_are_ignored() -> None:
    harness = Harness()
    request = harness.submit(4, max_tokens=1)
    harness.run()
    harness.finish(request, tokens=1)
    harness.abort(request)
    harness.abort(request)
    harness.abort(999)
    harness.run()
    assert harness.scheduler.counters.finished == 1
    assert harness.scheduler.counters.cancelled == 0


@pytest.mark.parametrize("steps", [0, 1, 2, 6])
def test_abort_returns_every_block_in_every_phase(steps: int) -> None:
    harness = Harness(budget=16, rows=1)
    running = harness.submit(40, max_tokens=30)
    queued = harness.submit(40, max_tokens=30)
    for _ in range(steps):
        harness.step()
    harness.abort(running)
    harness.abort(queued)
    harness.step()
    assert harness.scheduler.live == 0
    assert harness.pool.free == harness.pool.total
    assert harness.scheduler.counters.cancelled == 2


def test_a_request_that_left_the_queue_is_never_computed() -> None:
    harness = Harness(rows=1)
    first = harness.submit(4, max_tokens=20)
    harness.step()
    queued = harness.submit(100, max_tokens=5)
    harness.step()
    harness.abort(queued)
    harness.run()
    assert all(row[0] == first for rows in rows_of(harness) for row in rows)


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "fits"),
    [(64, 1, True), (60, 5, True), (65, 1, False), (60, 6, False), (1, 64, True), (1, 65, False)],
)
def test_only_what_the_whole_pool_can_hold_is_let_in(prompt, max_tokens, fits) -> None:
    # 4 blocks hold 64 tokens; the last token that is generated needs no KV.
    harness = Harness(blocks=4)
    request = harness.submit(prompt, max_tokens=max_tokens)
    behind = harness.submit(4, max_tokens=2)
    harness.run()
    assert len(harness.tokens(behind)) == 2
    finish = harness.end(request)
    if fits:
        assert finish == Finish(FinishReason.LENGTH)
    else:
        assert finish.reason is FinishReason.REJECTED
        assert finish.failure.kind is FailureKind.NEVER_FITS
        assert "4" in finish.failure.message


def test_more_than_the_model_length_is_refused_with_the_numbers() -> None:
    harness = Harness(model_len=32)
    request = harness.submit(30, max_tokens=3)
    harness.run()
    assert "33 tokens exceed the model's length of 32" in harness.end(request).failure.message


@pytest.mark.parametrize("bad", [{"prompt": []}, {"max_tokens": 0}, {"n": 0}])
def test_a_submission_that_means_nothing_cannot_be_made(bad) -> None:
    fields = {"prompt": [1], "max_tokens": 1, "n": 1} | bad
    with pytest.raises(ValueError, match="at least"):
        Submission(id=1, controls=GREEDY, arrival=0.0, **fields)


def test_a_dry_pool_preempts_the_youngest_and_changes_no_token() -> None:
    harness = Harness(blocks=6, budget=64, rows=8)
    requests = [harness.submit(20, max_tokens=40) for _ in range(3)]
    harness.run()
    assert harness.scheduler.counters.preemptions > 0
    assert harness.scheduler.counters.recomputed_tokens > 0
    for request in requests:
        assert harness.tokens(request) == [request * 1000 + i % 20 for i in range(40)]
        assert sum(output.timing is not None for output in harness.outputs[request, 0]) == 1
    assert harness.end(1) == Finish(FinishReason.LENGTH)
    ends = [harness.outputs[r, 0][-1].at for r in requests]
    assert ends == sorted(ends), "a preempted request lost its place"


def test_two_requests_that_need_the_pool_for_themselves_do_not_thrash() -> None:
    harness = Harness(blocks=10)
    first, second = (harness.submit(48, max_tokens=48) for _ in range(2))
    harness.run(limit=300)
    assert len(harness.tokens(first)) == len(harness.tokens(second)) == 48
    assert harness.scheduler.counters.preemptions <= 2


def test_n_sequences_of_a_request_are_told_apart() -> None:
    harness = Harness()
    request = harness.submit(20, max_tokens=3, n=2)
    harness.run()
    for index in (0, 1):
        assert harness.tokens(request, index) == [1000, 1001, 1002]
    assert harness.scheduler.counters.finished == 1


# ---------------------------------------------------------------- what policies may say


class Refusing(Policy):
    def admit(self, request, step):
        return (
            Reject("closed today", retry_after=7.0)
            if request.priority
            else super().admit(request, step)
        )


def test_a_policy_can_refuse_at_the_door() -> None:
    harness = Harness(policy=Refusing)
    refused, served = harness.submit(4, priority=1), harness.submit(4)
    harness.run()
    failure = harness.end(refused).failure
    assert (failure.kind, failure.message, failure.retry_after) == (
        FailureKind.SHED,
        "closed today",
        7.0,
    )
    assert len(harness.tokens(served)) == 4
    assert harness.scheduler.counters.rejected == 1


class SecondThoughts(Policy):
    """Accepts everybody at the door and refuses long prompts as they are about to run."""

    def admit(self, request, step):
        if step.waiting and request.prompt > 10:
            return Reject("too long after all")
        return super().admit(request, step)


def test_a_policy_can_refuse_the_head_about_to_run_and_the_next_gets_its_turn() -> None:
    harness = Harness(policy=SecondThoughts)
    long, short = harness.submit(20), harness.submit(4)
    harness.run()
    assert harness.end(long).failure.message == "too long after all"
    assert len(harness.tokens(short)) == 4


class PingPong(Policy):
    """Demotes to and fro, for ever."""

    def admit(self, request, step):
        return Demote("b" if request.slo_class == "a" else "a")


def test_endless_demotion_ends_after_one_turn_a_step() -> None:
    harness = Harness(policy=PingPong)
    request = harness.submit(4)
    harness.run()
    assert len(harness.tokens(request)) == 4


class ShortestFirst(Policy):
    def key(self, request):
        return (request.prompt,)


def test_keys_order_the_queue_and_rank_orders_prompts_that_run() -> None:
    harness = Harness(policy=ShortestFirst, budget=16)
    long = harness.submit(40, max_tokens=1)
    harness.step()
    short = harness.submit(8, max_tokens=1)
    harness.run()
    assert rows_of(harness)[1] == [(short, 0, 8), (long, 16, 8)]


class PerTenant(Policy):
    """Picks the tenant whose name comes last, whatever the keys."""

    def flow(self, request):
        return request.tenant

    def pick(self, heads, step):
        return max(heads)


def test_pick_chooses_among_flows() -> None:
    harness = Harness(policy=PerTenant, rows=1)
    a, z = harness.submit(4, tenant="a"), harness.submit(4, tenant="z")
    harness.run()
    assert harness.outputs[z, 0][-1].at < harness.outputs[a, 0][0].at


class Nobody(Policy):
    def pick(self, heads, step):
        return None


class Stranger(Policy):
    def pick(self, heads, step):
        return "no such flow"


def test_a_flow_that_does_not_exist_is_replaced_by_the_best_head() -> None:
    harness = Harness(policy=Stranger)
    requests = [harness.submit(4) for _ in range(2)]
    harness.run()
    assert all(len(harness.tokens(request)) == 4 for request in requests)
    assert harness.scheduler.guard.saves["flow"] > 0


def test_with_nothing_running_the_oldest_is_taken_even_if_the_policy_names_nobody() -> None:
    harness = Harness(policy=Nobody)
    first, second = harness.submit(4), harness.submit(4)
    harness.run()
    assert harness.outputs[first, 0][-1].at < harness.outputs[second, 0][0].at


class Window(Policy):
    """Starts requests at multiples of 10 ms only, all that are there."""

    def pick(self, heads, step):
        opens = math.ceil(step.now / 0.010 - 1e-6) * 0.010
        open_now = step.now > 0 and math.isclose(step.now, opens)
        return heads.best() if open_now else Hold(opens or 0.010)


def test_a_hold_keeps_everybody_out_until_it_ends() -> None:
    harness = Harness(policy=Window)
    first = harness.submit(4)
    assert harness.step() is False
    assert harness.scheduler.wake_in(harness.clock.now()) == pytest.approx(0.009)
    second = harness.submit(4)
    while not harness.step():
        pass
    assert harness.outputs[first, 0][0].at >= 0.010
    assert harness.outputs[first, 0][0].at == harness.outputs[second, 0][0].at


class SmallChunks(Policy):
    def share(self, step):
        return Share(decode=step.budget, prompt=8, chunk=4)


def test_shares_shape_the_step() -> None:
    harness = Harness(policy=SmallChunks)
    first, second, third = (harness.submit(16, max_tokens=1) for _ in range(3))
    harness.step()
    assert rows_of(harness)[0] == [(first, 0, 4), (second, 0, 4)]
    harness.run()
    assert len(harness.tokens(third)) == 1


def test_a_snapshot_counts_who_waits_and_runs_by_class() -> None:
    harness = Harness(rows=2, classes={"batch": ClassLimits(max_running=1)})
    for slo_class in ("batch", "batch", "batch", "urgent", "urgent"):
        harness.submit(4, max_tokens=4, slo_class=slo_class)
    harness.step()
    assert harness.stats.running_by_class == {"batch": 1, "urgent": 1}
    assert harness.stats.waiting_by_class == {"batch": 2, "urgent": 1}
    assert harness.stats.gated == 2
    harness.run()
    assert not any(harness.stats.running_by_class.values())
    assert not any(harness.stats.waiting_by_class.values())
    assert harness.stats.gated == 0
