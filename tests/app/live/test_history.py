"""What the last steps and seconds are told to have been."""

from __future__ import annotations

import pytest

from app.live.history import SECONDS, STEPS, WINDOW_S, History, quantile
from app.metrics.histograms import Histogram
from engine.outputs import Counters, Stats


class Past:
    """A history, and the engine's counts that it is shown."""

    def __init__(self) -> None:
        self.ttft = Histogram("t", "", (0.1, 1.0))
        self.itl = Histogram("i", "", (0.01, 0.1))
        self.counters = Counters()
        self.history = History(Stats(), self.ttft, self.itl)

    def step(self, now: float, *, prompt: int = 0, decodes: int = 0, **stats: int) -> None:
        """A step that ends at `now`."""
        self.counters.steps += 1
        self.counters.prompt_tokens += prompt
        self.counters.generated_tokens += decodes
        tokens = prompt + decodes
        self.tell(now, step_tokens=tokens, step_rows=decodes + 1, step_seconds=0.02, **stats)

    def tell(self, now: float, **stats: float) -> None:
        self.history.observe([], Stats(now=now, counters=self.counters.copy(), **stats))  # type: ignore[arg-type]


def test_a_step_is_split_into_prompts_and_the_rest() -> None:
    past = Past()
    past.step(100.0, prompt=48, decodes=3)
    past.step(100.1, decodes=4)
    past.tell(100.2)  # news without a step
    assert past.history.steps() == {
        "last": 2,
        "prompt_tokens": [48, 0],
        "decode_tokens": [3, 4],
        "rows": [4, 5],
        "ms": [20.0, 20.0],
    }


def test_only_the_last_steps_and_seconds_are_kept() -> None:
    past = Past()
    for number in range(2000):
        past.step(100 + number / 4, decodes=1)
    assert len(past.history.steps()["ms"]) == STEPS
    assert len(past.history.seconds(600.0)["generated_tokens"]) == SECONDS
    assert len(past.history._seconds) <= SECONDS + WINDOW_S + 1


def test_seconds_are_whole_ones_that_are_over() -> None:
    past = Past()
    past.step(100.2, prompt=10, decodes=2, running=3, waiting=1, blocks_total=9, blocks_free=4)
    past.step(100.9, decodes=3, running=2, blocks_total=9, blocks_free=9)
    past.step(101.5, decodes=7, running=5)
    told = past.history.seconds(102.4)
    assert told["generated_tokens"][-2:] == [5, 7]
    assert told["prompt_tokens"][-2:] == [10, 0]
    assert told["steps"][-2:] == [2, 1]
    assert told["busy"][-2:] == [0.04, 0.02]
    assert told["running"][-2:] == [2, 5]
    assert told["owned_blocks"][-2] == 0
    assert past.history.seconds(101.9)["generated_tokens"][-1] == 5


@pytest.mark.parametrize("idle", [3, 1000])
def test_while_nothing_happens_nothing_is_computed_and_what_was_there_stays(idle: int) -> None:
    past = Past()
    past.step(100.5, decodes=2, running=1, waiting=4)
    told = past.history.seconds(101.0 + idle)
    assert told["generated_tokens"][-idle:] == [0] * min(idle, SECONDS)
    assert told["waiting"][-idle:] == [4] * min(idle, SECONDS)
    assert told["itl_s"]["p50"][-1] is None


def test_percentiles_are_of_what_was_observed_lately() -> None:
    past = Past()
    past.ttft.observe(0.5, 1000)
    past.step(100.5)
    past.itl.observe(0.05, 100)
    past.step(200.5)
    told = past.history.seconds(201.0)
    assert told["ttft_s"]["p95"][-1] is None  # a hundred seconds ago
    assert told["itl_s"]["p50"][-1] == pytest.approx(0.055)
    assert told["itl_s"]["p50"][-2] is None
    assert past.history.seconds(200.0 + WINDOW_S)["itl_s"]["p50"][-1] is not None
    assert past.history.seconds(202.0 + WINDOW_S)["itl_s"]["p50"][-1] is None


def test_before_anything_has_happened_there_is_nothing_to_tell() -> None:
    told = Past().history.seconds(5.0)
    assert set(told["steps"]) == {0}
    assert set(told["ttft_s"]["p50"]) == {None}


@pytest.mark.parametrize(
    ("counts", "share", "value"),
    [
        ([0, 0, 0], 0.5, None),
        ([4, 0, 0], 0.5, 0.5),
        ([0, 4, 0], 0.25, 1.25),
        ([1, 1, 0], 0.95, 1.9),
        ([0, 0, 3], 0.5, 2.0),  # beyond the last bound, of which only that is known
    ],
)
def test_a_quantile_lies_evenly_within_its_bucket(counts, share, value) -> None:
    found = quantile((1.0, 2.0), counts, share)
    assert found == (None if value is None else pytest.approx(value))
