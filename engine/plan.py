"""What one step computes: the plan while it is made, and the flight once it is launched."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import compress
from operator import add

from engine.batch import Batch, Rows
from engine.controls import SampleRow, ScoredRow
from engine.grammar import LATE, Mask, Matcher
from engine.moves import Launched
from engine.packing import NO_ARRAYS, BatchArrays
from engine.request import Request, Sequence


class Plan:
    """Grants of one step, within its token budget. A sequence has at most one.

    gave_way: requests that were preempted for it. forced: whether somebody got more than the policy
    wanted, because progress was owed (E13). drafts: guesses of what follows a row's token, which it
    verifies (`engine.speculation`).
    """

    __slots__ = (
        "_grants",
        "budget",
        "drafts",
        "forced",
        "gave_way",
        "now",
        "prompt_tokens",
        "step",
        "tokens",
    )

    def __init__(self, step: int, now: float, budget: int) -> None:
        self.step = step
        self.now = now
        self.budget = budget
        self.tokens = 0
        self.prompt_tokens = 0
        self.gave_way: set[Request] = set()
        self.forced = False
        self.drafts: dict[Sequence, list[int]] = {}
        self._grants: dict[Sequence, int] = {}

    @property
    def rows(self) -> int:
        return len(self._grants)

    @property
    def left(self) -> int:
        """Tokens of the budget that nobody got yet."""
        return self.budget - self.tokens

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._grants)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._grants

    def granted(self, request: Request) -> int:
        """Tokens that a request got."""
        return sum(self._grants.get(sequence, 0) for sequence in request.sequences)

    def grant(self, sequence: Sequence, count: int) -> None:
        """`count` tokens of the sequence will be computed."""
        self._grants[sequence] = count
        self.tokens += count

    def grant_one_each(self, sequences: list[Sequence]) -> None:
        """The next token of each sequence will be computed."""
        self._grants.update(dict.fromkeys(sequences, 1))
        self.tokens += len(sequences)

    def add(self, sequence: Sequence, more: int) -> None:
        """So many more tokens of a sequence that was granted some will be computed."""
        self._grants[sequence] += more
        self.tokens += more

    def widen(self, sequence: Sequence, draft: list[int]) -> None:
        """Have guesses of what follows computed behind the one token that a sequence got."""
        self.drafts[sequence] = draft
        self._grants[sequence] = 1 + len(draft)
        self.tokens += len(draft)

    def withdraw(self, sequence: Sequence) -> None:
        """Take a grant back, if there is one."""
        self.tokens -= self._grants.pop(sequence, 0)

    def ordered(self) -> tuple[list[Sequence], list[int]]:
        """Who gets tokens, and how many: first who gets one, then who gets more, each as granted.

        GPU attention runs the two groups through different kernels and wants each contiguous.
        """
        grants = self._grants
        if self.tokens == len(grants):
            return list(grants), [1] * len(grants)
        ones = [sequence for sequence, count in grants.items() if count == 1]
        more = {sequence: count for sequence, count in grants.items() if count != 1}
        return [*ones, *more], [1] * len(ones) + list(more.values())


class Sampling(Collection[SampleRow]):
    """The rows of a step that sample. A `SampleRow` is made when somebody looks at it: not all
    backends do.

    sequences, tokens: of the rows that sample; tokens is what the row looks back on. drafts: the
    guesses that a row verifies: there is a `SampleRow` behind each of them too, which looks back on
    it as if it were right. late: whose masks were not there in time; what is sampled for them, by
    no mask, is worth nothing.
    """

    __slots__ = ("_drafts", "_masks", "_rows", "_sequences", "_tokens", "late")

    def __init__(
        self,
        rows: Rows,
        sequences: list[Sequence],
        tokens: list[list[int]],
        drafts: Mapping[Sequence, list[int]],
    ) -> None:
        self._rows = rows
        self._sequences = sequences
        self._tokens = tokens
        self._drafts = drafts
        self._masks: dict[int, Mask | None] = {}
        self.late: Collection[Sequence] = ()

    def __len__(self) -> int:
        return len(self._sequences) + sum(map(len, self._drafts.values()))

    def __contains__(self, row: object) -> bool:
        return any(row == each for each in self)

    def __iter__(self) -> Iterator[SampleRow]:
        rows = self._rows
        ends = compress(map(add, rows.starts, rows.counts), rows.samples)
        masks = self._masks
        columns = zip(self._sequences, ends, self._tokens, strict=True)
        for place, (sequence, end, tokens) in enumerate(columns):
            request, index = sequence.request, sequence.index
            controls, prompt = request.controls, request.prompt_length
            draft = self._drafts.get(sequence)
            if draft is None:
                yield SampleRow(controls, index, end, tokens, prompt, masks.get(place))
                continue
            for right in range(len(draft) + 1):
                known = [*tokens, *draft[:right]] if right else tokens
                yield SampleRow(controls, index, end - len(draft) + right, known, prompt)

    def begin_masks(self) -> Callable[[], None]:
        """Have the masks of rows under a grammar computed; returns what waits for them.

        Before that nobody may look at the rows, or at their matchers.
        """
        guided = [(i, s) for i, s in enumerate(self._sequences) if s.matcher is not None]
        if not guided:
            return _no_masks
        matchers: list[Matcher] = [s.matcher for _, s in guided if s.matcher is not None]
        grammar = guided[0][1].request.controls.grammar
        assert grammar is not None, "a matcher has a grammar"
        wait = grammar.prepare(matchers)

        def take() -> None:
            late = set()
            for (place, sequence), mask in zip(guided, wait(), strict=True):
                if mask is LATE:
                    late.add(sequence)
                else:
                    self._masks[place] = mask
            self.late = late

        return take


def _no_masks() -> None:
    """No row is under a grammar."""


@dataclass(slots=True)
class Flight:
    """A launched step: its batch, and for each row the sequence and the epoch it was planned in.

    moved: requests whose blocks it moves first. limbo: blocks to give back when it has landed.
    fault: what submitting it raised, if it did.
    """

    plan: Plan
    sequences: list[Sequence]
    epochs: list[int]
    batch: Batch
    sampling: Sampling
    moved: tuple[Request, ...]
    limbo: list[int]
    ticket: int | None = None
    started: float = 0.0
    fault: Exception | None = None


def launch(plan: Plan, moves: Launched, *, packed: bool = True) -> Flight:
    """Turn a plan and its moves into a batch, and its grants into tokens in flight.

    packed: whether the batch has arrays, or rows only.
    """
    sequences, counts = plan.ordered()
    starts = [sequence.reached for sequence in sequences]
    samples = [True] * len(sequences)
    known: list[list[int]] = []
    for place, sequence in enumerate(sequences):
        tokens = sequence.tokens
        end = sequence.reached = starts[place] + counts[place]
        if end >= len(tokens) + sequence.pending:  # the last that will be known, or a guess
            sequence.pending += 1
            known.append(tokens)
        else:
            samples[place] = False
    sampled = list(compress(sequences, samples))
    drafts = plan.drafts
    verified = [i for i, s in enumerate(sequences) if s in drafts] if drafts else ()
    rows = Rows([sequence.name for sequence in sequences], starts, counts, samples, verified)
    scored = _scored(sequences, rows) if plan.prompt_tokens else ()
    arrays = BatchArrays.of(sequences, rows, scored, drafts).packed() if packed else NO_ARRAYS
    place = 0
    for sequence in sampled:  # until now it says where the step before samples
        sequence.sample_row = place
        place += 1 if not drafts else 1 + len(drafts.get(sequence, ()))
    batch = Batch(plan.step, rows, *arrays, scored, moves.copies, moves.offloads, moves.restores)
    epochs = [sequence.epoch for sequence in sequences]
    sampling = Sampling(rows, sampled, known, drafts)
    return Flight(plan, sequences, epochs, batch, sampling, moves.requests, [])


def _scored(sequences: list[Sequence], rows: Rows) -> tuple[ScoredRow, ...]:
    """Which tokens of a step say how likely the next ones of prompts are, if any do.

    The first sequence computes the prompt. Tokens that have been scored are left out: after a
    preemption they are computed again.
    """
    scored: list[ScoredRow] = []
    for number, sequence in enumerate(sequences):
        request = sequence.request
        alternatives = request.controls.prompt_logprobs
        if not request.unscored or sequence.index or alternatives is None:
            continue
        start = rows.starts[number]
        first = max(start, len(request.prompt_logprobs))
        targets = request.submission.prompt[first + 1 : start + rows.counts[number] + 1]
        if targets:
            scored.append(ScoredRow(number, first - start, targets, alternatives))
    return tuple(scored)
