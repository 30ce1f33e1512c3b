"""Four heavy tenants of a real trace crowd out 23 light ones; policies that share undo it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from loadtest.profiles.profile import find_profile
from loadtest.simulation import Machine, Record, simulate
from loadtest.traces.arrival import at_speed
from loadtest.traces.reader import read_arrivals
from policies.base import Policy
from policies.fair_share import FairShare
from policies.fcfs import FCFS
from policies.prefix_first import PrefixFirst

VTC_ARENA = Path(__file__).parents[3] / "shared/traces/arrivals/vtc_arena_10min.csv.gz"
HEAVY = 4
SPEED = 1.1

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not VTC_ARENA.exists(), reason="the trace is not here"),
]


@cache
def waits(policy: type[Policy]) -> tuple[float, float]:
    """Mean seconds to the first token of requests of the four heaviest tenants, and of the rest."""
    arrivals = list(at_speed(read_arrivals(VTC_ARENA), SPEED))
    machine = Machine(find_profile("vtc_a10g").cost, pool_tokens=10_000)
    records: dict[str, list[Record]] = {}
    for record in simulate(policy, arrivals, machine).records:
        records.setdefault(record.arrival.tenant, []).append(record)
    tenants = sorted(records.values(), key=len, reverse=True)
    return mean_ttft(tenants[:HEAVY]), mean_ttft(tenants[HEAVY:])


def mean_ttft(tenants: list[list[Record]]) -> float:
    waits = [record.ttft for records in tenants for record in records]
    return sum(waits) / len(waits)


def test_under_fcfs_everybody_waits_for_the_four() -> None:
    _, light = waits(FCFS)
    assert 40 < light < 70


@pytest.mark.parametrize(("policy", "times"), [(FairShare, 15), (PrefixFirst, 5)])
def test_the_light_ones_wait_a_fraction_and_the_heavy_ones_less_than_twice_as_long(
    policy: type[Policy], times: float
) -> None:
    heavy, light = waits(policy)
    heavy_before, light_before = waits(FCFS)
    assert light * times < light_before
    assert heavy < 2 * heavy_before
