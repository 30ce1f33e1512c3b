"""A stretch of live traffic, as a simulation is told of it: who came, and what became of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.shadow.measures import Whose
from engine.inbox import Submission


@dataclass(frozen=True, slots=True)
class Request:
    """What was known of a request when it came. Times in seconds, by the engine's clock.

    came: when it reached the bridge, having been read. asked: tokens that each of its `sequences`
    may have. keys: those of its prompt's full blocks, one behind the other; empty if it has none.
    """

    whose: Whose
    came: float
    prompt_tokens: int
    asked: int
    sequences: int
    weight: float
    priority: int
    ttft_deadline: float
    queue_deadline: float
    tpot_target: float
    keys: bytes

    @classmethod
    def of(cls, submission: Submission, now: float) -> Request:
        """A request that has just reached the bridge."""
        return cls(
            whose=Whose(submission.id, submission.arrival, submission.tenant, submission.slo_class),
            came=now,
            prompt_tokens=len(submission.prompt),
            asked=submission.max_tokens,
            sequences=submission.sequences,
            weight=submission.weight,
            priority=submission.priority,
            ttft_deadline=submission.ttft_deadline,
            queue_deadline=submission.queue_deadline,
            tpot_target=submission.tpot_target,
            keys=b"".join(submission.prompt_keys),
        )


@dataclass(frozen=True, slots=True)
class Course:
    """What became of a request by the end of a stretch.

    had: tokens generated before it began, of all its sequences together; got: by its end. length:
    tokens of each sequence if it had ended by itself, None where nobody knows. left: when its
    client left, None if it did not. cached: tokens of its prompt that were found in the prefix
    cache.
    """

    request: Request
    had: int
    got: int
    length: int | None
    left: float | None
    cached: int = 0


@dataclass(frozen=True, slots=True)
class Stretch:
    """What ran or waited from `start` on, and came until `closes`, in order of arrival.

    opens: when what is measured begins; between `start` and then a simulation finds its way in.
    """

    start: float
    opens: float
    closes: float
    courses: Sequence[Course]
