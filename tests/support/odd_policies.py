"""Policies that use, or abuse, every method of the contract."""

from __future__ import annotations

import math

from policies.base import ACCEPT, Demote, Hold, Policy, Reject, Share
from policies.fcfs import FCFS


class Stingy(Policy):
    """Few decodes, small chunks, and the oldest give way first."""

    def share(self, step):
        return Share(decode=max(1, step.budget // 4), prompt=step.budget // 2, chunk=5)

    def victim(self, request, step):
        return (request.ticket,)


class Starving(Policy):
    """Would never serve anybody, and protects everybody."""

    def share(self, step):
        return Share(decode=0, prompt=0, chunk=0)

    def may_wait(self, request, step):
        return True

    def victim(self, request, step):
        return None


class LastComeFirst(Policy):
    """Newest first, one queue a tenant; the longest output gives way first."""

    def flow(self, request):
        return request.tenant

    def key(self, request):
        return (-request.ticket,)

    def victim(self, request, step):
        return (-request.output, request.ticket)


class PromptsFirst(Policy):
    """Decodes wait while a prompt runs, as far as they may."""

    def may_wait(self, request, step):
        return step.prefilling > 0


class Window(Policy):
    """Lets requests in at multiples of 20 ms only."""

    def pick(self, heads, step):
        opens = math.ceil(step.now / 0.020 - 1e-9) * 0.020
        return heads.best() if step.now >= opens - 1e-9 else Hold(opens)


class Backfilling(Policy):
    """Two may pass a head that does not fit; longest prompt first."""

    def key(self, request):
        return (-request.prompt,)

    def backfill(self, step):
        return 2


class Displacing(Policy):
    """Strict priorities: a better one pushes worse ones out."""

    def key(self, request):
        return (request.priority, request.ticket)

    def victim(self, request, step):
        return (-request.priority, -request.ticket)

    def displaces(self, newcomer, running):
        return newcomer.priority < running.priority


class Counting(Policy):
    """Least served tenant first; re-keys by what it observes."""

    def __init__(self, *, services):
        super().__init__(services=services)
        self.served: dict[str, int] = {}
        self.waiting: dict[int, str] = {}

    def flow(self, request):
        return request.tenant

    def key(self, request):
        return (self.served.get(request.tenant, 0), request.ticket)

    def observe(self, events):
        changed = set()
        for event in events:
            request = getattr(event, "request", None)
            if request is None:
                continue
            self.waiting[request.id] = request.tenant
            count = getattr(event, "count", 0) + getattr(event, "first_computed", 0)
            if count:
                self.served[request.tenant] = self.served.get(request.tenant, 0) + count
                changed.add(request.tenant)
        return [number for number, tenant in self.waiting.items() if tenant in changed]


class MostCached(Policy):
    """Longest cached prefix first, tenant by tenant."""

    def flow(self, request):
        return request.tenant

    def prefix_key(self, request, cached):
        return (-cached, request.ticket)

    def pick(self, heads, step):
        return min(heads, key=lambda flow: (-heads[flow].cached, heads[flow].ticket))


class Judging(Policy):
    """Refuses every seventh request at the door and demotes long ones as they are about to run."""

    def admit(self, request, step):
        if request.ticket % 7 == 6:
            return Reject("seven")
        if request.prompt > 40 and request.slo_class == "default":
            return Demote("slow")
        return ACCEPT


class Throwing(Policy):
    """Raises every now and then, wherever it is asked."""

    def __init__(self, *, services):
        super().__init__(services=services)
        self.calls = 0

    def _maybe(self):
        self.calls += 1
        if self.calls % 11 == 0:
            raise RuntimeError("planted")

    def admit(self, request, step):
        self._maybe()
        return ACCEPT

    def flow(self, request):
        self._maybe()
        return request.tenant

    def key(self, request):
        self._maybe()
        return (-request.ticket,)

    def pick(self, heads, step):
        self._maybe()
        return heads.best()

    def share(self, step):
        self._maybe()
        return super().share(step)

    def victim(self, request, step):
        self._maybe()
        return (request.ticket,)

    def observe(self, events):
        self._maybe()
        return ()


class Nonsense(Policy):
    """Every answer is of the wrong kind."""

    def admit(self, request, step):
        return "yes"

    def flow(self, request):
        return [request.tenant] if request.ticket % 2 else None

    def key(self, request):
        return [math.nan, (math.nan,), (None,), 7, ("a", 1)][request.ticket % 5]

    def prefix_key(self, request, cached):
        return [None, (math.nan,), cached, (cached,), ("a", cached)][request.ticket % 5]

    def rank(self, request):
        return [("x",), (3.5,), (math.nan,), ((1, "a"), 2)][request.ticket % 4]

    def pick(self, heads, step):
        return ["no such flow", {"un": "hashable"}, None, 3][step.index % 4]

    def share(self, step):
        return [Share(-5, 10**9, -1), None, Share("a", 1, 1), Share(1, 1, 1)][step.index % 4]

    def chunk(self, request, start, most, step):
        return ["much", -3, 10**9, 0][step.index % 4]

    def backfill(self, step):
        return "two"

    def may_wait(self, request, step):
        return "perhaps"

    def victim(self, request, step):
        return [(math.nan,), "me", (None,), (1, "a")][request.ticket % 4]

    def displaces(self, newcomer, running):
        return "why not"

    def observe(self, events):
        return [123456, "x"]


ODD_POLICIES = [
    FCFS,
    Stingy,
    Starving,
    LastComeFirst,
    PromptsFirst,
    Window,
    Backfilling,
    Displacing,
    Counting,
    MostCached,
    Judging,
    Throwing,
    Nonsense,
]
