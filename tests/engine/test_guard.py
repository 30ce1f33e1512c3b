"""The guard: a faulty policy costs order, never correctness, and no policy starves anybody."""

import math
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.engines import NO_CPU_LIMIT, Harness, services

from engine.guard import Guard, GuardSettings, Save, comparable
from policies.base import Hold, Policy, Share


class LastFirst(Policy):
    def key(self, request):
        return (-request.ticket,)


class FailsOnce(LastFirst):
    """Newest first; raises when asked for the share of step 2."""

    def share(self, step):
        if step.index == 2:
            raise RuntimeError("planted")
        return super().share(step)


def firsts(harness: Harness, requests: list[int]) -> list[int]:
    """The requests in the order of their first tokens."""
    return sorted(requests, key=lambda request: (harness.outputs[request, 0][0].at, request))


def test_an_exception_puts_fcfs_in_charge_for_a_while_and_then_the_policy_is_back() -> None:
    guard = replace(NO_CPU_LIMIT, fallback_steps=6, every=100)
    harness = Harness(policy=FailsOnce, rows=1, guard=guard)
    requests = [harness.submit(2, max_tokens=2) for _ in range(8)]
    harness.run()
    # Steps 0-1 serve the newest; the fault in step 2 hands over; six steps of FCFS; then back.
    assert firsts(harness, requests) == [8, 7, 1, 2, 3, 6, 5, 4]
    assert harness.scheduler.guard.saves["exception"] == 1
    assert harness.scheduler.guard.last_fault == "share raised RuntimeError"
    assert harness.scheduler.stats(0.0).fallback_steps == 6
    (entry,) = [e for e in harness.log.entries if e[0] == "fallback"]
    assert entry == ("fallback", "share raised RuntimeError", 9)


class CpuClock:
    """CPU time that goes on by `cost` with every call of the policy."""

    def __init__(self) -> None:
        self.now = 0.0
        self.cost = 0.0

    def __call__(self) -> float:
        self.now += self.cost / 2
        return self.now


def test_three_cpu_overruns_in_the_window_put_fcfs_in_charge() -> None:
    clock = CpuClock()
    settings = GuardSettings(max_step_cpu_s=0.005, overruns=3, overrun_window=10)
    guard = Guard(LastFirst(services=services()), settings, cpu_clock=clock)
    harness = Harness()
    harness.submit(2)
    step = 0

    def take_step(cost: float) -> bool:
        nonlocal step
        clock.cost = cost
        guard.place(harness.scheduler.request(1).view)
        step += 1
        guard.begin_step(step)
        return guard.fallen_back

    harness.step()
    assert [take_step(0.1), take_step(0.1)] == [False, False]
    assert not any(take_step(0.0) for _ in range(10)), "old overruns are forgotten"
    assert [take_step(0.1), take_step(0.1), take_step(0.1)] == [False, False, True]
    assert guard.saves["overrun"] == 5


@pytest.mark.parametrize("every", [2, 4, 32])
def test_one_of_every_n_admissions_goes_to_the_oldest_ticket(every: int) -> None:
    harness = Harness(policy=LastFirst, rows=1, guard=replace(NO_CPU_LIMIT, every=every))
    for _ in range(100):
        harness.submit(2, max_tokens=1)
    harness.run()
    admitted = [entry[1] for entry in harness.log.entries if entry[0] == "admit"]
    forced = [entry[1] for entry in harness.log.entries if entry[0] == "admit" and entry[2]]
    assert forced == sorted(forced)
    assert len(forced) == pytest.approx(100 / every, abs=2)
    assert harness.stats.forced_admissions == len(forced)
    for place, request in enumerate(forced):
        assert admitted.index(request) == every * (place + 1) - 1


def test_without_the_guard_the_oldest_waits_to_the_end() -> None:
    harness = Harness(policy=LastFirst, rows=1, guard=replace(NO_CPU_LIMIT, enabled=False))
    requests = [harness.submit(2, max_tokens=1) for _ in range(50)]
    harness.run()
    assert firsts(harness, requests) == requests[::-1]


class HoldsForEver(Policy):
    def pick(self, heads, step):
        return Hold(math.inf)


def test_a_hold_ends_after_max_hold_s() -> None:
    harness = Harness(policy=HoldsForEver, guard=replace(NO_CPU_LIMIT, max_hold_s=0.2))
    request = harness.submit(2, max_tokens=1)
    while harness.end(request) is None:
        harness.step()
        assert harness.clock.now() < 1
    assert harness.end(request).reason.value == "length"
    assert harness.outputs[request, 0][0].at == pytest.approx(0.2, abs=0.002)
    assert harness.scheduler.guard.saves["cut hold"] == 1


@pytest.mark.parametrize(
    "share",
    [None, 7, Share(-1, -1, -1), Share(10**9, 10**9, 10**9), Share("a", 1, 1), Share(1, 1, 0)],
)
def test_a_share_that_means_nothing_harms_nobody(share) -> None:
    class Shares(Policy):
        def share(self, step):
            return share

    harness = Harness(policy=Shares, budget=8)
    requests = [harness.submit(20, max_tokens=3) for _ in range(3)]
    harness.run()
    assert all(len(harness.tokens(request)) == 3 for request in requests)
    assert all(batch.tokens <= 8 for batch in harness.backend.batches)


def test_ids_that_do_not_exist_are_counted_and_ignored() -> None:
    class Dreams(Policy):
        def observe(self, events):
            return [4711]

    harness = Harness(policy=Dreams)
    harness.submit(4)
    harness.run()
    assert harness.stats.policy_faults > 0
    assert harness.scheduler.guard.saves["foreign id"] == harness.stats.policy_faults


ELEMENTS = st.recursive(
    st.one_of(st.integers(), st.floats(allow_nan=False), st.text(max_size=3), st.booleans()),
    lambda inner: st.tuples(inner, inner),
    max_leaves=4,
)


@given(st.lists(st.lists(ELEMENTS, max_size=3).map(tuple), min_size=2, max_size=6))
def test_comparable_keys_of_any_kind_can_be_sorted(keys) -> None:
    made = [comparable(key) for key in keys]
    assert None not in made
    assert all(a < b or b < a or a == b for a in made for b in made)


@given(st.lists(st.tuples(st.integers(), st.floats(allow_nan=False)), min_size=2))
def test_keys_of_numbers_keep_their_order(keys) -> None:
    assert sorted(keys) == sorted(keys, key=comparable)


@pytest.mark.parametrize("key", [(math.nan,), (None,), [1], 5, "x", ((1, math.nan),), ({},)])
def test_what_orders_nothing_is_no_key(key) -> None:
    assert comparable(key) is None


# ── what it notes ─────────────────────────────────────────────────────────────────────────────


def saves(policy: type[Policy], **house) -> list[Save]:
    """What the guard notes while four requests are served under the policy."""
    harness = Harness(policy=policy, **house)
    noted: list[Save] = []
    harness.scheduler.guard.on_save = noted.append
    requests = [harness.submit(20, max_tokens=30) for _ in range(4)]
    harness.run()
    assert all(len(harness.tokens(request)) == 30 for request in requests)
    return noted


class Writes(Policy):
    """Tries to make its favourite urgent, and hides that it failed."""

    def pick(self, heads, step):
        for view, name in ((heads["all"], "priority"), (step, "now"), (heads, "_queue")):
            with suppress(AttributeError):
                setattr(view, name, 0)
            with suppress(AttributeError):
                delattr(view, name)
        return heads.best()


def test_a_write_to_a_view_raises_and_is_counted_although_the_policy_hides_it() -> None:
    noted = saves(Writes)
    assert {(save.kind, save.method) for save in noted} == {("write", "pick")}
    assert {save.said for save in noted} == {f"wrote to {n}" for n in ("priority", "now", "_queue")}


class Refuses(Policy):
    def pick(self, heads, step):
        return None


class Idles(Policy):
    def share(self, step):
        return Share(0, 0, 1)


class Raises(Policy):
    def key(self, request):
        raise ValueError("planted")


class Numbers(Policy):
    def flow(self, request):
        return [request.tenant]


@pytest.mark.parametrize(
    ("policy", "kind", "method", "said"),
    [
        (Refuses, "refusal", "pick", "None"),
        (Idles, "idle", "share", "Share(decode=0, prompt=0, chunk=1)"),
        (Raises, "exception", "key", "ValueError('planted')"),
        (Numbers, "flow", "flow", "['default']"),
    ],
)
def test_what_it_saves_is_noted_with_what_the_policy_said(policy, kind, method, said) -> None:
    noted = saves(policy)
    assert (kind, method, said) in [(save.kind, save.method, save.said) for save in noted]


class OldestFirst(Policy):
    def victim(self, request, step):
        return (request.ticket,)


class PushesAnybodyOut(Policy):
    def displaces(self, newcomer, running):
        return True


@pytest.mark.parametrize(
    ("policy", "method", "house"),
    [
        (OldestFirst, "victim", {"blocks": 8}),
        (PushesAnybodyOut, "displaces", {"rows": 2}),
    ],
)
def test_a_veto_for_the_lowest_ticket_is_noted_and_is_no_fault(policy, method, house) -> None:
    vetoes = [save for save in saves(policy, **house) if save.kind == "veto"]
    assert vetoes
    assert {save.method for save in vetoes} == {method}
    assert all(save.about[0].ticket < save.about[1].ticket for save in vetoes)


@pytest.mark.parametrize("policy", [Policy, OldestFirst, PushesAnybodyOut])
def test_what_may_happen_to_a_good_policy_is_not_counted_as_a_fault(policy) -> None:
    harness = Harness(policy=policy, rows=2, blocks=8)
    for _ in range(4):
        harness.submit(20, max_tokens=30)
    harness.run()
    assert harness.scheduler.guard.saves.total() == 0


def test_steps_in_which_progress_was_owed_are_counted_for_who_grants_too_little() -> None:
    def forced(policy: type[Policy]) -> int:
        harness = Harness(policy=policy)
        harness.submit(4, max_tokens=60)
        harness.submit(20, max_tokens=60)
        harness.run()
        return harness.scheduler.guard.forced_progress

    assert forced(Policy) == 0
    assert forced(type("Stingy", (Policy,), {"share": lambda self, step: Share(1, 1, 1)})) == 0
    assert (
        forced(type("Stopping", (Policy,), {"may_wait": lambda self, r, step: r.ticket == 0})) > 0
    )
