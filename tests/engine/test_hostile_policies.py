"""Policies that break in ways that an `except Exception` around the call does not see."""

import sys

import pytest
from support.engines import Harness

from engine.limits import ClassLimits
from policies.base import Demote, Hold, Policy, Reject, Share


class Odd:
    """Raises wherever it is looked at."""

    def _raise(self, *arguments):
        raise ValueError("planted")

    __hash__ = __eq__ = __int__ = __iter__ = __bool__ = __lt__ = _raise  # type: ignore[assignment]


class OddInt(int):
    def __lt__(self, other):
        raise ValueError("planted")


def nested(depth: int):
    key = ()
    for _ in range(depth):
        key = (key,)
    return key


def for_ever():
    number = 10**9
    while True:
        number += 1
        yield number


def raising():
    yield 1
    raise KeyError("planted")


ANSWERS = {
    "admit": [Demote(["batch"]), Reject(429, 1.0), Reject("x", "soon"), Odd()],
    "flow": [Odd(), ["x"], (["x"],), None],
    "key": [nested(900), (OddInt(1),), (Odd(),), Odd()],
    "rank": [nested(900), (OddInt(1),), Odd()],
    "pick": [Hold("x"), Hold(None), Odd(), ["x"], ("no", "such")],
    "share": [Share(Odd(), 1, 1), Share(1.5, 1, 1), Odd()],
    "backfill": [Odd(), "x", 10**30],
    "may_wait": [Odd()],
    "victim": [(OddInt(1),), Odd(), nested(900)],
    "displaces": [Odd()],
    "observe": [for_ever(), raising(), Odd(), [float("inf")], [Odd()], None, range(10**7)],
}
CASES = [(method, number) for method, answers in ANSWERS.items() for number in range(len(answers))]


@pytest.mark.parametrize(("method", "number"), CASES)
def test_an_answer_of_any_kind_costs_order_only(method: str, number: int) -> None:
    answer = ANSWERS[method][number]
    policy = type("Hostile", (Policy,), {method: lambda self, *arguments: answer})
    serve(policy)


@pytest.mark.parametrize("method", ANSWERS)
@pytest.mark.parametrize(
    "error", [SystemExit(1), KeyboardInterrupt(), RecursionError(), KeyError()]
)
def test_an_exception_of_any_kind_costs_order_only(method: str, error: BaseException) -> None:
    def fail(self, *arguments):
        raise error

    serve(type("Hostile", (Policy,), {method: fail}))


def serve(policy: type[Policy]) -> None:
    """A tight house under the policy: everybody is served their own tokens, or refused in words."""
    harness = Harness(policy=policy, blocks=8, rows=4)
    requests = [harness.submit(20, max_tokens=20, priority=i % 2) for i in range(5)]
    harness.run()
    for request in requests:
        assert harness.tokens(request) == [request * 1000 + i for i in range(20)]


def test_the_heads_that_a_policy_sees_cannot_be_moved() -> None:
    class Thief(Policy):
        def pick(self, heads, step):
            for name in ("remove", "push", "closed"):
                assert not hasattr(heads, name)
            return heads.best()

    serve(Thief)


def test_a_policy_that_forgot_its_services_is_served_all_the_same() -> None:
    class Forgetful(Policy):
        def __init__(self, *, services):
            pass

        def share(self, step):
            sys.exit(1)

    serve(Forgetful)


def test_nobody_is_demoted_into_a_class_that_can_never_hold_it() -> None:
    class Demoting(Policy):
        def admit(self, request, step):
            return Demote("batch")

    limits = {"batch": ClassLimits(max_blocks_fraction=0.5)}
    harness = Harness(policy=Demoting, blocks=8, classes=limits)
    request = harness.submit(73, max_tokens=1)
    harness.run()
    assert len(harness.tokens(request)) == 1
    assert harness.scheduler.guard.saves["class"] > 0


def test_a_policy_that_goes_on_failing_while_fcfs_stands_in_is_told_no_more() -> None:
    class Failing(Policy):
        calls = 0

        def observe(self, events):
            Failing.calls += 1
            raise ValueError("planted")

    harness = Harness(policy=Failing)
    harness.submit(4, max_tokens=50)
    harness.run()
    assert Failing.calls == 2
