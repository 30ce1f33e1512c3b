"""Whoever guesses may fail: then nothing is guessed any more, and that is all."""

from __future__ import annotations

import pytest
from support.drafts import Guesser, repeating
from support.engines import Harness

from engine.request import Sequence
from engine.speculation import Drafter

PROMPT = [5, 6, 7, 8, 9, 10, 11]


class Failing(Guesser):
    """Guesses well, until it has done so `good` times; `at`: which of its methods then fails."""

    def __init__(self, at: str, good: int) -> None:
        super().__init__(repeating, wrong=0, most=8)
        self.at = at
        self.left = good
        self.asked = 0
        self.emptied = 0

    def propose(self, decodes, most):
        self._count("propose")
        yield from super().propose(decodes, most)
        if self.at == "midway" and self.left < 0:
            raise RuntimeError("in the midst of guesses")

    def waits(self, sequence: Sequence) -> bool:
        self._count("waits")
        return super().waits(sequence)

    def forget_all(self) -> None:
        self.emptied += 1

    def _count(self, method: str) -> None:
        self.asked += 1
        self.left -= 1
        if self.at == method and self.left < 0:
            raise RuntimeError("no more guesses")


@pytest.mark.parametrize(
    ("at", "depth"),
    [("propose", 0), ("propose", 1), ("midway", 0), ("midway", 1), ("waits", 1)],
)
def test_who_raises_is_not_asked_again_and_no_answer_suffers(at, depth, caplog) -> None:
    drafter = Failing(at, good=6)
    harness = Harness(drafter=drafter, depth=depth)
    requests = [harness.submit(PROMPT, 60) for _ in range(2)]
    harness.run()
    for request in requests:
        assert harness.tokens(request) == [PROMPT[i % len(PROMPT)] for i in range(60)]
    counters = harness.scheduler.counters
    assert counters.draft_faults == 1
    assert 0 < counters.accepted_tokens < 100
    assert drafter.emptied == 1
    assert "guessing failed" in caplog.text
    asked = drafter.asked
    harness.submit(PROMPT, 20)
    harness.run()
    assert drafter.asked == asked


class Remembering(Drafter):
    """Guesses nothing, and remembers who it was told of."""

    def __init__(self) -> None:
        self.left: list[tuple[int, int]] = []

    def forget(self, sequence: Sequence) -> None:
        self.left.append(sequence.name)


def test_it_is_told_of_everybody_who_stops_running() -> None:
    drafter = Remembering()
    harness = Harness(drafter=drafter, blocks=6, budget=32)
    ended = harness.submit(PROMPT, 3, n=2)
    harness.run()
    assert set(drafter.left) == {(ended, 0), (ended, 1)}
    drafter.left.clear()
    aborted = harness.submit(20, 50)
    for _ in range(4):
        harness.step()
    harness.abort(aborted)
    harness.run()
    assert set(drafter.left) == {(aborted, 0)}
    drafter.left.clear()
    requests = [harness.submit(30, 30) for _ in range(2)]  # four blocks each, of six
    while not harness.scheduler.counters.preemptions:
        harness.step()
    assert drafter.left == [(requests[1], 0)]
    harness.run()
