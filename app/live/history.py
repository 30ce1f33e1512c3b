"""What happened lately: the last steps one by one, and the last two minutes second by second.

Booked on the event loop from the snapshots that every step leaves there; the engine is not asked,
and nothing is done for a token.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import floor
from typing import Any, Final

from app.metrics.histograms import Histogram
from engine.outputs import Output, Stats

STEPS: Final = 120
"""Steps that are remembered one by one."""

SECONDS: Final = 120
"""Seconds that are remembered."""

WINDOW_S: Final = 15
"""Seconds behind a point whose latencies its percentiles are of."""

SHARES: Final = (0.5, 0.95)
"""The percentiles that are told."""


@dataclass(frozen=True, slots=True)
class Step:
    """A step: its tokens, and how long it took. others: those that are no prompt's, decodes."""

    prompt: int
    others: int
    rows: int
    milliseconds: float


@dataclass(slots=True)
class Second:
    """A second of engine time. prompt, generated: tokens; busy: seconds of its steps.

    ttft, itl: what the histograms had counted at its end.
    """

    prompt: int = 0
    generated: int = 0
    steps: int = 0
    busy: float = 0.0
    running: int = 0
    waiting: int = 0
    owned: int = 0
    ttft: Sequence[int] = ()
    itl: Sequence[int] = ()


class History:
    """An observer of the bridge that comes after the metrics, whose histograms it reads."""

    def __init__(self, latest: Stats, ttft: Histogram, itl: Histogram) -> None:
        self._ttft = ttft
        self._itl = itl
        self._last = latest
        self._steps: deque[Step] = deque(maxlen=STEPS)
        self._seconds: dict[int, Second] = {}
        self._current = self._begin(floor(latest.now))

    def observe(self, outputs: Sequence[Output], stats: Stats) -> None:
        """Book one delivery of the engine."""
        at = floor(stats.now)
        if at > self._current:
            self._current = self._begin(at)
        second, before = self._seconds[self._current], self._last.counters
        prompt = stats.counters.prompt_tokens - before.prompt_tokens
        second.prompt += prompt
        second.generated += stats.counters.generated_tokens - before.generated_tokens
        if stats.counters.steps != before.steps:
            second.steps += 1
            second.busy += stats.step_seconds
            step = (min(prompt, stats.step_tokens), stats.step_tokens, stats.step_rows)
            self._steps.append(_step(*step, stats.step_seconds))
        second.running, second.waiting = stats.running, stats.waiting
        second.owned = stats.blocks_total - stats.blocks_free
        # Now and not when the next second begins: by then the histograms have its first step.
        second.ttft, second.itl = tuple(self._ttft.counts), tuple(self._itl.counts)
        self._last = stats

    def _begin(self, at: int) -> int:
        """Open a second, and forget those that are no longer told."""
        self._seconds[at] = Second(ttft=tuple(self._ttft.counts), itl=tuple(self._itl.counts))
        oldest = at - SECONDS - WINDOW_S
        for known in [known for known in self._seconds if known < oldest]:
            del self._seconds[known]
        return at

    # ---------------------------------------------------------------- telling

    def steps(self) -> dict[str, Any]:
        """The last steps, the earliest first, as columns; `last` is the number of the latest."""
        return {
            "last": self._last.counters.steps,
            "prompt_tokens": [step.prompt for step in self._steps],
            "decode_tokens": [step.others for step in self._steps],
            "rows": [step.rows for step in self._steps],
            "ms": [step.milliseconds for step in self._steps],
        }

    def seconds(self, now: float) -> dict[str, Any]:
        """The last whole seconds before `now`, as columns; null where nothing was measured.

        In seconds without news nothing was computed, and what there was stayed as it was.
        """
        end = floor(now)
        told = self._filled(end - SECONDS - WINDOW_S, end)
        shown = told[WINDOW_S:]
        return {
            "generated_tokens": [second.generated for second in shown],
            "prompt_tokens": [second.prompt for second in shown],
            "steps": [second.steps for second in shown],
            "busy": [min(1.0, round(second.busy, 3)) for second in shown],
            "running": [second.running for second in shown],
            "waiting": [second.waiting for second in shown],
            "owned_blocks": [second.owned for second in shown],
            "ttft_s": _percentiles(self._ttft.bounds, [second.ttft for second in told]),
            "itl_s": _percentiles(self._itl.bounds, [second.itl for second in told]),
            "window_s": WINDOW_S,
        }

    def _filled(self, start: int, end: int) -> list[Second]:
        """A second for each from `start` to `end`, which is left out."""
        ttft, itl = [0] * len(self._ttft.counts), [0] * len(self._itl.counts)
        last = Second(ttft=ttft, itl=itl)
        for known in sorted(self._seconds):
            if known < start:
                last = self._seconds[known]
        filled = []
        for at in range(start, end):
            last = self._seconds.get(at) or Second(
                running=last.running,
                waiting=last.waiting,
                owned=last.owned,
                ttft=last.ttft,
                itl=last.itl,
            )
            filled.append(last)
        return filled


def _step(prompt: int, tokens: int, rows: int, seconds: float) -> Step:
    return Step(prompt, tokens - prompt, rows, round(1000 * seconds, 3))


def _percentiles(
    bounds: Sequence[float], counts: Sequence[Sequence[int]]
) -> dict[str, list[float | None]]:
    """By share, for each second whose window is in `counts`: of what was counted within it."""
    windows = [
        [after - before for before, after in zip(counts[at - WINDOW_S], counts[at], strict=True)]
        for at in range(WINDOW_S, len(counts))
    ]
    return {
        f"p{100 * share:.0f}": [quantile(bounds, window, share) for window in windows]
        for share in SHARES
    }


def quantile(bounds: Sequence[float], counts: Sequence[int], share: float) -> float | None:
    """What so large a share of the observations is below; None of none.

    counts: for each bucket that ends at a bound, and for what is beyond the last, of which only
    the bound is known. Within a bucket they are taken to lie evenly, as Prometheus takes them.
    """
    total = sum(counts)
    if total <= 0:
        return None
    wanted, below, low = share * total, 0, 0.0
    for bound, count in zip(bounds, counts, strict=False):
        if count and below + count >= wanted:
            return low + (bound - low) * (wanted - below) / count
        below, low = below + count, bound
    return low
