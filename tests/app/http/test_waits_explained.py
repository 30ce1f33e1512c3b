"""In an overload, what GET /admin/requests/{id} says of 500 waits is true: of who overtook each, by
the decision log; of when each starts, for most of them. Virtual time."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from support.overtaking import Overtaking
from support.virtual_house import VirtualHouse

from engine.controls import RowControls
from engine.cost import LinearCost
from engine.inbox import Submission
from engine.limits import Limits
from policies.fair_share import FairShare
from policies.fcfs import FCFS
from policies.prefix_first import PrefixFirst
from policies.shortest_first import ShortestFirst
from policies.slo import SLO

ASKED = 500
COST = LinearCost(base=0.02, prompt_token=0.0002, decode=0.0005, kv_read=1e-7)
GREEDY = RowControls(temperature=0.0, ignore_eos=True)


def overload(seed: int) -> Iterator[Submission]:
    """Of two dozen tenants, a few of which send most; more than can be served."""
    chance = random.Random(seed)
    at = 0.0
    for number in range(10_000):
        at += chance.expovariate(18.0)
        deadline = chance.choice([2.0, 20.0, float("inf")])
        yield Submission(
            id=number,
            prompt=range(number * 1000, number * 1000 + chance.randint(10, 300)),
            max_tokens=chance.randint(5, 75),
            controls=GREEDY,
            arrival=at,
            tenant=f"t{min(int(chance.paretovariate(0.7)), 24)}",
            priority=chance.choice([0, 0, 1]),
            ttft_deadline=at + deadline,
        )


class Asked:
    """What was said of a wait, when, and by what number of log entries."""

    def __init__(self, said: dict, at: float, known: int) -> None:
        self.said = said
        self.at = at
        self.known = known


async def ask_around(house: VirtualHouse, seed: int) -> dict[int, Asked]:
    """Ask once of each of 500 who wait, some time after they came; then let everybody end."""
    chance = random.Random(seed)
    coming, asked = overload(seed), {}
    following = next(coming)
    due: dict[int, float] = {}
    while len(asked) < ASKED or house.scheduler.live:
        mail = []
        now = house.clock.now()
        while len(asked) < ASKED and following.arrival <= now:
            mail.append(following)
            due[following.id] = now + chance.choice([0.1, 1.0, 5.0])
            following = next(coming)
        waiting = house.scheduler.roster.waiting
        ripe = [i for i, at in due.items() if at <= now]
        for number in ripe:
            del due[number]
        curious = [
            i
            for i in ripe
            if (request := house.scheduler.request(i)) is not None
            and waiting.holds(request)
            and not request.preemptions
        ][: ASKED - len(asked)]
        known = len(house.log.entries)
        told = await house.step(mail, [f"/admin/requests/{i}" for i in curious])
        for number, said in zip(curious, told, strict=True):
            asked[number] = Asked(said, now, known)
        if house.engine.patience != 0 and len(asked) < ASKED:
            house.clock.advance_to(max(now, following.arrival))
    return asked


@pytest.mark.parametrize("policy", [FCFS, FairShare, PrefixFirst, ShortestFirst, SLO])
async def test_what_is_said_of_500_waits_is_true(policy) -> None:
    house = VirtualHouse(policy, COST, blocks=160, limits=Limits(512, 16, 1024))
    await house.open()
    asked = await ask_around(house, seed=1)
    assert len(asked) == ASKED
    assert house.scheduler.guard.saves.total() == 0
    overtaken = check_overtakers(house, asked)
    started = Overtaking(house.log.entries).started
    inside, estimates = 0, 0
    for number, one in asked.items():
        assert one.said["phase"] == "waiting"
        start = one.said["start_in_s"]
        if start is not None and number in started:
            wait = started[number][0] - one.at
            inside += start["low"] - 1e-6 <= wait <= start["high"] + 1e-6
            estimates += 1
    assert estimates > 0.95 * ASKED
    assert inside >= 0.8 * estimates, f"{inside} of {estimates}"
    assert (overtaken > 0) == (policy is not FCFS)


def check_overtakers(house: VirtualHouse, asked: dict[int, Asked]) -> int:
    """Assert that each was told whom the decision log names; how many that are in all."""
    log, read, overtaken = Overtaking([]), 0, 0
    for number, one in sorted(asked.items(), key=lambda entry: entry[1].known):
        for entry in house.log.entries[read : one.known]:
            log.read(*entry)
        read = max(read, one.known)
        told = [overtaker["id"] for overtaker in one.said["overtaken_by"]]
        assert told == log.overtakers(number)
        assert one.said["overtaken_complete"]
        assert one.said["overtaken"] == len(told)
        overtaken += len(told)
    return overtaken
