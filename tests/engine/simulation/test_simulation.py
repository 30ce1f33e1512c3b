"""Simulated runs: exact times by hand, nobody lost, the same bytes again."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.cost import LinearCost
from engine.decisions import DecisionLog
from engine.limits import ClassLimits
from engine.simulation import Machine, Simulation, Targets, simulate
from loadtest.metrics import report
from loadtest.traces import Arrival
from policies.base import Accept, Heads, Policy, Reject, RequestView, StepView, Verdict
from policies.fcfs import FCFS

COST = LinearCost(base=1.0, prompt_token=0.1, decode=0.5)
MACHINE = Machine(COST, pool_tokens=64, step_tokens=64, rows=8)

BY_HAND = [
    Arrival(0.0, 4, 3, tenant="a"),
    Arrival(0.5, 6, 1, tenant="b"),
    Arrival(2.0, 100, 5, tenant="b"),  # needs 104 tokens of KV: never fits
    Arrival(10.0, 2, 2, tenant="a"),
]


def times(run: Simulation) -> list[list[float]]:
    return [record.token_times.tolist() for record in run.records]


def test_times_are_what_the_cost_model_says() -> None:
    """1.4 s for the first prompt; 2.1 s for the second one beside a decode; 1.5 s a decode alone;
    the last prompt 1.2 s."""
    run = simulate(FCFS, BY_HAND, MACHINE)
    assert times(run) == [
        pytest.approx([1.4, 3.5, 5.0]),
        pytest.approx([3.5]),
        [],
        pytest.approx([11.2, 12.7]),
    ]
    assert [record.admitted_at for record in run.records] == [0.0, pytest.approx(1.4), None, 10.0]
    assert [record.shed for record in run.records] == [None, None, "never_fits", None]


def test_figures_are_those_of_these_times() -> None:
    figures = report(simulate(FCFS, BY_HAND, MACHINE))
    assert (figures["requests"], figures["completed"], figures["shed"]) == (4, 3, 1)
    assert figures["duration_s"] == pytest.approx(12.7)
    assert figures["ttft_s"]["mean"] == pytest.approx((1.4 + 3.0 + 1.2) / 3)
    assert figures["ttft_s"]["p50"] == pytest.approx(1.4)
    assert figures["ttft_s"]["p99"] == pytest.approx(1.4 + 0.98 * 1.6)
    assert figures["itl_s"]["mean"] == pytest.approx((2.1 + 1.5 + 1.5) / 3)
    assert figures["tpot_s"]["mean"] == pytest.approx((1.8 + 1.5) / 2)
    assert figures["e2e_s"]["mean"] == pytest.approx((5.0 + 3.0 + 2.7) / 3)
    assert figures["queue_s"]["mean"] == pytest.approx(0.9 / 3)
    assert figures["output_tok_s"] == pytest.approx(6 / 12.7)
    assert figures["goodput_req_s"] == pytest.approx(3 / 12.7)
    assert figures["by_tenant"]["a"]["completed"] == 2
    assert figures["by_tenant"]["b"]["shed"] == 1
    assert figures["by_tenant"]["b"]["itl_s"] == dict.fromkeys(("mean", "p50", "p95", "p99"))
    assert figures["slo_attainment"] == 3 / 4
    assert figures["recomputed_fraction"] == 0
    assert figures["max_bypass"] == 0
    assert figures["prediction_error"] == 0
    assert list(figures["by_class"]) == ["default"]


def test_goodput_counts_who_got_all_that_was_promised() -> None:
    for targets, good in (
        (Targets(ttft=2.0), 2),
        (Targets(tpot=1.6), 2),  # one token alone has no time between tokens
        (Targets(e2e=2.9), 1),
        (Targets(ttft=2.0, tpot=1.6), 1),
    ):
        run = simulate(FCFS, BY_HAND, MACHINE, targets={"default": targets})
        assert sum(record.met for record in run.records) == good
        assert report(run)["goodput_req_s"] == pytest.approx(good / 12.7)


class Impatient(Policy):
    """Notes what it was promised, and refuses who was promised less than a second."""

    def admit(self, request: RequestView, step: StepView) -> Verdict:
        if request.ttft_deadline - request.arrival < 1:
            return Reject("too hard")
        assert request.tpot_target == 7.0
        return Accept()


def test_policies_see_the_targets_of_a_class() -> None:
    arrivals = [Arrival(0, 4, 3, slo_class="strict"), Arrival(0, 4, 3, slo_class="loose")]
    targets = {"strict": Targets(ttft=0.5), "loose": Targets(ttft=5.0, tpot=7.0)}
    run = simulate(Impatient, arrivals, MACHINE, targets=targets)
    assert [record.shed for record in run.records] == ["shed", None]
    assert run.policy_faults == {}


class LastFirst(Policy):
    """The youngest first."""

    def key(self, request: RequestView) -> tuple[int]:
        return (-request.ticket,)


class Random(Policy):
    """Any flow but none twice in a row the same, by the random numbers it is given."""

    def flow(self, request: RequestView) -> str:
        return request.tenant

    def pick(self, heads: Heads, step: StepView) -> str:
        return self.services.rng.choice(sorted(map(str, heads)))


CROWD = [Arrival(0.3 * n, 5 + n % 40, 1 + n % 23, tenant=f"t{n % 3}") for n in range(60)]


def test_the_order_is_the_policy_s() -> None:
    arrivals = [Arrival(0, 4, 10)] + [Arrival(0.5, 4, 1)] * 2
    one_row = replace(MACHINE, rows=1)
    first, second = (simulate(policy, arrivals, one_row) for policy in (FCFS, LastFirst))
    assert first.records[1].ttft < first.records[2].ttft
    assert second.records[1].ttft > second.records[2].ttft
    assert [report(run)["max_bypass"] for run in (first, second)] == [0, 1]


@pytest.mark.parametrize("depth", [0, 1])
def test_preemptions_and_recomputed_tokens_are_booked_where_they_happened(depth: int) -> None:
    run = simulate(FCFS, CROWD, replace(MACHINE, pool_tokens=96, depth=depth))
    assert run.counters.preemptions > 0
    assert sum(r.preemptions for r in run.records) == run.counters.preemptions
    assert sum(r.recomputed_tokens for r in run.records) == run.counters.recomputed_tokens
    assert all(record.completed for record in run.records)


def test_the_same_seed_gives_the_same_decisions_and_another_one_others() -> None:
    noisy = replace(MACHINE, noise=0.3)

    def decisions(seed: int, machine: Machine = noisy) -> bytes:
        log = DecisionLog()
        simulate(Random, CROWD, machine, seed=seed, log=log)
        return log.encode()

    assert decisions(1) == decisions(1)
    assert decisions(1) != decisions(2)
    assert decisions(1, MACHINE) != decisions(2, MACHINE)  # the policy's numbers


def test_noise_has_the_same_mean_and_the_spread_it_says() -> None:
    arrivals = [Arrival(0, 1, 4000)]
    machine = Machine(LinearCost(base=1.0), pool_tokens=4096, noise=0.2)
    gaps = [b - a for a, b in itertools.pairwise(times(simulate(FCFS, arrivals, machine))[0])]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(1.0, rel=0.02)
    assert sum((gap - mean) ** 2 for gap in gaps) / len(gaps) == pytest.approx(0.04, rel=0.15)
    # a normal variable is 0.8 standard deviations from its mean on average
    error = simulate(FCFS, arrivals, machine).prediction_error
    assert error == pytest.approx(0.8 * 0.2, rel=0.1)


def test_a_class_at_its_limit_of_waiting_requests_sheds() -> None:
    machine = replace(MACHINE, rows=1, classes={"default": ClassLimits(max_waiting=2)})
    run = simulate(FCFS, [Arrival(0, 4, 5)] + [Arrival(0.1, 4, 1)] * 5, machine)
    assert [record.shed for record in run.records] == [None] * 3 + ["shed"] * 3


def test_the_tick_is_called_once_for_each_request_that_has_ended() -> None:
    ticks: list[None] = []
    simulate(FCFS, BY_HAND, MACHINE, tick=lambda: ticks.append(None))
    assert len(ticks) == len(BY_HAND)


@settings(max_examples=25)
@given(
    arrivals=st.lists(
        st.builds(
            Arrival,
            at=st.floats(0, 20),
            prompt_tokens=st.integers(1, 120),
            output_tokens=st.integers(1, 30),
            tenant=st.sampled_from("abc"),
        ),
        max_size=30,
    ),
    policy=st.sampled_from([FCFS, LastFirst, Random]),
    depth=st.integers(0, 1),
)
def test_nobody_is_lost_and_times_are_in_order(
    arrivals: list[Arrival], policy: type[Policy], depth: int
) -> None:
    """E6 at the end and E7, and the parts of a report add up to the whole."""
    arrivals.sort(key=lambda arrival: arrival.at)
    machine = replace(MACHINE, pool_tokens=128, depth=depth)
    run = simulate(policy, arrivals, machine)
    counters = run.counters
    assert counters.arrived == len(arrivals)
    assert counters.arrived == counters.finished + counters.rejected
    for record in run.records:
        assert record.completed != (record.shed is not None)
        if record.completed:
            assert record.admitted_at is not None
            moments = [record.arrival.at, record.admitted_at, *record.token_times]
            assert moments == sorted(moments)
    figures = report(run)
    for kind in ("by_tenant", "by_class"):
        for key in ("requests", "completed", "shed", "preemptions", "recomputed_tokens"):
            assert sum(group[key] for group in figures[kind].values()) == figures[key]
