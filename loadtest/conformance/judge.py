"""Plays workload after workload under a policy, and writes the verdict."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import zip_longest
from typing import Final

from engine.guard import Save
from engine.simulation import PolicyMaker
from loadtest.conformance.growth import SHAPES, measure_growth
from loadtest.conformance.invariants import GROWTH, saved
from loadtest.conformance.trial import GUARD, Breach, Record, Trial, differences
from loadtest.conformance.verdict import Example, Verdict
from loadtest.conformance.workload import Setup, workload
from policies.base import RequestView
from policies.fcfs import FCFS

TIMED: Final = 2
"""Workloads in which the policy's CPU time is taken."""

ROOMY: Final = Setup(blocks=512, budget=512, rows=64, depth=0)
"""A house in which nobody waits for anybody."""


def judge(
    make: PolicyMaker,
    name: str,
    *,
    seed: int = 0,
    workloads: int = 48,
    tick: Callable[[], None] = lambda: None,
    begins: Callable[[], None] = lambda: None,
) -> Verdict:
    """The verdict on what `make` makes, which is made anew for each workload.

    tick: called after each workload. begins: called before each part, which takes a second or so.
    """
    verdict = Verdict(name, seed)
    begins()
    slow = judge_speed(make, verdict)

    def ticked() -> None:
        tick()
        begins()

    begins()
    judge_workloads(make, verdict, min(workloads, TIMED) if slow else workloads, ticked)
    if not slow:
        judge_growth(make, verdict, begins)
    return verdict


def judge_workloads(
    make: PolicyMaker, verdict: Verdict, workloads: int, tick: Callable[[], None] = lambda: None
) -> None:
    """Play workloads, each twice, and once in a house with room for all."""
    for number in range(workloads):
        _play(make, verdict, verdict.seed, number)
        tick()


def judge_speed(make: PolicyMaker, verdict: Verdict) -> bool:
    """Whether its CPU time had the guard put FCFS in its place (E11), in each of two tries.

    Two, because a busy machine makes anybody slow now and then.
    """
    save = _first_overrun(make, verdict.seed) and _first_overrun(make, verdict.seed)
    if save is None:
        return False
    verdict.fail("E11", Example(0, save.step, save.method, f"overrun: {save.said}"))
    return True


def judge_growth(
    make: PolicyMaker, verdict: Verdict, begins: Callable[[], None] = lambda: None
) -> None:
    """Let ever more requests wait, in one flow and in as many as it makes of many tenants."""
    for shape in SHAPES:
        begins()
        growth = measure_growth(make, shape)
        if growth.linear:
            verdict.fail(GROWTH, Example(None, None, None, str(growth)))
            return


def _play(make: PolicyMaker, verdict: Verdict, seed: int, number: int) -> None:
    work = workload(seed, number)
    record = Trial(make, work, seed=seed).run()
    verdict.workloads += 1
    verdict.steps += sum(entry[0] == "step" for entry in record.entries)
    _book(verdict, number, record)
    if record.breach:
        return
    again = Trial(make, work, seed=seed).run()
    reference = Trial(FCFS, replace(work, setup=ROOMY, swap_every=None)).run()
    for breach in (_deviation(record, again), differences(record, reference, work)):
        if breach:
            _hold(verdict, number, breach)


def _book(verdict: Verdict, number: int, record: Record) -> None:
    """Write down what the guard saved in a run, what it reports, and what did not hold."""
    for save in record.saves:
        example = Example(number, save.step, save.method, f"{save.kind}: {save.said}")
        if save.kind == "veto" and not _alike(*save.about):
            verdict.report("E5", 1, example)
        else:
            verdict.fail(saved(save.kind), example)
    verdict.report("E10", record.forced_admissions)
    verdict.report("E13", record.forced_progress)
    if record.breach:
        _hold(verdict, number, record.breach)


def _hold(verdict: Verdict, number: int, breach: Breach) -> None:
    verdict.fail(breach.invariant, Example(number, breach.step, None, breach.what))


def _alike(oldest: RequestView, other: RequestView) -> bool:
    """Whether nothing but its age can be the reason for which the older one is to give way.

    Else it may well be of a worse class, longer, or of a tenant that got more.
    """
    return all(
        getattr(oldest, name) == getattr(other, name)
        for name in (
            "tenant",
            "weight",
            "slo_class",
            "priority",
            "rows",
            "prompt",
            "max_output",
            "tpot_target",
        )
    ) and (oldest.ttft_deadline == other.ttft_deadline == math.inf)


def _deviation(record: Record, again: Record) -> Breach | None:
    """Where a second run of the same decided otherwise (E4)."""
    step = 0
    for one, other in zip_longest(record.entries, again.entries):
        if one != other:
            return Breach("E4", step, f"first {one}, then {other}")
        if one[0] == "step":
            step = one[1]
    return None


def _first_overrun(make: PolicyMaker, seed: int) -> Save | None:
    """The first step that took too long, if so many did that FCFS took over."""
    for number in range(TIMED):
        gc.collect()
        record = Trial(make, workload(seed, number), seed=seed, cpu_clock=time.thread_time).run()
        overruns = [save for save in record.saves if save.kind == "overrun"]
        if len(overruns) >= GUARD.overruns:
            return overruns[0]
    return None
