"""Random arrivals, lengths, aborts and tiny pools: the invariants hold after every step."""

from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.engines import GREEDY, Harness

from engine.controls import RowControls
from engine.outputs import FinishReason
from policies.base import Policy, Share
from policies.fcfs import FCFS


class Stingy(Policy):
    """Few decodes, small chunks, and the oldest give way first."""

    def share(self, step):
        return Share(decode=max(1, step.budget // 2), prompt=step.budget, chunk=5)

    def victim(self, request, step):
        return (request.ticket,)


class LastComeFirst(Policy):
    """Newest first, one queue a tenant."""

    def flow(self, request):
        return request.tenant

    def key(self, request):
        return (-request.ticket,)


@dataclass(frozen=True)
class Arrival:
    prompt: int
    max_tokens: int
    n: int
    gap: int
    leaves_after: int | None
    stops_at: int | None


ARRIVALS = st.lists(
    st.builds(
        Arrival,
        prompt=st.integers(1, 70),
        max_tokens=st.integers(1, 40),
        n=st.sampled_from([1, 1, 1, 2]),
        gap=st.integers(0, 6),
        leaves_after=st.one_of(st.none(), st.none(), st.integers(0, 40)),
        stops_at=st.one_of(st.none(), st.none(), st.integers(1, 20)),
    ),
    min_size=1,
    max_size=14,
)

SETUPS = st.fixed_dictionaries(
    {"blocks": st.integers(7, 20), "budget": st.integers(4, 48), "rows": st.integers(2, 6)}
)


@pytest.mark.parametrize("policy", [FCFS, Stingy, LastComeFirst])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(arrivals=ARRIVALS, setup=SETUPS)
def test_invariants_hold_and_every_request_ends_with_its_own_tokens(
    policy, arrivals: list[Arrival], setup: dict[str, int]
) -> None:
    harness = Harness(policy=policy, **setup)
    left: set[int] = set()
    leaving: list[tuple[int, int]] = []
    step = 0

    def tick() -> bool:
        nonlocal step
        for when, request in leaving:
            if when == step:
                harness.abort(request)
                left.add(request)
        worked = harness.step()
        batch = harness.backend.batches[-1] if worked else None
        if batch is not None:
            assert batch.tokens <= setup["budget"], "E2: tokens"
            assert len(batch.rows) <= setup["rows"], "E2: rows"
            assert len({(r.request, r.index) for r in batch.rows}) == len(batch.rows)
        else:
            assert harness.scheduler.live == 0, "E8: somebody waits and nothing was computed"
        step += 1
        return worked

    for arrival in arrivals:
        for _ in range(arrival.gap):
            tick()
        controls = GREEDY
        if arrival.stops_at is not None and arrival.stops_at < arrival.prompt:
            token = (harness._next_id + 1) * 1000 + arrival.stops_at - 1
            controls = RowControls(temperature=0.0, stop_ids=frozenset({token}))
        request = harness.submit(arrival.prompt, arrival.max_tokens, controls, n=arrival.n)
        if arrival.leaves_after is not None:
            leaving.append((step + arrival.leaves_after, request))
    for _ in range(5_000):
        if not tick() and not harness.mail:
            break
    assert harness.scheduler.live == 0
    assert harness.pool.free == harness.pool.total
    _check_ends(harness, arrivals, left)


def _check_ends(harness: Harness, arrivals: list[Arrival], left: set[int]) -> None:
    for request, arrival in enumerate(arrivals, start=1):
        for index in range(arrival.n):
            tokens = harness.tokens(request, index)
            assert tokens == [request * 1000 + i % arrival.prompt for i in range(len(tokens))]
            finish = harness.end(request, index)
            if finish is None:
                assert request in left, "E6: a request vanished"
                continue
            stops_at = arrival.stops_at if arrival.stops_at is not None else arrival.max_tokens + 1
            if finish.reason is FinishReason.LENGTH:
                assert len(tokens) == arrival.max_tokens
            elif finish.reason is FinishReason.STOP:
                assert len(tokens) == stops_at
            else:
                assert finish.reason is FinishReason.REJECTED
                assert tokens == []
