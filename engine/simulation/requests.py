"""Requests of a trace as submissions, and the answers that they get: nobody reads them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from engine.backends.simulated import SimulatedBackend
from engine.batch import BLOCK
from engine.controls import RowControls, Sampled, SampleRow, ScoredRow
from engine.inbox import Submission
from engine.prefix import KEY_BYTES
from engine.simulation.arrival import MOST_NAME, Arrival
from engine.simulation.records import Record

OTHERS: Final = "default"
"""The tenant whose weight all have that are not named."""

END: Final = 1
"""The token that ends an answer before its maximum."""

GREEDY: Final = RowControls(temperature=0.0, ignore_eos=True)
ENDING: Final = RowControls(temperature=0.0, eos_ids=frozenset({END}))


def submissions(
    records: Sequence[Record],
    weights: Mapping[str, float],
    arrived: Callable[[], None] | None = None,
) -> Iterator[Submission]:
    """Each request when its time has come, so that only those alive take memory.

    weights: of tenants, by name; OTHERS stands for all others, and without it they have 1.
    arrived: called once for each when it is in the mail.
    """
    usual = weights.get(OTHERS, 1.0)
    for number, record in enumerate(records):
        arrival, targets = record.arrival, record.targets
        asks = arrival.asked_tokens
        yield Submission(
            id=number,
            prompt=numbered_prompt(number, arrival.prompt_tokens),
            max_tokens=asks,
            controls=GREEDY if asks == arrival.output_tokens else ENDING,
            arrival=arrival.at,
            tenant=arrival.tenant,
            weight=weights.get(arrival.tenant, usual),
            slo_class=arrival.slo_class,
            priority=targets.priority if arrival.priority is None else arrival.priority,
            ttft_deadline=arrival.at + targets.ttft,
            queue_deadline=arrival.at + targets.queue,
            tpot_target=targets.tpot,
            prompt_keys=_keys(number, arrival),
        )
        if arrived is not None:  # who replays them has taken it, and asks for the next
            arrived()


def numbered_prompt(number: int, tokens: int) -> list[int]:
    """A request's number in front, by which `AnswersThatEnd` knows it, and behind, so that what
    comes after the blocks that have names is nobody else's. In between the same object over and
    over."""
    prompt = [0] * tokens
    prompt[0] = prompt[-1] = number
    return prompt


def _keys(number: int, arrival: Arrival) -> list[bytes]:
    """The keys of a prompt's blocks; where the trace says nothing of them, no other has these."""
    if arrival.prefix is not None:
        return arrival.prefix.keys(arrival.prompt_tokens)
    first = MOST_NAME + (number << 32)
    return [(first + i).to_bytes(KEY_BYTES, "big") for i in range(arrival.prompt_tokens // BLOCK)]


Tokens = Callable[[Collection[SampleRow]], list[int]]
"""Says the tokens of a step's rows."""


def endless(rows: Collection[SampleRow]) -> list[int]:
    """Token 0, over and over, without a look at anybody: answers are as long as they may be."""
    return [0] * len(rows)


class AnswersThatEnd:
    """END where an answer ends before its maximum. lengths: tokens of answers, by number."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self._lengths = lengths

    def __call__(self, rows: Collection[SampleRow]) -> list[int]:
        return [self._next(row) for row in rows]

    def _next(self, row: SampleRow) -> int:
        last = row.prompt_length + self._lengths[row.tokens[0]] - 1
        return END if row.position == last else 0


class Answering(SimulatedBackend):
    """Says what `answers` says, for all rows of a step at once; controls are ignored."""

    def __init__(self, *args: Any, answers: Tokens = endless, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._answers = answers

    def _sampled(self, sampling: Collection[SampleRow], scored: Sequence[ScoredRow]) -> Sampled:
        return Sampled(self._answers(sampling), [None] * len(sampling))
