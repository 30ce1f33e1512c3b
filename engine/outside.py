"""What reaches into scheduling beside mail, results and times: hashes and stopwatches."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence as List
from typing import Final

from engine.beam_search import Hypothesis
from engine.plan import Flight
from engine.prefix import KeyChain
from engine.request import Request, Sequence

STEP: Final = "step"
TOLD: Final = "told"
"""What a policy's CPU time was measured over: all it was asked in a step, or being told something
while another one is in charge."""


class Outside:
    """What the engine does where nobody records or replays (`engine.recorder`)."""

    def chain_of(self, sequence: Sequence) -> KeyChain:
        """Names the sequence's full blocks, those of the prompt if they came with it first."""
        submission = sequence.request.submission
        return KeyChain(submission.salt, submission.prompt_keys)

    def too_long(self, what: str, seconds: float, most: float) -> bool:
        """Whether a policy took more than `most` CPU seconds. what: STEP or TOLD."""
        return seconds > most

    def late(self, flight: Flight) -> Collection[Sequence]:
        """Which sequences of a flight had no mask in time: nothing was sampled for their rows."""
        return flight.sampling.late

    def resolved(self, request: Request, parents: List[int], found: List[Hypothesis]) -> None:
        """A beam search has chosen who goes on: the indices of the sequences that its new beams
        continue, best first; or it is over, and this is what it found."""


OUTSIDE: Final = Outside()
