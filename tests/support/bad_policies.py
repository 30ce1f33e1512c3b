"""Policies that break their word, each in one way, and the invariant that the engine then keeps."""

from __future__ import annotations

import itertools
import math
import time
from contextlib import suppress

from policies.base import Demote, Hold, Policy, Share

CALLS = itertools.count()


class Raises(Policy):
    def key(self, request):
        raise ValueError("planted")


class Exits(Policy):
    def admit(self, request, step):
        raise SystemExit(3)


class NamesStrangers(Policy):
    def observe(self, events):
        return [4711]


class PicksNobody(Policy):
    """Leaves the only waiting flow unpicked."""

    def pick(self, heads, step):
        return None


class LiesAboutFlows(Policy):
    """Picks a flow in which nobody waits."""

    def flow(self, request):
        return request.tenant

    def pick(self, heads, step):
        return "nobody's"


class Overruns(Policy):
    """Thinks for longer than it may."""

    def pick(self, heads, step):
        end = time.thread_time() + 0.006
        while time.thread_time() < end:
            pass
        return heads.best()


class Writes(Policy):
    """Makes its favourite urgent, and hides that it could not."""

    def pick(self, heads, step):
        flow = heads.best()
        with suppress(AttributeError):
            heads[flow].priority = -1
        return flow


class WritesToAMapping(Policy):
    def share(self, step):
        step.running_by_class["default"] = 0
        return super().share(step)


class OldestGivesWay(Policy):
    def victim(self, request, step):
        return (request.ticket,)


class DisplacesAnybody(Policy):
    def displaces(self, newcomer, running):
        return True


class ThrowsDice(Policy):
    """Its order depends on what it has done in other lives."""

    def key(self, request):
        return (next(CALLS) * 7 % 11,)


class HoldsForEver(Policy):
    def pick(self, heads, step):
        return Hold(math.inf)


class GrantsNothing(Policy):
    def share(self, step):
        return Share(decode=0, prompt=0, chunk=1)


class SaysNonsense(Policy):
    def key(self, request):
        return (math.nan,)


class DemotesIntoNowhere(Policy):
    def admit(self, request, step):
        return Demote("batch")


class LooksAtEverybody(Policy):
    """Compares all heads in each step."""

    def flow(self, request):
        return request.id

    def pick(self, heads, step):
        return min(heads, key=lambda flow: heads[flow].ticket)


class AddsUpEverybody(Policy):
    """Keeps a list of who waits, and goes through all of it in each step."""

    def __init__(self, *, services):
        super().__init__(services=services)
        self.known = {}

    def observe(self, events):
        for event in events:
            if request := getattr(event, "request", None):
                self.known[request.id] = request
        return ()

    def share(self, step):
        self.load = sum(request.prompt for request in self.known.values())
        return super().share(step)


BAD_POLICIES = {
    Raises: ("E11", "key", "ValueError('planted')"),
    Exits: ("E11", "admit", "SystemExit"),
    NamesStrangers: ("E11", "observe", "foreign id: 4711"),
    PicksNobody: ("E8", "pick", "refusal: None"),
    LiesAboutFlows: ("E11", "pick", "nobody's"),
    Writes: ("E11", "pick", "wrote to priority"),
    WritesToAMapping: ("E11", "share", "TypeError"),
    OldestGivesWay: ("E5", "victim", "veto"),
    DisplacesAnybody: ("E5", "displaces", "veto"),
    ThrowsDice: ("E4", None, "then"),
    HoldsForEver: ("E5", "pick", "Hold(until=inf)"),
    GrantsNothing: ("E8", "share", "idle"),
    SaysNonsense: ("E11", "key", "nan"),
    DemotesIntoNowhere: ("E5", "admit", "batch"),
}
"""The invariant that the engine keeps, and what the example names: the method, and the answer."""
