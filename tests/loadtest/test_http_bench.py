"""`octavo bench --only http`: frames are counted exactly, and the highest rate is found."""

from __future__ import annotations

import asyncio

import pytest

from app.config import load_config
from engine.outputs import Counters, Stats
from loadtest import http_bench
from loadtest.http_bench import Phase, Window, best, bracket, measure_rate, report
from loadtest.http_tables import http_table
from loadtest.machine import Unmeasured
from loadtest.streaming_clients import FrameCount

FRAME = b'data: {"text":"a"}\n\n'
DONE = b"data: [DONE]\n\n"


def phase(rate: float, *, lag: float = 1.0, tokens: float = 1.0) -> Phase:
    return Phase(rate, rate, tokens, lag, lag, 1.0, 0.9, 0.1, 0.8, 0.2)


def test_every_token_of_every_client_has_a_frame() -> None:
    config = load_config(None, {}, ["server.host=127.0.0.1"])
    found = measure_rate(config, rate=200, clients=2, seconds=0.2)
    assert found.tokens_per_frame == 1
    assert found.frames_per_s > 0
    assert found.lag_p99_ms >= found.lag_p50_ms >= 0
    assert found.server_cpu_s >= found.engine_cpu_s > 0
    assert found.client_cpu_s > 0


def test_clients_that_are_refused_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_bench, "PROMPT", 100_000)
    config = load_config(None, {}, [])
    with pytest.raises(Unmeasured):
        measure_rate(config, rate=200, clients=1, seconds=0.1)


@pytest.mark.parametrize("width", [1, 2, 3, 7, 1000])
def test_frames_are_counted_wherever_reads_are_cut(width: int) -> None:
    stream = b"HTTP/1.1 200 OK\r\n\r\n" + FRAME * 5 + DONE
    count = FrameCount(2)
    for place in (0, 1):
        for start in range(0, len(stream), width):
            count.take(place, stream[start : start + width])
    assert count.found.frames == 10


def test_the_steady_time_is_while_all_stream() -> None:
    count = FrameCount(2)
    count.take(0, FRAME * 3)
    count.take(1, FRAME)  # all have begun
    count.take(0, FRAME)
    count.take(1, FRAME)
    count.take(1, FRAME + DONE)  # the first has ended
    count.take(0, FRAME * 4 + DONE)
    assert count.found.steady_frames == 4
    assert count.found.frames == 11
    assert count.found.seconds > 0


def test_clients_that_never_streamed_together_have_no_steady_time() -> None:
    count = FrameCount(2)
    count.take(0, FRAME + DONE)
    count.take(1, FRAME + DONE)
    assert count.found.seconds > 0
    assert FrameCount(1).found.seconds == 0


@pytest.mark.parametrize("limit", [3_000, 9_000, 19_999, 20_000, 21_000, 33_000, 90_000])
def test_the_highest_rate_that_is_followed_is_bracketed(limit: float) -> None:
    asked: list[float] = []

    def follows(rate: float) -> bool:
        asked.append(rate)
        return rate <= limit

    bracket(follows, 20_000)
    good = max(rate for rate in asked if rate <= limit)
    bad = min(rate for rate in asked if rate > limit)
    assert bad / good <= 1.07


def test_a_server_that_follows_nothing_is_asked_a_few_times_only() -> None:
    asked: list[float] = []

    def follows(rate: float) -> bool:
        asked.append(rate)
        return False

    bracket(follows, 20_000)
    assert len(asked) < 12


def test_the_best_is_the_fastest_that_was_followed() -> None:
    phases = [phase(20_000), phase(25_000, lag=21), phase(22_000), phase(23_000, tokens=1.01)]
    assert best(phases) is phases[2]
    assert report(phases)["frames_per_s"] == 22_000
    assert [each["followed"] for each in report(phases)["phases"]] == [True, False, True, False]
    assert report(phases[1:2])["frames_per_s"] is None
    assert "22,000 frames" in str(http_table(report(phases)).title)
    assert "no rate" in str(http_table(report(phases[1:2])).title)


async def test_the_server_looks_at_itself_from_full_steps_to_the_first_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clocks = iter([(1.0, 10.0, 20.0, 30.0), (3.0, 14.0, 21.0, 32.0)])
    monkeypatch.setattr(http_bench, "_clocks", lambda: next(clocks))
    window = Window(2)
    window((), Stats(step_rows=2, step_tokens=17))
    window((), Stats(step_rows=1, step_tokens=1))
    window((), Stats(step_rows=2, step_tokens=2))
    window((), Stats(step_rows=2, step_tokens=2))
    assert not window.over.is_set()
    window((), Stats(step_rows=2, step_tokens=2, counters=Counters(finished=1)))
    await asyncio.wait_for(window.over.wait(), 60)
    seen = window.seen
    assert (seen.seconds, seen.process_cpu_s) == (2, 4)
    assert (seen.engine_cpu_s, seen.loop_cpu_s) == (1, 2)
