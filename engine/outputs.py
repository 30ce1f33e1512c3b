"""What leaves the engine: outputs of requests and a snapshot of the whole."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from operator import attrgetter

from engine.batch import StepShape
from engine.controls import TokenLogprobs


class FinishReason(enum.Enum):
    """Why a sequence ended. The values stop and length are OpenAI's words."""

    STOP = "stop"
    LENGTH = "length"
    ERROR = "error"
    REJECTED = "rejected"


class FailureKind(enum.Enum):
    """Classes of failure that a front end maps to status codes."""

    NEVER_FITS = "never_fits"
    SHED = "shed"
    DEADLINE = "deadline"
    ENGINE_FAULT = "engine_fault"
    SHUTTING_DOWN = "shutting_down"
    NOT_READY = "not_ready"
    CLIENT_LAGGED = "client_lagged"
    GRAMMAR = "grammar"


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a request got no (further) tokens, in words a client may read."""

    kind: FailureKind
    message: str
    retry_after: float | None = None


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of a sequence; stop_token is the id that ended it, if one did."""

    reason: FinishReason
    stop_token: int | None = None
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Timing:
    """Engine times (seconds) of a request: arrival <= admitted <= now.

    Sent with a sequence's first output.
    """

    arrival: float
    admitted: float


@dataclass(slots=True)
class Output:
    """News of one sequence after one step. Made for each row of each step, hence not frozen.

    at: engine time at which the tokens were known. A sequence's outputs arrive in order and the
    last one carries `finish`. Failures of a whole request are sent for every one of its sequences.
    timing, cached, prompt_logprobs: on the first with tokens, of the request.
    """

    request: int
    index: int
    at: float
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish: Finish | None = None
    timing: Timing | None = None
    cached: int = 0
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(slots=True)
class Counters:
    """Totals since start. Monotone; the engine sends copies.

    arrived = finished + rejected + cancelled + failed + expired + waiting + running (E6).
    prompt_tokens: prompt tokens computed, again after preemption too; recomputed_tokens: tokens
    that readmitted requests have to compute again; computed_rows: rows over all steps;
    cached_tokens: prompt tokens found in the prefix cache, counted at the first admission, as are
    admitted_tokens, all prompt tokens of who was let in, and looked_up_tokens, those of them that
    were looked for in the cache;
    offloaded_blocks and restored_blocks: blocks moved to host memory, and back;
    drafts: rows that verified guesses (`engine.speculation`), draft_tokens: the guesses, and
    accepted_tokens: those that were right and were said; draft_faults: how often guessing failed;
    forced_tokens: generated tokens that a grammar left no choice about (`engine.forced`);
    late_rows: rows that came to no token because their masks were not there in time.
    """

    steps: int = 0
    arrived: int = 0
    admitted: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    recomputed_tokens: int = 0
    computed_rows: int = 0
    cached_tokens: int = 0
    preemptions: int = 0
    offloaded_blocks: int = 0
    restored_blocks: int = 0
    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    draft_faults: int = 0
    forced_tokens: int = 0
    late_rows: int = 0
    admitted_tokens: int = 0
    looked_up_tokens: int = 0
    finished: int = 0
    rejected: int = 0
    cancelled: int = 0
    failed: int = 0
    expired: int = 0

    def copy(self) -> Counters:
        """The totals as they are now; made in each step, so `dataclasses.replace` is too slow."""
        return Counters(*_totals(self))


_totals = attrgetter(*(each.name for each in fields(Counters)))


@dataclass(slots=True)
class Stats:
    """A snapshot of the engine, made on its own thread at most once a step: hence not frozen.

    running_by_class, waiting_by_class: the same by service class. gated: those of the waiting whose
    class is at its limit of running requests.
    step_seconds, step_predicted: what the step took that was just computed, and what the cost model
    had said; 0 where mail alone changed the counts. step_shape: of that step; None also where
    blocks were moved in it, which says nothing about computing.
    forced_admissions: those the guard gave to the oldest ticket; policy_faults: what the policy
    did wrong, of any kind; fallback_steps: those that FCFS was in charge of in its place.
    queue_seconds: how long requests have waited in all, by reason (`engine.queue_time`).
    """

    now: float = 0.0
    running: int = 0
    waiting: int = 0
    running_by_class: Mapping[str, int] = field(default_factory=dict)
    waiting_by_class: Mapping[str, int] = field(default_factory=dict)
    gated: int = 0
    blocks_free: int = 0
    blocks_cached: int = 0
    blocks_total: int = 0
    host_blocks_free: int = 0
    host_blocks_total: int = 0
    step_tokens: int = 0
    step_rows: int = 0
    step_seconds: float = 0.0
    step_predicted: float = 0.0
    step_shape: StepShape | None = None
    forced_admissions: int = 0
    policy_faults: int = 0
    fallback_steps: int = 0
    queue_seconds: Mapping[str, float] = field(default_factory=dict)
    counters: Counters = field(default_factory=Counters)


Look = Callable[[], Stats]
"""Makes a snapshot of the engine. Only on its thread, and only while it hands a step over."""


@dataclass(frozen=True, slots=True)
class Handover:
    """What came of a `Reconfigure`. step: the first under the new order. fault: why FCFS is in
    charge there in the policy's place; empty if it is not."""

    step: int
    fault: str = ""


@dataclass(frozen=True, slots=True)
class RequestSnapshot:
    """One live request as `inspect` saw it. Lengths in tokens, times in engine seconds.

    blocks, host_blocks: the tables of its sequences in the KV pool, and in host memory.
    """

    id: int
    ticket: int
    phase: str
    tenant: str
    slo_class: str
    priority: int
    arrival: float
    prompt: int
    computed: int
    generated: int
    preemptions: int
    blocks: tuple[tuple[int, ...], ...]
    host_blocks: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class PoolSnapshot:
    """The KV pool as `inspect` saw it.

    owners: how many own each block. cached: blocks without owner whose content can still be found.
    """

    owners: tuple[int, ...]
    cached: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Position:
    """A request is the `place`-th (from 1) of `of` in its line, a class's part of `flow`.

    exact: False if it may be further behind: only so many were counted. lines: how many move
    side by side; which of them is next is the policy's word each time.
    """

    flow: str
    place: int
    of: int
    exact: bool
    lines: int


@dataclass(frozen=True, slots=True)
class Blocker:
    """One thing that a waiting request waits for: it `needs` more than is `left`.

    by: "rows", "blocks", "class" (its limits), "hold" (nobody is admitted for `needs` seconds),
    "step" (a token of it is still computed), "order" (`needs` requests go first), or "policy"
    (nothing of these: the policy picked nobody, or others).
    """

    by: str
    needs: float = 0
    left: float = 0


@dataclass(frozen=True, slots=True)
class Overtaker:
    """A younger request that was admitted while this one waited, at an engine time.

    why: "class" (a limit had closed this one's class), "room" (this one did not fit), or "policy".
    """

    id: int
    at: float
    why: str


@dataclass(frozen=True, slots=True)
class StartEstimate:
    """Seconds from now until a waiting request starts (`engine.forecast`), with an interval."""

    seconds: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class RequestExplanation:
    """Why a request is where it is. What waits has a position, blockers and an estimate.

    overtakers: since it began to wait, for the first time or again, the earliest first; the latest
    of `overtaken` where `complete` is False, which itself counts only those that are remembered.
    lost: computed tokens that preemption has cost it. words: the policy's.
    """

    request: RequestSnapshot
    lost: int
    position: Position | None = None
    blockers: tuple[Blocker, ...] = ()
    overtakers: tuple[Overtaker, ...] = ()
    overtaken: int = 0
    complete: bool = True
    start: StartEstimate | None = None
    words: str = ""


@dataclass(frozen=True, slots=True)
class Explanations:
    """What was asked for, the counts, and who is in charge: FCFS if `fallen_back`."""

    stats: Stats
    fallen_back: bool
    last_fault: str
    requests: tuple[RequestExplanation, ...]


@dataclass(frozen=True, slots=True)
class Inspection:
    """The engine from inside: its counts, its pool, its policy, and the first of its requests."""

    stats: Stats
    pool: PoolSnapshot
    policy: str
    fallen_back: bool
    last_fault: str
    requests: tuple[RequestSnapshot, ...]
