"""How many requests and tokens a minute a tenant may use: token buckets, charged at the door.

    level   ─ refills at `per_minute`, up to `size` (what may be used at once)
    charge  ─ one request; its prompts, and as many tokens as its answers may have
    settle  ─ however it ends: what it did not use is given back

(Turner, New directions in communications, IEEE Communications Magazine 24(10), 1986.)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from engine.clock import Clock, MonotonicClock

ROUNDING: Final = 1e-9
"""Part of a bucket that may be missing from it: levels are sums of many floats."""

REQUESTS, TOKENS = "requests", "tokens"


@dataclass(frozen=True, slots=True)
class Rate:
    """What a tenant may use. None is no limit.

    requests, tokens: a minute. burst_s: seconds of it that may be used at once. assumed: tokens
    charged for each answer of a request that does not say how long it may be.
    """

    requests: float | None = None
    tokens: float | None = None
    burst_s: float = 60.0
    assumed: int = 256


class TooLarge(Exception):
    """Such a request never fits, however long one waits. size: tokens that may be used at once."""

    def __init__(self, tokens: int, size: float) -> None:
        super().__init__(f"{tokens} tokens are more than {size:g}")
        self.tokens = tokens
        self.size = size


@dataclass(frozen=True, slots=True)
class Shortage:
    """What is missing: of `what` only `left` of `size` are there; `seconds` until it fits."""

    what: str
    left: float
    size: float
    seconds: float


class Bucket:
    """Refills at a steady rate up to its size. Times in seconds, of any one clock."""

    __slots__ = ("_at", "_level", "per_second", "size")

    def __init__(self, per_minute: float, size: float, now: float) -> None:
        self.per_second = per_minute / 60
        self.size = self._level = size
        self._at = now

    def adopt(self, per_minute: float, size: float, now: float) -> None:
        """Go on at another rate with what is left, as far as it fits."""
        self._level = min(self.level(now), size)
        self._at = now
        self.per_second, self.size = per_minute / 60, size

    def level(self, now: float) -> float:
        """What is there; below 0 if more was used than had been charged."""
        return min(self.size, self._level + (now - self._at) * self.per_second)

    def wait(self, amount: float, now: float) -> float:
        """Seconds until so much is there; inf if it never is."""
        if amount > self.size:
            return math.inf
        missing = amount - self.level(now)
        return 0.0 if missing <= ROUNDING * self.size else missing / self.per_second

    def add(self, amount: float, now: float) -> None:
        """Give back, or take if it is negative; what does not fit any more is lost."""
        self._level = min(self.size, self.level(now) + amount)
        self._at = now


class Charge:
    """What one request was charged, until it is settled. Made by `Budget.charge`."""

    __slots__ = ("_clock", "_requests", "_tokens", "refunded", "tokens")

    def __init__(
        self, clock: Clock, requests: Bucket | None, bucket: Bucket | None, tokens: int
    ) -> None:
        self._clock = clock
        self._requests = requests
        self._tokens = bucket
        self.tokens = tokens
        self.refunded = 0
        now = clock.now()
        if requests is not None:
            requests.add(-1, now)
        if bucket is not None:
            bucket.add(-tokens, now)

    def settle(self, used: int, *, refused: bool) -> None:
        """Give back the tokens that were not used, or take those that were beyond the charge.

        refused: it was the server that did not serve it, so that it does not count as a request.
        To be called once.
        """
        now = self._clock.now()
        self.refunded = self.tokens - used
        if self._tokens is not None:
            self._tokens.add(self.refunded, now)
        if self._requests is not None and refused:
            self._requests.add(1, now)


class Budget:
    """The buckets of a tenant; another rate can be adopted at any time, and keeps the levels."""

    def __init__(self, rate: Rate, clock: Clock | None = None) -> None:
        self._clock = clock or MonotonicClock()
        self._buckets: dict[str, Bucket] = {}
        self.adopt(rate)

    def adopt(self, rate: Rate) -> None:
        """From now on this rate holds. Requests that are under way settle with the same buckets."""
        self._rate = rate
        now = self._clock.now()
        for what, per_minute, least in ((REQUESTS, rate.requests, 1.0), (TOKENS, rate.tokens, 0.0)):
            bucket = self._buckets.get(what)
            if per_minute is None:
                self._buckets.pop(what, None)
                continue
            size = max(least, per_minute * rate.burst_s / 60)
            if bucket is None:
                self._buckets[what] = Bucket(per_minute, size, now)
            else:
                bucket.adopt(per_minute, size, now)

    @property
    def assumed(self) -> int:
        """Tokens charged for each answer of a request that does not say how long it may be."""
        return self._rate.assumed

    def shortage(self, tokens: int = 0) -> Shortage | None:
        """Why a request of so many tokens does not fit now; None if it does.

        Raises TooLarge if it never will.
        """
        now = self._clock.now()
        short: Shortage | None = None
        for what, amount in ((REQUESTS, 1), (TOKENS, tokens)):
            bucket = self._buckets.get(what)
            seconds = 0.0 if bucket is None else bucket.wait(amount, now)
            if bucket is None or seconds == 0:
                continue
            if seconds == math.inf:
                raise TooLarge(tokens, bucket.size)
            if short is None or seconds > short.seconds:
                short = Shortage(what, bucket.level(now), bucket.size, seconds)
        return short

    def charge(self, tokens: int) -> Charge:
        """Charge a request; `shortage` has been asked, with nothing awaited since."""
        buckets = self._buckets
        return Charge(self._clock, buckets.get(REQUESTS), buckets.get(TOKENS), tokens)

    def headers(self) -> Iterator[tuple[str, str]]:
        """What is left, in OpenAI's headers; reset: until all of it is there again."""
        now = self._clock.now()
        for what, bucket in self._buckets.items():
            left = bucket.level(now)
            reset = (bucket.size - left) / bucket.per_second
            yield f"x-ratelimit-limit-{what}", f"{bucket.size:.0f}"
            yield f"x-ratelimit-remaining-{what}", f"{max(0, math.floor(left + ROUNDING)):d}"
            yield f"x-ratelimit-reset-{what}", duration(reset)


def duration(seconds: float) -> str:
    """As OpenAI writes them: 20ms, 1.5s, 6m0s, 1h0m30s. Rounded up, so that it is never early."""
    ms = math.ceil(seconds * 1000 - 1e-6)
    if ms < 1000:
        return f"{ms}ms"
    if ms < 60_000:
        return f"{ms / 1000:g}s"
    minutes, rest = divmod(math.ceil(ms / 1000), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{rest}s" if hours else f"{minutes}m{rest}s"
