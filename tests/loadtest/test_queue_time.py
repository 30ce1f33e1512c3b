"""What requests waited for, by what kept the head of the queue out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.cost import LinearCost
from engine.limits import ClassLimits
from engine.queue_time import REASONS
from engine.simulation import Machine, simulate
from loadtest.metrics import report
from loadtest.simulation_tables import queue_reasons
from loadtest.traces import Arrival
from policies.base import Heads, Hold, Policy, StepView
from policies.fcfs import FCFS

COST = LinearCost(base=1.0)
ROOMY = Machine(COST, pool_tokens=1024, step_tokens=64, rows=8)


class Waits(Policy):
    """Lets nobody in for the first five seconds."""

    def pick(self, heads: Heads, step: StepView) -> object:
        return Hold(5.0) if step.now < 5 else heads.best()


class OneAtATime(Policy):
    """Picks nobody while somebody runs."""

    def pick(self, heads: Heads, step: StepView) -> object:
        return None if step.decoding or step.prefilling else heads.best()


@pytest.mark.parametrize(
    ("reason", "machine", "policy"),
    [
        ("rows", replace(ROOMY, rows=1), FCFS),
        ("blocks", replace(ROOMY, pool_tokens=32), FCFS),
        ("tokens", replace(ROOMY, step_tokens=20), FCFS),
        ("class", replace(ROOMY, classes={"default": ClassLimits(max_running=1)}), FCFS),
        ("hold", replace(ROOMY, guard=replace(ROOMY.guard, max_hold_s=10.0)), Waits),
        ("policy", ROOMY, OneAtATime),
    ],
)
def test_the_time_is_booked_under_what_was_lacking(
    reason: str, machine: Machine, policy: type[Policy]
) -> None:
    """Two requests at once; the second, or both of them, can only start later."""
    arrivals = [Arrival(0.0, 20, 4), Arrival(0.0, 20, 4)]
    figures = report(simulate(policy, arrivals, machine))
    waited = {name: seconds for name, seconds in figures["queue_seconds"].items() if seconds}
    assert list(waited) == [reason]
    assert waited[reason] == pytest.approx(2 * figures["queue_s"]["mean"])
    assert queue_reasons(figures) == f"{reason} 100.0%"


def test_who_comes_during_a_step_waits_for_it_first() -> None:
    arrivals = [Arrival(0.0, 20, 4), Arrival(0.25, 20, 4)]
    figures = report(simulate(FCFS, arrivals, ROOMY))
    assert figures["queue_seconds"]["step"] == pytest.approx(0.75)
    assert sum(figures["queue_seconds"].values()) == pytest.approx(0.75)


def test_nothing_is_said_of_a_queue_in_which_nobody_waited() -> None:
    assert queue_reasons(report(simulate(FCFS, [Arrival(0.0, 20, 4)], ROOMY))) == ""


@settings(max_examples=50)
@given(
    arrivals=st.lists(
        st.builds(
            Arrival,
            at=st.floats(0, 20),
            prompt_tokens=st.integers(1, 60),
            output_tokens=st.integers(1, 20),
            slo_class=st.sampled_from(("default", "narrow")),
        ),
        max_size=20,
    ),
    rows=st.integers(1, 4),
    policy=st.sampled_from([FCFS, Waits, OneAtATime]),
    depth=st.integers(0, 1),
)
def test_all_time_in_the_queue_is_booked_once(
    arrivals: list[Arrival], rows: int, policy: type[Policy], depth: int
) -> None:
    """Blocks are plenty, so that nobody is preempted and waits again."""
    arrivals.sort(key=lambda arrival: arrival.at)
    classes = {"narrow": ClassLimits(max_running=1)}
    machine = replace(ROOMY, rows=rows, depth=depth, classes=classes)
    run = simulate(policy, arrivals, machine)
    waited = sum(r.admitted_at - r.arrival.at for r in run.records if r.admitted_at is not None)
    assert run.counters.preemptions == 0
    assert sum(run.queue_seconds.values()) == pytest.approx(waited, abs=1e-6)
    assert set(run.queue_seconds) == set(REASONS)
