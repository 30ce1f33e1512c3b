"""The scheduling-policy contract.

A policy supplies order, shares, victims and verdicts. The engine owns queues, blocks, budgets and
time, and keeps every invariant whatever a policy returns. Every method has a default, so that
``class MyPolicy(Policy): pass`` is complete (and is first come, first served).

A policy has no clock, randomness or I/O of its own: only what it is given. So the same object runs
live, in virtual time and as a shadow.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias


class Phase(enum.Enum):
    """Where a request is; PREFILL means computing known tokens, also again after preemption."""

    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    PREEMPTED = "preempted"
    FINISHED = "finished"


class RequestView(Protocol):
    """A live, read-only view of one request. Lengths are in tokens, times in seconds."""

    @property
    def id(self) -> int: ...
    @property
    def ticket(self) -> int:
        """Arrival rank: unique, smaller is older, kept through preemption."""
        ...

    @property
    def tenant(self) -> str: ...
    @property
    def weight(self) -> float:
        """The tenant's share beside others': twice the weight, twice the service. 1 is usual."""
        ...

    @property
    def slo_class(self) -> str: ...
    @property
    def priority(self) -> int:
        """The client's priority; lower is more urgent."""
        ...

    @property
    def arrival(self) -> float: ...
    @property
    def ttft_deadline(self) -> float:
        """Engine time by which the first token is due; inf if there is none."""
        ...

    @property
    def queue_deadline(self) -> float:
        """Engine time after which the request is no longer worth starting; inf if there is none."""
        ...

    @property
    def tpot_target(self) -> float:
        """Seconds allowed per output token; inf if there is none."""
        ...

    @property
    def phase(self) -> Phase: ...
    @property
    def prompt(self) -> int: ...
    @property
    def cached(self) -> int:
        """Tokens found in the prefix cache: by a waiting request now, by others at admission."""
        ...

    @property
    def computed(self) -> int:
        """Tokens of all sequences whose KV is in the cache."""
        ...

    @property
    def output(self) -> int:
        """Tokens generated so far, over all sequences."""
        ...

    @property
    def max_output(self) -> int:
        """Tokens that may be generated at most, per sequence."""
        ...

    @property
    def rows(self) -> int:
        """Sequences, hence rows of a step, that the request needs."""
        ...

    @property
    def blocks(self) -> int: ...
    @property
    def private_blocks(self) -> int:
        """Blocks that no other request shares: what preempting this one would give back."""
        ...

    @property
    def recompute(self) -> int:
        """Tokens that would have to be computed again if the request were preempted now."""
        ...

    @property
    def preemptions(self) -> int: ...
    @property
    def last_token_at(self) -> float:
        """Engine time of the last token; -inf before the first."""
        ...


class StepView(Protocol):
    """A read-only view of the step being planned."""

    @property
    def now(self) -> float: ...
    @property
    def index(self) -> int: ...
    @property
    def budget(self) -> int:
        """Tokens that this step may compute; more, perhaps, where nobody decodes."""
        ...

    @property
    def row_limit(self) -> int: ...
    @property
    def block_size(self) -> int: ...
    @property
    def free_blocks(self) -> int: ...
    @property
    def evictable_blocks(self) -> int: ...
    @property
    def total_blocks(self) -> int: ...
    @property
    def waiting(self) -> int: ...
    @property
    def prefilling(self) -> int:
        """Running requests whose prompt is not fully computed yet."""
        ...

    @property
    def decoding(self) -> int:
        """Running decodes, each a row: a request with several sequences may have several."""
        ...

    @property
    def decode_kv_tokens(self) -> int:
        """KV tokens that the running decodes will read in this step."""
        ...

    @property
    def forced_tokens(self) -> int:
        """Tokens that grammars forced on the running decodes and that are still to be computed,
        beside the one that each decode gets."""
        ...

    @property
    def tightest_tpot(self) -> float:
        """Smallest TPOT target among the running requests; inf if none has one."""
        ...

    @property
    def running_by_class(self) -> Mapping[str, int]: ...


class Heads(Protocol):
    """The first request of each flow with something waiting."""

    def __contains__(self, flow: Hashable) -> bool: ...
    def __getitem__(self, flow: Hashable) -> RequestView: ...
    def __iter__(self) -> Iterator[Hashable]: ...
    def __len__(self) -> int: ...
    def best(self) -> Hashable:
        """The flow whose head has the smallest key. Raises LookupError if nobody waits."""
        ...


@dataclass(frozen=True, slots=True)
class Accept:
    """The request may wait for its turn."""


@dataclass(frozen=True, slots=True)
class Reject:
    """The request is refused; `retry_after` (seconds) tells the client when to try again."""

    reason: str
    retry_after: float | None = None


@dataclass(frozen=True, slots=True)
class Demote:
    """The request goes on in another class."""

    slo_class: str


Verdict: TypeAlias = Accept | Reject | Demote
ACCEPT = Accept()


@dataclass(frozen=True, slots=True)
class Hold:
    """`pick` wants nobody admitted before the engine time `until` (an admission window)."""

    until: float


@dataclass(frozen=True, slots=True)
class Share:
    """How a step's budget is split. The engine clamps every number to its own limits.

    decode: for running decodes; guesses that they verify (speculative decoding) and tokens that a
    grammar forced on them are among it.
    """

    decode: int
    prompt: int
    chunk: int


@dataclass(frozen=True, slots=True)
class Arrived:
    request: RequestView


@dataclass(frozen=True, slots=True)
class Admitted:
    """`first_computed`: prompt tokens to compute for the first time; `recomputed`: again.

    Only the first are charged: preemption is the engine's doing, never the tenant's. They are told
    once, when a request is admitted for the first time: what was cached then and has to be computed
    after a preemption counts as `recomputed`, and several sequences compute their prompt once.
    """

    request: RequestView
    first_computed: int
    recomputed: int


@dataclass(frozen=True, slots=True)
class Tokens:
    """`count` tokens of `request` were generated in the step."""

    request: RequestView
    count: int


@dataclass(frozen=True, slots=True)
class Preempted:
    """`lost` computed tokens of `request` were given up. Never a reason to refund."""

    request: RequestView
    lost: int


@dataclass(frozen=True, slots=True)
class Finished:
    request: RequestView


@dataclass(frozen=True, slots=True)
class Cancelled:
    request: RequestView


@dataclass(frozen=True, slots=True)
class Shed:
    request: RequestView
    reason: str


@dataclass(frozen=True, slots=True)
class StepDone:
    """Predicted and actual seconds of the step that just ended."""

    predicted: float
    actual: float


Event: TypeAlias = Arrived | Admitted | Tokens | Preempted | Finished | Cancelled | Shed | StepDone


class StepCost(Protocol):
    """Predicts the seconds of a step (see `engine.cost`)."""

    @property
    def relative_error(self) -> float: ...
    @property
    def epoch(self) -> int:
        """Changes only when a coefficient moved enough for plans to be made anew."""
        ...

    def seconds(self, prefill: int, decodes: int, kv_read: int, chunk_context: int) -> float: ...


@dataclass(frozen=True, slots=True)
class Services:
    """What a policy is given besides its parameters."""

    cost: StepCost
    rng: random.Random


@dataclass(slots=True)
class Service:
    """What a tenant got: prompt tokens computed for the first time (as `Admitted` tells them), and
    tokens generated. weight: of its latest request."""

    input: int = 0
    output: int = 0
    weight: float = 1.0


OWN: Final = "own"
SERVICE: Final = "service"
"""Names of the engine's entries in the state that `restore` gets."""


class Policy:
    """Order, shares, victims and verdicts. Override what the policy is about.

    Parameters are keyword arguments of `__init__` with annotations, so that a wrong name or type in
    the configuration is a start-up error.
    """

    def __init__(self, *, services: Services) -> None:
        self.services = services

    def admit(self, request: RequestView, step: StepView) -> Verdict:
        """Judge a request at the door, and again whenever it is the head about to be let in.

        Also before anybody knows whether it fits: who is refused need not wait for blocks first.
        """
        return ACCEPT

    def flow(self, request: RequestView) -> Hashable:
        """Name the queue the request joins: one for all, per tenant, per class. Never None."""
        return "all"

    def key(self, request: RequestView) -> tuple[Any, ...]:
        """Order inside the flow, smaller first. Static: it never depends on the time."""
        return (request.ticket,)

    def prefix_key(self, request: RequestView, cached: int) -> tuple[Any, ...]:
        """Order inside the flow by what the prefix cache holds of each prompt, smaller first.

        Override it, and a request that waits in a flow is always where this puts it, with `cached`
        tokens of it cached, however often that changes. Requests with the same cached prefix move
        as one: so with the same `cached` two of a flow must compare as their `key` does, and `key`
        must not look at `cached`. `heads.best()` then looks at the head of each flow.
        """
        return self.key(request)

    def pick(self, heads: Heads, step: StepView) -> Hashable | Hold | None:
        """Choose the flow whose head is next; None for nobody this step, or `Hold(until)`."""
        return heads.best()

    def rank(self, request: RequestView) -> tuple[Any, ...]:
        """Order running prompts and waiting heads among each other, smaller first."""
        return self.key(request)

    def share(self, step: StepView) -> Share:
        """Split the step's token budget."""
        return Share(decode=step.budget, prompt=step.budget, chunk=step.budget)

    def chunk(self, request: RequestView, start: int, most: int, step: StepView) -> int:
        """How many of `most` tokens, from position `start` of a sequence, this step computes.

        Asked once for each prompt that gets a turn, after the decodes have been granted; `most` is
        what it lacks, or what the shares leave it. 0 ends the prompt work of the step.
        """
        return most

    def backfill(self, step: StepView) -> int:
        """How many requests may pass a head that does not fit, in all its time in the queue."""
        return 0

    def may_wait(self, request: RequestView, step: StepView) -> bool:
        """Whether this running decode may skip this step."""
        return False

    def victim(self, request: RequestView, step: StepView) -> tuple[Any, ...] | None:
        """Order in which running requests give way when blocks run out, smallest first.

        None protects the request; if all are protected the youngest ticket gives way.
        """
        return None

    def displaces(self, newcomer: RequestView, running: RequestView) -> bool:
        """Whether a waiting request may push this running one out."""
        return False

    def observe(self, events: Sequence[Event]) -> Iterable[int]:
        """Learn what happened; return the ids of waiting requests whose key changed."""
        return ()

    def export(self) -> dict[str, Any]:
        """State for a live swap."""
        return {}

    def restore(
        self, state: Mapping[str, Any], live: Sequence[RequestView], step: StepView
    ) -> None:
        """Take over from another policy (or an earlier self) with requests in flight.

        `state` is what the other one exports, and two entries of the engine's own: `OWN`, what a
        policy of this class exported when it was last in charge, {} if none was, and `SERVICE`,
        `Service` by tenant since the engine started, whoever was in charge.
        """

    def explain(self, request: RequestView, step: StepView) -> str:
        """Say in one sentence why the request waits."""
        return f"{step.waiting} requests wait; this one holds ticket {request.ticket}."
