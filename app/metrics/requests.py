"""What is measured of requests while somebody waits for their tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import inf, isfinite
from typing import Final, Protocol, TypeAlias

from prometheus_client.core import CounterMetricFamily, Metric
from starlette.requests import ClientDisconnect

from app.errors import ApiError
from app.metrics.buckets import Buckets
from app.metrics.histograms import Histogram
from app.metrics.labels import OTHER, Label
from engine.inbox import Submission
from engine.outputs import Output, Timing

Key: TypeAlias = tuple[int, int]
"""What the engine calls a sequence: its request, and its index there."""

Ending: TypeAlias = Callable[[Key], str | None]
"""Tells how a sequence ended, in a word of ENDS; None if it has not ended."""

STOP, LENGTH, ABORT, ERROR, REJECTED = ENDS = ("stop", "length", "abort", "error", "rejected")
SERVED: Final = frozenset({STOP, LENGTH})
SLOS: Final = ("ttft", "tpot", "all")

_BRIEF: Final = (1, 2, 4, 8, 16, 32, 64, 128)


class Listener(Protocol):
    """Is told of requests while they are measured. Called on the event loop, for every token."""

    def arrived(self, submission: Submission) -> None:
        """A request is followed from now on."""
        ...

    def began(self, submission: Submission, seconds: float, cached: int) -> None:
        """A sequence of a request has its first token, `seconds` after it arrived; cached: tokens
        of the prompt that were found in the prefix cache."""
        ...

    def came(self, submission: Submission, tokens: int, gap: float | None, at: float) -> None:
        """Tokens came at engine time `at`; gap: seconds before each, None before the first."""
        ...

    def over(self, submission: Submission, outcome: str, met: bool | None) -> None:
        """A request is followed no more; outcome: in a word of ENDS, or "served". met: whether it
        got all its targets, None if it had none or left."""
        ...


def unknown(key: Key) -> None:
    """Nobody says how sequences ended."""


class Followed:
    """A request that somebody waits for. first, last: engine times of tokens, of any sequence."""

    __slots__ = ("first", "generated", "last", "submission", "timing")

    def __init__(self, submission: Submission) -> None:
        self.submission = submission
        self.timing: Timing | None = None
        self.first = inf
        self.last = -inf
        self.generated = 0


class RequestBook:
    """Times and sizes of requests, and what tenants and classes got of what they were promised."""

    def __init__(self, buckets: Buckets, tenants: Label, classes: Label) -> None:
        self._tenants = tenants
        self._classes = classes
        self._requests: dict[int, Followed] = {}
        self._last_token: dict[Key, float | None] = {}
        self._busy_since = -inf
        self.listeners: list[Listener] = []
        self.ends: Counter[str] = Counter(dict.fromkeys((*ENDS, OTHER), 0))
        self._of_tenant: Counter[tuple[str, str]] = Counter()
        self._tokens: Counter[str] = Counter()
        self._slos: Counter[tuple[str, str, bool]] = Counter()
        self.ttft = Histogram(
            "octavo_time_to_first_token_seconds",
            "From a request's arrival to its first token, time in the queue included",
            buckets.ttft,
        )
        self.itl = Histogram(
            "octavo_inter_token_latency_seconds", "Between two tokens of a sequence", buckets.token
        )
        self.tpot = Histogram(
            "octavo_time_per_output_token_seconds",
            "Mean time between two tokens of a request that was served in full",
            buckets.token,
        )
        self.queue = Histogram(
            "octavo_queue_time_seconds", "From a request's arrival to its admission", buckets.queue
        )
        self.prefill = Histogram(
            "octavo_prefill_seconds", "From admission to the first token", buckets.request
        )
        self.decode = Histogram(
            "octavo_decode_seconds", "From the first token to the last", buckets.request
        )
        self.inference = Histogram(
            "octavo_inference_seconds", "From admission to the last token", buckets.request
        )
        self.e2e = Histogram(
            "octavo_request_seconds",
            "From the arrival of a request that was served in full to its last token",
            buckets.request,
        )
        self.prompt = Histogram(
            "octavo_request_prompt_tokens", "Tokens of the prompt", buckets.tokens
        )
        self.generated = Histogram(
            "octavo_request_generated_tokens", "Tokens of each answer", buckets.tokens
        )
        self.longest = Histogram(
            "octavo_request_longest_answer_tokens",
            "Tokens of the longest answer of a request",
            buckets.tokens,
        )
        self.max_tokens = Histogram(
            "octavo_request_max_tokens", "Most tokens that an answer could have", buckets.tokens
        )
        self.n = Histogram("octavo_request_sequences", "Sequences of a request", _BRIEF)

    # ---------------------------------------------------------------- booking

    @property
    def followed(self) -> int:
        """Sequences whose tokens are being measured."""
        return len(self._last_token)

    def silence(self, now: float, heard: float) -> float:
        """Seconds without word from the engine while requests are open; heard: its last word."""
        return max(0.0, now - max(heard, self._busy_since)) if self._requests else 0.0

    @contextmanager
    def follow(
        self, submissions: Sequence[Submission], now: float, ending: Ending = unknown
    ) -> Iterator[None]:
        """Measure requests for as long as somebody waits for them, from engine time `now` on."""
        if not self._requests:
            self._busy_since = now
        self._requests.update((each.id, Followed(each)) for each in submissions)
        keys = [(each.id, index) for each in submissions for index in range(each.n)]
        self._last_token.update(dict.fromkeys(keys))
        for listener in self.listeners:
            for submission in submissions:
                listener.arrived(submission)
        error: Exception | None = None
        try:
            yield
        except Exception as raised:
            error = raised
            raise
        finally:
            for key in keys:
                self._last_token.pop(key, None)
            for submission in submissions:
                self._close(self._requests.pop(submission.id), ending, error)

    def observe(self, output: Output) -> None:
        """Book tokens that came."""
        key = (output.request, output.index)
        if key not in self._last_token:
            return
        request = self._requests[output.request]
        last, at, count = self._last_token[key], output.at, len(output.tokens)
        gap = None if last is None else (at - last) / count
        if gap is not None:
            self.itl.observe(gap, count)
        for listener in self.listeners:
            listener.came(request.submission, count, gap, at)
        self._last_token[key] = request.last = at
        request.generated += count
        timing = output.timing
        if timing is not None:
            request.timing = timing
            request.first = min(request.first, at)
            self.queue.observe(timing.admitted - timing.arrival)
            self.ttft.observe(at - timing.arrival)
            for listener in self.listeners:
                listener.began(request.submission, at - timing.arrival, output.cached)

    def served(self, submission: Submission, last_token_at: float, tokens: Sequence[int]) -> None:
        """Book a request that was served in full; tokens: of each of its answers."""
        self.e2e.observe(last_token_at - submission.arrival)
        self.prompt.observe(len(submission.prompt))
        for count in tokens:
            self.generated.observe(count)
        self.longest.observe(max(tokens))
        self.max_tokens.observe(submission.max_tokens)
        self.n.observe(submission.n)
        request = self._requests.get(submission.id)
        if request is None or request.timing is None:
            return
        self.prefill.observe(request.first - request.timing.admitted)
        self.decode.observe(last_token_at - request.first)
        self.inference.observe(last_token_at - request.timing.admitted)
        if max(tokens) > 1:
            self.tpot.observe((last_token_at - request.first) / (max(tokens) - 1))

    def _close(self, request: Followed, ending: Ending, error: Exception | None) -> None:
        """Book what became of a request that nobody follows any more."""
        submission = request.submission
        given = [ending((submission.id, index)) for index in range(submission.n)]
        otherwise = _verdict(request, error)
        ends = [otherwise if end is None else end if end in ENDS else OTHER for end in given]
        self.ends.update(ends)
        if all(end in SERVED or end == OTHER for end in ends):
            outcome = "served"
        else:
            outcome = next(end for end in ends if end not in SERVED and end != OTHER)
        tenant = self._tenants.of(submission.tenant)
        self._of_tenant[tenant, outcome] += 1
        self._tokens[tenant] += request.generated
        met = None
        if outcome != ABORT:  # who left may have been served well or not
            met = self._judge(request, served=outcome == "served")
        for listener in self.listeners:
            listener.over(submission, outcome, met)

    def _judge(self, request: Followed, *, served: bool) -> bool | None:
        """Compare what a request got with what its class is promised; None if that is nothing."""
        submission = request.submission
        met: dict[str, bool] = {}
        if isfinite(submission.ttft_deadline):
            met["ttft"] = request.first <= submission.ttft_deadline
        if isfinite(submission.tpot_target):
            gaps = max(1, request.generated // submission.n - 1)
            met["tpot"] = served and (request.last - request.first) / gaps <= submission.tpot_target
        if met:
            met["all"] = served and all(met.values())
        label = self._classes.of(submission.slo_class)
        for slo, kept in met.items():
            self._slos[label, slo, kept] += 1
        return met.get("all")

    # ---------------------------------------------------------------- rendering

    def histograms(self) -> Iterable[Histogram]:
        """All of them, in the order of the page."""
        yield from (self.ttft, self.itl, self.tpot, self.queue, self.prefill, self.decode)
        yield from (self.inference, self.e2e, self.prompt, self.generated, self.longest)
        yield from (self.max_tokens, self.n)

    def families(self) -> Iterable[Metric]:
        """Everything but the histograms."""
        ends = CounterMetricFamily(
            "octavo_sequences_ended", "Sequences of requests by how they ended", labels=("reason",)
        )
        for reason, count in self.ends.items():
            ends.add_metric((reason,), count)
        yield ends
        requests = CounterMetricFamily(
            "octavo_tenant_requests",
            "Requests that reached the engine, by tenant and what became of them",
            labels=("tenant", "outcome"),
        )
        for labels, count in sorted(self._of_tenant.items()):
            requests.add_metric(labels, count)
        yield requests
        tokens = CounterMetricFamily(
            "octavo_tenant_generated_tokens", "Tokens generated, by tenant", labels=("tenant",)
        )
        for tenant, count in sorted(self._tokens.items()):
            tokens.add_metric((tenant,), count)
        yield tokens
        slos = CounterMetricFamily(
            "octavo_request_slo",
            "Requests with targets, by class and whether they were met; all: each of them",
            labels=("class", "slo", "met"),
        )
        for (label, slo, kept), count in sorted(self._slos.items()):
            slos.add_metric((label, slo, str(kept).lower()), count)
        yield slos


def _verdict(request: Followed, error: Exception | None) -> str:
    """How a sequence ended that says nothing itself."""
    if error is None or isinstance(error, ClientDisconnect):
        return ABORT
    refused = isinstance(error, ApiError) and error.status != 500 and request.timing is None
    return REJECTED if refused else ERROR
