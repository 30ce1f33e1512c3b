"""What the engine thread was given, turn by turn, so that it can decide the same again.

A turn is one call of `Engine.step`. Its decisions follow from the mail, the times that it read,
what the results of steps meant, and the few measurements of `engine.outside`; the rest is computed.
Token ids are no part of it: scheduling asks only how many tokens landed, and what ended. Files are
somebody else's business: a turn is handed over when it is done, and is not touched again.

    mail, times, faults ──▶ Engine.step ◀── drafts, waits, block keys, overruns
                                │
                                ▼
                 Turn: all of these, and what was decided
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from engine.beam_search import Hypothesis
from engine.errors import RowFault
from engine.inbox import Abort, Message
from engine.outputs import FinishReason, Output
from engine.outside import TOLD, Outside
from engine.plan import Flight
from engine.prefix import KeyChain
from engine.request import Request
from engine.request import Sequence as EngineSequence
from engine.scheduler import Scheduler

Name: TypeAlias = tuple[int, int]
"""A sequence: the id of its request and its index there."""

GOES_ON: Final = 0
STOPS: Final = 1
BREAKS: Final = 2
FULL: Final = 3
"""What a sequence's tokens did to it: nothing; ended it by a stop id or a complete grammar; broke
its grammar, and with it the request; were the last that it may have."""

OF_STEP: Final = -1
"""The overrun of a whole step, among those of single calls, which are counted."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a row, where that was more than one token after which the sequence goes on.

    landed: tokens. end: GOES_ON and its kin. generated: all tokens of a sequence that has ended.
    """

    name: Name
    landed: int
    end: int
    generated: int = 0


@dataclass(frozen=True, slots=True)
class Choice:
    """What a beam search chose: the sequences that its new beams continue, best first.

    If it is over, `stops` says of each sequence that it found whether a stop id ended it.
    """

    request: int
    parents: Sequence[int]
    stops: Sequence[bool] = ()


@dataclass(frozen=True, slots=True)
class Landed:
    """What the results of a step meant. lost: it came to nothing, by the fault of these rows, or of
    all where it names none."""

    outcomes: Sequence[Outcome] = ()
    choices: Sequence[Choice] = ()
    lost: Sequence[int] | None = None


PLAIN: Final = Landed()
"""One token for each row that samples, and everybody goes on: most steps."""


class Turn:
    """One call of `Engine.step`: what it was given, and what was decided. Made in each step.

    mail: in the order in which it was drained. left: for each `Abort` of it, how many tokens each
    sequence had generated. nows: the times that were read. landed: of each step that landed.
    refused: the rows that submitting a step named as faulty, none for all; None if it went well.
    drafts: how many guesses each row verifies. waits: who waits for its token, to guess from there.
    late: whose rows landed without a token, because their masks were not there in time.
    keys: names of full blocks that were computed, as (sequence, keys). overruns: when the policy
    took too long: OF_STEP, or the number of the call of this turn that told it something.
    decisions: entries of the decision log.
    """

    __slots__ = (
        "decisions",
        "drafts",
        "keys",
        "landed",
        "late",
        "left",
        "mail",
        "nows",
        "overruns",
        "refused",
        "waits",
    )

    def __init__(self, mail: Sequence[Message] = ()) -> None:
        self.mail = mail
        self.left: Sequence[Sequence[int]] = ()
        self.nows: list[float] = []
        self.landed: list[Landed] = []
        self.refused: Sequence[int] | None = None
        self.drafts: list[tuple[Name, int]] = []
        self.waits: list[Name] = []
        self.late: list[Name] = []
        self.keys: list[tuple[Name, Sequence[bytes]]] = []
        self.overruns: list[int] = []
        self.decisions: list[tuple[Any, ...]] = []


class Recorder(Outside):
    """Notes turns. take: gets each one when it is done, on the engine thread; must be quick.

    It is the scheduler's `outside` and its decision log: what a drafter said is seen from there.
    """

    def __init__(self, take: Callable[[Turn], None]) -> None:
        self._take = take
        self._turn = Turn()
        self._told = 0
        self._choices: list[Choice] = []

    # ---------------------------------------------------------------- the loop

    def begin(self, messages: Iterable[Message], scheduler: Scheduler) -> Sequence[Message]:
        """A turn begins with this mail, which nobody has read yet."""
        turn = self._turn = Turn(tuple(messages))
        self._told = 0
        if turn.mail:
            aborts = (message for message in turn.mail if isinstance(message, Abort))
            turn.left = [_generated(scheduler.request(abort.id)) for abort in aborts]
        return turn.mail

    def end(self) -> None:
        """The turn is done."""
        self._take(self._turn)

    def read(self, now: float) -> float:
        """A time was read; returns it."""
        self._turn.nows.append(now)
        return now

    def refused(self, fault: Exception) -> None:
        """A step could not be submitted."""
        self._turn.refused = tuple(fault.rows) if isinstance(fault, RowFault) else ()

    def lost(self, rows: Iterable[int]) -> None:
        """A step that was submitted came to nothing."""
        self._turn.landed.append(Landed(lost=tuple(rows)))

    def landed(self, flight: Flight, outputs: Sequence[Output]) -> None:
        """The results of a step were taken in, and this is what there was to say."""
        odd = [each for each in outputs if each.finish is not None or len(each.tokens) > 1]
        choices, self._choices = self._choices, []
        if odd or choices:
            searches = {choice.request for choice in choices}
            outcomes = list(_outcomes(flight, outputs, searches))
            self._turn.landed.append(Landed(outcomes, choices))
        else:
            self._turn.landed.append(PLAIN)

    # ---------------------------------------------------------------- the scheduler

    def decided(self, *entry: Any) -> None:
        """The scheduler's `DecisionSink`."""
        turn = self._turn
        turn.decisions.append(entry)
        if entry[0] == "draft":
            turn.drafts.append(((entry[1], entry[2]), entry[3]))
        elif entry[0] == "wait":
            turn.waits.append((entry[1], entry[2]))
        elif entry[0] == "late":
            turn.late.append((entry[1], entry[2]))

    def chain_of(self, sequence: EngineSequence) -> KeyChain:
        submission = sequence.request.submission
        return NotedChain(self, sequence.name, submission.salt, submission.prompt_keys)

    def too_long(self, what: str, seconds: float, most: float) -> bool:
        call = OF_STEP
        if what == TOLD:
            call, self._told = self._told, self._told + 1
        if seconds <= most:
            return False
        self._turn.overruns.append(call)
        return True

    def resolved(
        self, request: Request, parents: Sequence[int], found: Sequence[Hypothesis]
    ) -> None:
        stops = [each.stop_token is not None for each in found]
        self._choices.append(Choice(request.id, list(parents), stops))

    def note_keys(self, name: Name, keys: Sequence[bytes]) -> None:
        """Names of blocks were computed."""
        self._turn.keys.append((name, keys))


class NotedChain(KeyChain):
    """A chain whose new keys are noted."""

    __slots__ = ("_name", "_recorder")

    def __init__(
        self, recorder: Recorder, name: Name, salt: bytes, keys: Iterable[bytes] = ()
    ) -> None:
        super().__init__(salt, keys)
        self._recorder = recorder
        self._name = name

    def grow(self, tokens: Sequence[int]) -> list[bytes]:
        keys = super().grow(tokens)
        if keys:
            self._recorder.note_keys(self._name, keys)
        return keys

    def fork(self) -> KeyChain:
        twin = NotedChain(self._recorder, self._name, b"", self.keys)
        twin._parent = self._parent
        return twin


def _generated(request: Request | None) -> list[int]:
    """How many tokens each sequence of a request has generated so far."""
    return [] if request is None else [each.generated for each in request.sequences]


def _outcomes(flight: Flight, outputs: Sequence[Output], searches: set[int]) -> Iterable[Outcome]:
    """What came of the rows that are no beams, where it was more than a token.

    A grammar that broke is seen from its request's end. Which of several sequences broke it is not
    told apart: to all that go on it makes no difference.
    """
    broken = {each.request for each in outputs if each.finish and each.finish.failure}
    for output in outputs:
        if output.request in searches or not output.tokens:
            continue
        name = (output.request, output.index)
        end = _end(output)
        if end == GOES_ON and output.request in broken:
            end = BREAKS
        if end in (STOPS, FULL):
            yield Outcome(name, len(output.tokens), end, _length(flight, name))
        elif end == BREAKS or len(output.tokens) > 1:
            yield Outcome(name, len(output.tokens), end)


def _end(output: Output) -> int:
    if output.finish is None:
        return GOES_ON
    return STOPS if output.finish.reason is FinishReason.STOP else FULL


def _length(flight: Flight, name: Name) -> int:
    """Generated tokens of a sequence of the flight."""
    return next(each.generated for each in flight.sequences if each.name == name)
