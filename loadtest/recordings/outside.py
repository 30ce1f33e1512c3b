"""What surrounds an engine in a replay: clock, results, guesses, names of blocks, measurements."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator
from collections.abc import Sequence as List

from engine.batch import BLOCK, Batch
from engine.beam_search import Hypothesis
from engine.controls import Candidate, Sampled, SampleRow, TokenLogprobs
from engine.errors import RowFault
from engine.outside import TOLD, Outside
from engine.plan import Flight
from engine.prefix import KeyChain
from engine.recorder import BREAKS, GOES_ON, OF_STEP, STOPS, Landed, Name, Outcome, Turn
from engine.request import Request, Sequence
from engine.scheduler import Scheduler
from engine.speculation import Drafter
from loadtest.recordings import tokens

UNKNOWN = TokenLogprobs(0.0)


class Diverged(Exception):
    """A replay asked for something that was not recorded: it decided otherwise."""


class Recorded(Outside, Drafter):
    """Plays what was recorded of one turn after the other: `begin` it, step the engine, `end` it.

    It is the clock, the backend, the drafter and the scheduler's `outside` of a replay.
    """

    reads_arrays = False

    def __init__(self, total_blocks: int, host_blocks: int = 0, move_seconds: float = 0.0) -> None:
        self.total_blocks = total_blocks
        self.host_blocks = host_blocks
        self.move_seconds = move_seconds
        self.scheduler: Scheduler | None = None
        self._nows: Iterator[float] = iter(())
        self._landed: deque[Landed] = deque()
        self._keys: deque[tuple[Name, List[bytes]]] = deque()
        self._turn = Turn()
        self._told = 0
        self._error: Diverged | None = None
        self._cpu = 0
        self._batches: dict[int, Batch] = {}
        self._dropped: set[int] = set()
        self._ways: dict[Name, list[Candidate]] = {}

    def begin(self, turn: Turn) -> None:
        """What is asked for from now on is of this turn."""
        self._turn = turn
        self._nows = iter(turn.nows)
        self._landed.extend(turn.landed)
        self._keys.extend(turn.keys)
        self._told = 0

    def end(self) -> None:
        """Raises Diverged if the turn asked for what was not recorded, whatever became of that, or
        if something was recorded that nobody asked for."""
        if self._error is not None:
            raise self._error
        for what, left in (
            ("times", list(self._nows)),
            ("results", self._landed),
            ("names of blocks", self._keys),
        ):
            if left:
                raise self._diverged(f"{len(left)} {what} were recorded that nobody asked for")

    def _diverged(self, why: str) -> Diverged:
        """What to raise; the engine may take it for a fault of somebody else."""
        self._error = self._error or Diverged(why)
        return self._error

    # ---------------------------------------------------------------- the clock

    def now(self) -> float:
        """The engine's clock."""
        now = next(self._nows, None)
        if now is None:
            raise self._diverged("the time was asked for once too often")
        return now

    def cpu_time(self) -> float:
        """The policy's clock: it stands still, but for showing that it was looked at."""
        self._cpu += 1
        return 1e-9 * self._cpu

    # ---------------------------------------------------------------- the scheduler's outside

    def chain_of(self, sequence: Sequence) -> KeyChain:
        return RecordedChain(self, sequence.name, sequence.request.submission.prompt_keys)

    def too_long(self, what: str, seconds: float, most: float) -> bool:
        call = OF_STEP
        if what == TOLD:
            call, self._told = self._told, self._told + 1
        return call in self._turn.overruns

    def late(self, flight: Flight) -> Collection[Sequence]:
        names = self._turn.late
        return [each for each in flight.sequences if each.name in names] if names else ()

    def resolved(self, request: Request, parents: List[int], found: List[Hypothesis]) -> None:
        """It was made to choose what is recorded."""

    def keys_for(self, name: Name, count: int) -> List[bytes]:
        """The names of the next blocks of a sequence."""
        if not self._keys or self._keys[0][0] != name or len(self._keys[0][1]) != count:
            raise self._diverged(f"{count} names of blocks of {name} were asked for")
        return self._keys.popleft()[1]

    # ---------------------------------------------------------------- the drafter

    def propose(self, decodes: list[Sequence], most: int) -> Iterable[tuple[Sequence, list[int]]]:
        if not self._turn.drafts:
            return
        known = {sequence.name: sequence for sequence in decodes}
        for name, count in self._turn.drafts:
            if name not in known:
                raise self._diverged(f"{name} was guessed, and does not decode")
            yield known[name], [tokens.PLAIN] * count

    def waits(self, sequence: Sequence) -> bool:
        return sequence.name in self._turn.waits

    # ---------------------------------------------------------------- the backend

    def submit(self, batch: Batch) -> int:
        if self._turn.refused is not None:
            _fail(self._turn.refused)
        self._batches[batch.step] = batch
        return batch.step

    def sample(self, ticket: int, rows: Collection[SampleRow]) -> None:
        """Nobody looks at the rows."""

    def collect(self, ticket: int) -> Sampled:
        batch = self._batches.pop(ticket)
        if ticket in self._dropped:  # computed again, since a step before it came to nothing
            self._dropped.remove(ticket)
            return Sampled((), ())
        if not self._landed:
            raise self._diverged(f"step {batch.step} was not recorded to have landed here")
        landed = self._landed.popleft()
        if landed.lost is not None:
            self._dropped.update(self._batches)
            _fail(landed.lost)
        sampled = self._sampled(batch, landed)
        for choice in landed.choices:
            self._lead(choice.request, choice.parents, choice.stops)
        return sampled

    def close(self) -> None:
        """Nothing is held."""

    def _sampled(self, batch: Batch, landed: Landed) -> Sampled:
        """Tokens that do to the rows what was recorded. A beam gets a list of ways to go on, which
        is filled when its search chooses."""
        rows = batch.rows
        outcomes = {outcome.name: outcome for outcome in landed.outcomes}
        verified = frozenset(rows.verified)
        sampled: list[int] = []
        ways: dict[int, list[Candidate]] = {}
        for number, (name, samples) in enumerate(zip(rows.keys, rows.samples, strict=True)):
            if not samples:
                continue
            if self._searches(name[0]):
                ways[len(sampled)] = self._ways[name] = []
            count = rows.counts[number] if number in verified else 1
            sampled += _tokens(outcomes.get(name), count)
        scores = [[UNKNOWN] * len(scored.targets) for scored in batch.scored]
        return Sampled(sampled, [None] * len(sampled), ways, scores)

    def _searches(self, request_id: int) -> bool:
        request = self._request(request_id)
        return request is not None and request.search is not None

    def _lead(self, request_id: int, parents: List[int], stops: List[bool]) -> None:
        """Make the ways on of a search's beams such that it chooses what is recorded.

        Those that are to be chosen sum up to 0, -1, -2 and so on, the best first. If the search is
        over all of them end, and are what it found.
        """
        request = self._request(request_id)
        if request is None:
            raise self._diverged(f"request {request_id} has ended, and should search")
        beams = {sequence.index: sequence for sequence in request.sequences}
        best = request.sequences[0].index
        ways = [(parent, tokens.PLAIN) for parent in parents]
        ways += [(best, tokens.ENDS if stop else tokens.PLAIN) for stop in stops]
        for place, (index, token) in enumerate(ways):
            beam = beams[index].beam
            assert beam is not None, "sequences of a search are beams"
            candidate = Candidate(token, -place - beam.score, 0.0)
            self._ways[request_id, index].append(candidate)

    def _request(self, request_id: int) -> Request | None:
        assert self.scheduler is not None, "the scheduler is made before the first step"
        return self.scheduler.request(request_id)


class RecordedChain(KeyChain):
    """Names of blocks as they were computed."""

    __slots__ = ("_name", "_recorded")

    def __init__(self, recorded: Recorded, name: Name, keys: Iterable[bytes] = ()) -> None:
        super().__init__(b"", keys)
        self._recorded = recorded
        self._name = name

    def grow(self, tokens: List[int]) -> list[bytes]:
        count = len(tokens) // BLOCK - len(self.keys)
        if count < 1:
            return []
        new = self._recorded.keys_for(self._name, count)
        self.keys += new
        return list(new)

    def fork(self) -> KeyChain:
        return RecordedChain(self._recorded, self._name, self.keys)


def _tokens(outcome: Outcome | None, count: int) -> list[int]:
    """What is sampled for a row of so many samples: those that landed, then what is in vain."""
    if outcome is None:
        last, landed = GOES_ON, 1
    else:
        last, landed = outcome.end, outcome.landed
    kind = {STOPS: tokens.ENDS, BREAKS: tokens.BREAKS}.get(last, tokens.WRONG)
    if count == 1:
        kind = tokens.PLAIN if kind == tokens.WRONG else kind
        return [tokens.forcing(landed - 1, kind)]
    right = [tokens.PLAIN] * (landed - 1)
    return [*right, kind, *[tokens.PLAIN] * (count - landed)]


def _fail(rows: Collection[int]) -> None:
    """Fail as it did then. Raises RowFault for these rows, or for all."""
    if rows:
        raise RowFault(list(rows), "as recorded")
    raise RuntimeError("as recorded")
