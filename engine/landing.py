"""What becomes of a step's result: tokens are appended, ends noticed, blocks given back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

from engine import beam_groups
from engine.batch import BLOCK
from engine.beam_search import Hypothesis
from engine.controls import Sampled
from engine.forced import follow
from engine.outputs import Finish, FinishReason, Output, Timing
from engine.outside import OUTSIDE, Outside
from engine.plan import Flight
from engine.request import Request
from engine.request import Sequence as EngineSequence
from engine.roster import Roster
from engine.verification import Run, one_a_row, runs_of
from policies.base import Finished, Phase, Tokens

Entry = TypeVar("Entry")

_PREEMPTED: Final = Phase.PREEMPTED  # looked up for each row: an enum takes its time to say it


class Landing:
    """Takes results in. outputs: where to say what there is to say. outside: hears of searches."""

    def __init__(self, roster: Roster, outputs: list[Output], outside: Outside = OUTSIDE) -> None:
        self._roster = roster
        self._memory = roster.memory
        self._guard = roster.guard
        self._counters = roster.counters
        self._log = roster.log
        self._outputs = outputs
        self._outside = outside
        self._faults: dict[int, str] = {}

    def _verified(self, flight: Flight, sampled: Sampled) -> dict[EngineSequence, Run]:
        """What holds of each row that verified guesses; they are counted."""
        drafts = flight.plan.drafts
        if not drafts:
            return {}
        runs = runs_of(flight, sampled)
        self._counters.drafts += len(runs)
        self._counters.draft_tokens += sum(map(len, drafts.values()))
        return runs

    def land(self, flight: Flight, sampled: Sampled, now: float, launched: int) -> None:
        """Take in the result of a flight: an entry for each row that samples.

        launched: the last step that was launched. One loop, with calls for what hardly ever happens
        to a row: this is the hot path of every engine.
        """
        memory, outputs, roster = self._memory, self._outputs, self._roster
        caching, observes = memory.cache, self._guard.observes
        said, searching = len(outputs), roster.searches
        groups: dict[Request, None] = {}
        rows, results, reports = flight.batch.rows, sampled.tokens, sampled.logprobs
        runs = self._verified(flight, sampled)
        late = self._outside.late(flight)
        if runs:
            results, reports = one_a_row(flight, sampled)
        if len(results) < len(rows):
            results = _by_row(rows.samples, results, 0)
            reports = _by_row(rows.samples, reports, None)
        if flight.batch.scored:
            self._score(flight, sampled)
        columns = (flight.sequences, flight.epochs, rows.counts, rows.samples, results, reports)
        for sequence, epoch, count, samples, token, logprobs in zip(*columns, strict=True):
            if runs and sequence in runs:
                self._land_run(sequence, epoch, runs[sequence], now)
                continue
            if late and sequence in late:
                self._miss(sequence, epoch, count)
                continue
            request = sequence.request
            current = epoch == sequence.epoch
            if current:
                start = sequence.computed
                computed = sequence.computed = start + count
                request.resuming = False
                if caching and computed // BLOCK > sequence.published:
                    memory.publish(sequence)
                if start < request.prompt_length:
                    self._count_prompt(sequence, start)
            elif sequence.done or sequence.beam is not None:
                sequence.pending -= samples
                continue  # others only gave up what the row computed: the token is right
            if not samples:
                continue
            sequence.pending -= 1
            if searching and sequence.beam is not None:
                beam_groups.take(sequence, sampled, sequence.sample_row)
                groups[request] = None
                continue
            tokens = sequence.tokens
            first = len(tokens) == request.prompt_length
            tokens.append(token)
            matcher = sequence.matcher
            landed: tuple[int, ...] = (token,)
            if matcher is not None:
                landed = self._follow(sequence, token)
                token = landed[-1]
            known = len(tokens)
            request.last_token_at = now
            request.service.output += len(landed)
            if not current and request.phase is _PREEMPTED:
                roster.prefix_changed(request)
            if observes:
                roster.events.append(Tokens(request.view, len(landed)))
            output = Output(request.id, sequence.index, now, landed)
            outputs.append(output)
            if logprobs is not None:
                output.logprobs = (logprobs,)
            if first:
                output.timing = Timing(request.submission.arrival, request.admitted_at)
                output.cached = request.cached
                output.prompt_logprobs = tuple(request.prompt_logprobs)
            if token in request.ending_ids:
                output.finish = Finish(FinishReason.STOP, stop_token=token)
                self.end(sequence, output.finish)
            elif matcher is not None and matcher.fault:
                self._faults[request.id] = matcher.fault
            elif matcher is not None and matcher.over:
                ended = token in request.controls.eos_ids  # even if they are to be ignored
                output.finish = Finish(FinishReason.STOP, stop_token=token if ended else None)
                self.end(sequence, output.finish)
            elif known >= request.most_tokens:
                output.finish = Finish(FinishReason.LENGTH)
                self.end(sequence, output.finish)
        self._counters.computed_rows += len(rows)
        self._counters.generated_tokens += len(outputs) - said
        memory.give(flight.limbo)
        for request in groups:
            if beam_groups.complete(request):
                self._resolve(request, now, launched)

    def take_faults(self) -> dict[int, str]:
        """Requests that cannot go on in their grammar, by id, and why; since the last call."""
        faults, self._faults = self._faults, {}
        return faults

    def _follow(self, sequence: EngineSequence, token: int) -> tuple[int, ...]:
        """A token landed under a grammar: append those that it leaves no choice about, too."""
        landed = follow(sequence, token)
        if forced := len(landed) - 1:
            self._counters.forced_tokens += forced
            self._counters.generated_tokens += forced  # each output counts as one
            self._log("forced", *sequence.name, forced)
        return landed

    def _land_run(self, sequence: EngineSequence, epoch: int, run: Run, now: float) -> None:
        """Take in a row that verified guesses: what holds of it, at once.

        Whatever was computed behind that is given up, and so are its blocks. Of a sequence that was
        preempted meanwhile one token was promised, and taken for granted since: it gets that one.
        """
        sequence.pending -= 1
        if sequence.done:
            return
        request, memory = sequence.request, self._memory
        current = epoch == sequence.epoch
        run = run.until(request.ending_ids) if current else run.first(1)
        tokens, last = run.tokens, run.tokens[-1]
        sequence.tokens.extend(tokens)
        if current:
            request.resuming = False
            sequence.begin_at(sequence.computed + len(tokens))
            memory.trim(sequence)
            if memory.cache and sequence.computed // BLOCK > sequence.published:
                memory.publish(sequence)
        elif request.phase is _PREEMPTED:
            self._roster.prefix_changed(request)
        request.last_token_at = now
        request.service.output += len(tokens)
        self._counters.accepted_tokens += len(tokens) - 1
        self._counters.generated_tokens += len(tokens) - 1  # each output counts as one
        if self._guard.observes:
            self._roster.events.append(Tokens(request.view, len(tokens)))
        output = Output(request.id, sequence.index, now, tuple(tokens))
        output.logprobs = tuple(each for each in run.logprobs if each is not None)
        self._outputs.append(output)
        if last in request.ending_ids:
            output.finish = Finish(FinishReason.STOP, stop_token=last)
            self.end(sequence, output.finish)
        elif len(sequence.tokens) >= request.most_tokens:
            output.finish = Finish(FinishReason.LENGTH)
            self.end(sequence, output.finish)

    def _miss(self, sequence: EngineSequence, epoch: int, count: int) -> None:
        """Take in a row whose mask was not there in time: what was sampled is worth nothing.

        The last token of the row will be computed again, so that there are logits to sample from.
        """
        sequence.pending -= 1
        self._counters.late_rows += 1
        self._log("late", *sequence.name)
        if epoch != sequence.epoch:
            return
        request, memory, start = sequence.request, self._memory, sequence.computed
        request.resuming = False
        sequence.begin_at(start + count - 1)
        memory.trim(sequence)
        if memory.cache and sequence.computed // BLOCK > sequence.published:
            memory.publish(sequence)
        if start < request.prompt_length:
            self._count_prompt(sequence, start)
        self._roster.back_to_prompt(sequence)

    def end(self, sequence: EngineSequence, finish: Finish) -> None:
        """A sequence is complete: its blocks serve others from the next schedule on."""
        request = sequence.request
        self._log("finish", request.id, sequence.index, finish.reason.value)
        self._roster.end_sequence(sequence)
        if request.rows:
            self._roster.prefix_changed(request)
        else:
            self._counters.finished += 1
            self._roster.events.append(Finished(request.view))
            self._roster.drop(request)

    def _score(self, flight: Flight, sampled: Sampled) -> None:
        """Take in how likely prompts are that a flight has computed.

        Also of those who gave up since what it computed: the tokens are the same, and if it samples
        the first token of the answer, that is said with all of them.
        """
        starts = flight.batch.rows.starts
        for scored, logprobs in zip(flight.batch.scored, sampled.prompt_logprobs, strict=True):
            place = starts[scored.row] + scored.first
            flight.sequences[scored.row].request.scored(place, list(logprobs))

    def _count_prompt(self, sequence: EngineSequence, start: int) -> None:
        """Book prompt tokens, computed from `start`; let siblings share a complete prompt.

        At once, before the sequence may end and give its blocks away.
        """
        request = sequence.request
        end = min(sequence.computed, request.prompt_length)
        self._counters.prompt_tokens += end - start
        if end < request.prompt_length or len(request.sequences) == 1:
            return
        for sibling in request.open_sequences:
            if sibling.reached == 0 and sibling is not sequence:
                self._memory.fork(sibling, sequence)
                self._log("fork", request.id, sibling.index, sequence.index)

    # ---------------------------------------------------------------- beam search

    def _resolve(self, request: Request, now: float, launched: int) -> None:
        """Every beam of a search has landed: choose those that go on, or end with the best."""
        search, roster = request.search, self._roster
        assert search is not None
        computed = len(request.sequences)
        request.last_token_at = now
        self._counters.generated_tokens += computed
        request.service.output += computed
        if self._guard.observes:
            roster.events.append(Tokens(request.view, computed))
        parents, found = beam_groups.resolve(request, search, self._memory, self._log)
        self._outside.resolved(request, parents, found)
        if found:
            self._answer(request, found, now)
            return
        request.phase = Phase.DECODE
        for sequence in request.sequences:
            roster.resume(sequence, launched)

    def _answer(self, request: Request, found: list[Hypothesis], now: float) -> None:
        """Say what a beam search found, all at once, and end it."""
        timing = Timing(request.submission.arrival, request.admitted_at)
        for index, best in enumerate(found):
            reason = FinishReason.LENGTH if best.stop_token is None else FinishReason.STOP
            finish = Finish(reason, stop_token=best.stop_token)
            self._log("finish", request.id, index, reason.value)
            self._outputs.append(
                Output(
                    request.id,
                    index,
                    now,
                    best.tokens,
                    best.logprobs,
                    finish,
                    timing,
                    request.cached,
                    tuple(request.prompt_logprobs),
                )
            )
        self._counters.finished += 1
        self._roster.events.append(Finished(request.view))
        self._roster.drop(request)


def _by_row(samples: Sequence[bool], entries: Sequence[Entry], other: Entry) -> Sequence[Entry]:
    """An entry for each row: those of the rows that sample, in order, and `other` elsewhere."""
    following = iter(entries)
    return [next(following) if each else other for each in samples]
