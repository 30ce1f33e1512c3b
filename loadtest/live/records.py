"""What became of requests that were sent to a server, as their client saw it."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from engine.simulation import NO_TARGETS, Record, Targets
from loadtest.live.server_metrics import Look
from loadtest.live.stream import Stream
from loadtest.traces import Arrival

REFUSALS: Final = (429, 503)
"""Statuses of who was turned away: shed, as opposed to failed."""


@dataclass(slots=True)
class LiveRecord:
    """What became of one request. Times in seconds from the start of the run.

    arrival: `at` is when it was due. sent_at: when it was on its way, which is later where the
    client lagged. chunk_times: when each chunk of the answer came. output_tokens: as the server
    counts them. queue_s: from arrival at the server to admission, by the server's word, if it says
    so (`api.per_request_metrics`). error: the code of the error, None if all went well: the
    server's, http_STATUS, connection, connection_lost, timeout, cut_short (no end of the stream),
    too_few_tokens, invalid_event. arm: `x-ab-arm` of the reply. ended: whether it did, well or not.
    """

    arrival: Arrival
    sent_at: float = 0.0
    chunk_times: array[float] = field(default_factory=lambda: array("d"))
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    queue_s: float | None = None
    status: int = 0
    error: str | None = None
    arm: str | None = None
    ended: bool = False

    @property
    def lag(self) -> float:
        """How late the client was, in seconds."""
        return self.sent_at - self.arrival.at

    @property
    def refused(self) -> bool:
        """Whether the server turned it away."""
        return self.error is not None and self.status in REFUSALS

    def note(self, stream: Stream) -> None:
        """Take in what the server said of tokens and times, and whether the stream ended well."""
        self.ended = True
        usage = stream.usage
        self.prompt_tokens = usage.get("prompt_tokens", 0)
        self.output_tokens = usage.get("completion_tokens", len(stream.chunk_times))
        details = usage.get("prompt_tokens_details") or {}
        self.cached_tokens = details.get("cached_tokens") or 0
        queue = stream.metrics.get("queue_time_ms")
        self.queue_s = None if queue is None else queue / 1e3
        self.error = stream.error
        if self.error is None and not stream.done:
            self.error = "cut_short"
        if self.error is None and self.output_tokens < self.arrival.output_tokens:
            self.error = "too_few_tokens"

    def moved(self, seconds: float) -> LiveRecord:
        """The same at other times: so many seconds later."""
        return replace(
            self,
            arrival=replace(self.arrival, at=max(0.0, self.arrival.at + seconds)),
            sent_at=self.sent_at + seconds,
            chunk_times=array("d", (at + seconds for at in self.chunk_times)),
        )

    def as_simulated(self, targets: Targets = NO_TARGETS, *, since_sent: bool = False) -> Record:
        """The same as the simulation has it, so that the same figures are made of both.

        Latencies count from when the request was due, or from when it was sent. Tokens that came in
        one chunk came at the same time. Every error is a `shed`.
        """
        sent_at = max(0.0, self.sent_at)  # a loop's timer may be early by a little
        arrival = replace(self.arrival, at=sent_at) if since_sent else self.arrival
        times = array("d", self.chunk_times)
        if times and self.error is None:
            times.extend([times[-1]] * (self.arrival.output_tokens - len(times)))
            del times[self.arrival.output_tokens :]
        admitted = None if self.queue_s is None else self.sent_at + self.queue_s
        return Record(
            arrival,
            targets,
            admitted_at=admitted,
            token_times=times,
            shed=self.error,
            cached_tokens=self.cached_tokens,
        )


@dataclass(frozen=True, slots=True)
class LiveRun:
    """A run against a server: its requests in order of arrival, and looks at the server meanwhile.

    targets: by class. url, model: who answered. due: how many requests there were to be; 0 where
    nobody knows. It is more than there are if the run was interrupted.
    """

    requests: Sequence[LiveRecord]
    looks: Sequence[Look]
    url: str
    model: str
    targets: Mapping[str, Targets] = field(default_factory=dict)
    due: int = 0

    @property
    def interrupted(self) -> bool:
        return len(self.requests) < self.due

    def records(self, *, since_sent: bool = False) -> list[Record]:
        """The requests as the simulation has them; see `LiveRecord.as_simulated`."""
        return [
            request.as_simulated(
                self.targets.get(request.arrival.slo_class, NO_TARGETS), since_sent=since_sent
            )
            for request in self.requests
        ]

    def errors(self) -> dict[str, int]:
        """How many requests ended with each error, the most frequent first."""
        counts = Counter(request.error for request in self.requests if request.error is not None)
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def jsonable(request: LiveRecord) -> dict[str, Any]:
    """A record with every time that was noted, for scripts."""
    arrival = request.arrival
    return {
        "due_s": arrival.at,
        "sent_s": request.sent_at,
        "chunks_s": list(request.chunk_times),
        "tenant": arrival.tenant,
        "class": arrival.slo_class,
        "asked_tokens": {"prompt": arrival.prompt_tokens, "output": arrival.output_tokens},
        "prompt_tokens": request.prompt_tokens,
        "output_tokens": request.output_tokens,
        "cached_tokens": request.cached_tokens,
        "queue_s": request.queue_s,
        "status": request.status,
        "error": request.error,
        "arm": request.arm,
    }


def from_json(said: Mapping[str, Any]) -> LiveRecord:
    """A record from `jsonable`, without its priority and the names of its content."""
    asked = said["asked_tokens"]
    arrival = Arrival(
        said["due_s"],
        asked["prompt"],
        asked["output"],
        tenant=said["tenant"],
        slo_class=said["class"],
    )
    return LiveRecord(
        arrival,
        said["sent_s"],
        array("d", said["chunks_s"]),
        said["prompt_tokens"],
        said["output_tokens"],
        said["cached_tokens"],
        said["queue_s"],
        said["status"],
        said["error"],
        said["arm"],
    )
