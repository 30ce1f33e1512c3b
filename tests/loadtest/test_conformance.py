"""`octavo conform` passes good policies; of bad ones it names the invariant that was saved."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from support import bad_policies
from support.bad_policies import BAD_POLICIES
from support.built_in import BUILT_IN

from app.cli import main
from engine.blocks import BlockPool
from loadtest.conformance.growth import count_operations
from loadtest.conformance.invariants import GROWTH, INVARIANTS
from loadtest.conformance.judge import judge, judge_growth, judge_speed, judge_workloads
from loadtest.conformance.trial import Trial, differences
from loadtest.conformance.verdict import Verdict
from loadtest.conformance.workload import workload
from policies.base import Hold, Policy, Reject
from policies.fcfs import FCFS

SUPPORT = Path(bad_policies.__file__).parents[1]


def failed(verdict: Verdict) -> list[str]:
    return [name for name, line in verdict.lines.items() if not line.passed]


def conform(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["conform", *arguments], catch_exceptions=False)


# ── good ones ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_built_in_policies_pass(name: str) -> None:
    verdict = Verdict(name, 0)
    judge_workloads(BUILT_IN[name], verdict, 4)
    assert failed(verdict) == [], verdict.as_json()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", BUILT_IN)
def test_the_built_in_policies_pass_all_of_it(name: str, seed: int) -> None:
    verdict = judge(BUILT_IN[name], name, seed=seed)
    assert failed(verdict) == [], verdict.as_json()


class HoldsABit(Policy):
    """Lets requests in at multiples of 50 ms only."""

    def pick(self, heads, step):
        opens = math.ceil(step.now / 0.05 - 1e-9) * 0.05
        return heads.best() if step.now >= opens - 1e-9 else Hold(opens)


class Refuses(Policy):
    def admit(self, request, step):
        return Reject("too long") if request.prompt >= 40 else super().admit(request, step)


@pytest.mark.parametrize("policy", [HoldsABit, Refuses])
def test_what_a_policy_may_do_is_not_held_against_it(policy: type[Policy]) -> None:
    verdict = Verdict("good", 0)
    judge_workloads(policy, verdict, 4)
    assert failed(verdict) == [], verdict.as_json()


def test_the_last_ones_first_are_reported_for_whom_the_guard_let_in() -> None:
    newest_first = type("NewestFirst", (Policy,), {"key": lambda self, r: (-r.ticket,)})
    verdict = Verdict("newest-first", 0)
    judge_workloads(newest_first, verdict, 12)
    assert verdict.passed
    assert verdict.lines["E10"].reported > 0


# ── bad ones ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("policy", BAD_POLICIES, ids=lambda policy: policy.__name__)
def test_a_bad_policy_fails_under_the_invariant_that_the_engine_saved(policy) -> None:
    invariant, method, said = BAD_POLICIES[policy]
    verdict = Verdict("bad", 0)
    judge_workloads(policy, verdict, 4)
    assert failed(verdict) == [invariant], verdict.as_json()
    example = verdict.lines[invariant].example
    assert example.method == method
    assert said in example.said


@pytest.mark.parametrize(
    "policy",
    [
        bad_policies.AddsUpEverybody,
        pytest.param(bad_policies.LooksAtEverybody, marks=pytest.mark.slow),
    ],
)
def test_a_policy_that_looks_at_everybody_fails_for_its_growth(policy) -> None:
    verdict = Verdict("bad", 0)
    judge_growth(policy, verdict)
    assert failed(verdict) == [GROWTH]


def test_fcfs_does_not_grow() -> None:
    verdict = Verdict("fcfs", 0)
    judge_growth(FCFS, verdict)
    assert verdict.passed


def test_a_policy_that_thinks_too_long_fails_and_a_slow_machine_does_not_make_one() -> None:
    slow, quick = Verdict("slow", 0), Verdict("quick", 0)
    assert judge_speed(bad_policies.Overruns, slow)
    assert failed(slow) == ["E11"]
    assert slow.lines["E11"].example.said.startswith("overrun")
    assert not judge_speed(FCFS, quick)


def test_the_rest_of_a_policy_that_thinks_too_long_is_judged_in_a_few_workloads() -> None:
    policy = type("Both", (bad_policies.ThrowsDice, bad_policies.Overruns), {})
    verdict = judge(policy, "both")
    assert failed(verdict) == ["E4", "E11"]
    assert verdict.workloads == 2


# ── the engine's own faults ───────────────────────────────────────────────────────────────────


def test_an_invariant_that_does_not_hold_is_named_and_ends_the_workload(monkeypatch) -> None:
    def broken(*arguments: object) -> None:
        raise AssertionError("E1: planted")

    monkeypatch.setattr(BlockPool, "check", broken)
    verdict = Verdict("unlucky", 0)
    judge_workloads(FCFS, verdict, 1)
    assert failed(verdict) == ["E1"]
    assert verdict.lines["E1"].example.step == 1


def test_an_answer_that_differs_from_the_one_alone_is_found() -> None:
    work = workload(0, 0)
    record, other = Trial(FCFS, work).run(), Trial(FCFS, work).run()
    assert differences(record, other, work) is None
    for key, (_, finish) in list(other.endings.items()):
        other.endings[key] = ((1, 2, 3), finish)
    assert differences(record, other, work).invariant == "E9"


# ── the workloads ─────────────────────────────────────────────────────────────────────────────


def test_the_same_seed_makes_the_same_workloads_and_another_seed_others() -> None:
    assert workload(3, 5) == workload(3, 5)
    assert workload(3, 5) != workload(4, 5)
    assert workload(3, 5) != workload(3, 6)


def test_the_default_workloads_have_everything_in_them() -> None:
    works = [workload(0, number) for number in range(48)]
    assert {work.setup.depth for work in works} == {0, 1}
    assert {work.setup.host_blocks for work in works} == {0, 5, 40}
    assert len({work.setup.allocation for work in works}) == 2
    assert any(work.swap_every for work in works)
    arrivals = [arrival for work in works for arrival in work.arrivals]
    for has in (
        lambda each: each.leaves_after is not None,
        lambda each: each.ends_after is not None,
        lambda each: each.stops_at is not None,
        lambda each: each.searches,
        lambda each: each.n > 1,
        lambda each: each.shared,
        lambda each: each.slo_class == "batch",
        lambda each: each.allowance < math.inf,
    ):
        assert any(map(has, arrivals))
    kinds = {entry[0] for work in works for entry in Trial(FCFS, work).run().entries}
    assert kinds >= {"preempt", "offload", "restore", "cancel", "fork", "reject", "policy"}


def test_operations_are_counted_the_same_every_time() -> None:
    def loop(times: int) -> None:
        for _ in range(times):
            pass

    assert count_operations(lambda: loop(10)) == count_operations(lambda: loop(10))
    assert count_operations(lambda: loop(1000)) - count_operations(lambda: loop(10)) >= 990


# ── the command ───────────────────────────────────────────────────────────────────────────────


def test_the_table_names_every_invariant_and_a_good_policy_exits_0() -> None:
    result = conform("fcfs", "--params", "backfill=2", "--workloads", "2")
    assert result.exit_code == 0
    assert "fcfs conforms" in result.stdout
    assert all(name in result.stdout for name in INVARIANTS)
    assert result.stderr == ""


def test_a_strangers_policy_is_found_by_module_and_a_bad_one_exits_1(monkeypatch) -> None:
    monkeypatch.syspath_prepend(SUPPORT)
    result = conform("support.bad_policies:PicksNobody", "--workloads", "4", "--json")
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    assert report["passed"] is False
    assert list(report["invariants"]) == list(INVARIANTS)
    line = report["invariants"]["E8"]
    assert line["passed"] is False
    assert line["failed"] > 0
    assert line["example"]["method"] == "pick"
    assert report["invariants"]["E11"]["passed"] is True


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("fair-shar",), "fair-share"),
        (("nowhere:Policy",), "cannot import nowhere"),
        (("fcfs", "--params", "backfil=2"), "backfill"),
        (("fcfs", "--params", "backfill=-1"), "backfill must not be negative"),
        (("fcfs", "--workloads", "0"), "--workloads"),
    ],
)
def test_what_cannot_be_judged_exits_2_and_says_why(arguments, says: str) -> None:
    result = conform(*arguments)
    assert result.exit_code == 2
    assert says in result.stderr
