"""What may be said to the engine: messages of the inbox, drained once a step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from engine.beam_search import BeamSearch
from engine.controls import RowControls
from engine.limits import ClassLimits
from engine.outputs import Explanations, Handover, Inspection
from policies.base import Policy


@dataclass(frozen=True, slots=True)
class Submission:
    """A request as it crosses to the engine thread; nobody touches it afterwards.

    id is unique among live requests and made by the server, never by a client.
    prompt: at least one token id. max_tokens: generated tokens per sequence, at least 1.
    arrival: engine-clock seconds at which the front end accepted it. n: sequences that are answered
    with. beams: if set, these are the n best that a beam search finds, said when it is over.
    salt: requests with different salts share no cached block (`engine.prefix.salt_of`).
    prompt_keys: `engine.prefix.block_keys` of prompt and salt, made off the engine thread; empty
    if nobody made them.
    weight: the tenant's share beside others', for policies that share; positive and finite.
    Raises ValueError for anything else, on the thread that makes it.
    """

    id: int
    prompt: Sequence[int]
    max_tokens: int
    controls: RowControls
    arrival: float
    n: int = 1
    beams: BeamSearch | None = None
    tenant: str = "default"
    weight: float = 1.0
    slo_class: str = "default"
    priority: int = 0
    ttft_deadline: float = math.inf
    queue_deadline: float = math.inf
    tpot_target: float = math.inf
    salt: bytes = b""
    prompt_keys: Sequence[bytes] = ()

    def __post_init__(self) -> None:
        if not self.prompt:
            raise ValueError("a request needs at least one prompt token")
        if self.max_tokens < 1 or self.n < 1:
            raise ValueError(f"max_tokens {self.max_tokens} and n {self.n} must be at least 1")
        if self.beams is not None and self.beams.width < self.n:
            raise ValueError(f"{self.beams.width} beams cannot answer with {self.n} sequences")
        if self.beams is not None and self.controls.grammar is not None:
            raise ValueError("a beam search follows no grammar")
        if not 0 < self.weight < math.inf:
            raise ValueError(f"weight {self.weight} must be positive and finite")

    @property
    def sequences(self) -> int:
        """Sequences that are computed at once: rows of a step."""
        return self.n if self.beams is None else self.beams.width


@dataclass(frozen=True, slots=True)
class Abort:
    """Nobody waits for the request any more. Idempotent; unknown ids are ignored."""

    id: int


@dataclass(frozen=True, slots=True)
class FinishAt:
    """Sequence `index` ends with its `tokens`-th generated token: a stop string was found."""

    id: int
    index: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Stop:
    """End the loop; requests that are still open fail with `reason`."""

    reason: str = "the server is shutting down"


@dataclass(frozen=True, slots=True)
class Inspect:
    """Ask for a look inside; `reply` is called on the engine thread and must be quick.

    limit: how many requests at most: those that run, then who waits, the oldest first.
    """

    reply: Callable[[Inspection], None]
    limit: int = 100


@dataclass(frozen=True, slots=True)
class Explain:
    """Ask why requests wait; `reply` is called on the engine thread and must be quick.

    id: of one request, which is explained in full; None for the first `limit`, in brief.
    """

    reply: Callable[[Explanations], None]
    id: int | None = None
    limit: int = 100


@dataclass(frozen=True, slots=True)
class PolicyName:
    """What a policy was made from."""

    name: str
    params: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reconfigure:
    """Put another policy in charge, or other class limits in force, between two steps.

    None leaves what there is. reply: called on the engine thread when it is done; must be quick.
    named: how a configuration calls the policy, for who records it.
    """

    policy: Policy | None = None
    classes: Mapping[str, ClassLimits] | None = None
    reply: Callable[[Handover], None] | None = None
    named: PolicyName | None = None


Message: TypeAlias = Submission | Abort | FinishAt | Inspect | Explain | Reconfigure | Stop
