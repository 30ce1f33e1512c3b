"""Joins a stream of engine outputs to the choices of a reply."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from time import monotonic
from typing import TypeAlias

from app.bridge import Push, Stream
from app.choices import Choice, Piece
from app.chunks import Usage
from app.errors import from_failure
from app.record import Record
from engine.inbox import Submission
from engine.outputs import Failure, Output, Timing

Key: TypeAlias = tuple[int, int]
"""What the engine calls a sequence: its request, and its index there."""


class Reader:
    """Reads the stream of some requests that are answered together to its end."""

    def __init__(
        self,
        stream: Stream,
        submissions: Sequence[Submission],
        choices: Mapping[Key, Choice],
        record: Record,
    ) -> None:
        self.choices = choices
        self.heard_at = -inf
        """When `take` was called last, by `time.monotonic`."""
        self._stream = stream
        self._submissions = submissions
        self._record = record
        self._timing: Timing | None = None
        self._first_token_at = 0.0
        self._last_token_at: dict[int, float] = {}
        self._failure: Failure | None = None

    @property
    def ended(self) -> bool:
        """Whether every choice has its finish_reason."""
        return all(choice.finish_reason is not None for choice in self.choices.values())

    @property
    def usage(self) -> Usage:
        prompt = sum(len(submission.prompt) for submission in self._submissions)
        cached: dict[int, int] = {}  # siblings share one prompt
        for (request, _), choice in self.choices.items():
            cached[request] = max(cached.get(request, 0), choice.cached)
        return Usage(prompt, self._completion, sum(cached.values()))

    @property
    def _completion(self) -> int:
        return sum(choice.tokens for choice in self.choices.values())

    def last_token_at(self, request: int) -> float | None:
        """Engine time of the latest token of a request, None before the first."""
        return self._last_token_at.get(request)

    def metrics(self) -> dict[str, float | None]:
        """How long it took, from the first token of any choice to the last; None where nothing can
        be told. Known once something was generated."""
        assert self._timing is not None, "no token has come"
        arrival, admitted = self._timing.arrival, self._timing.admitted
        last = max(self._last_token_at.values())
        generation = last - self._first_token_at
        gaps = max(choice.tokens for choice in self.choices.values()) - 1
        served = last - admitted
        return {
            "time_to_first_token_ms": 1000 * (self._first_token_at - arrival),
            "queue_time_ms": 1000 * (admitted - arrival),
            "generation_time_ms": 1000 * generation,
            "mean_itl_ms": 1000 * generation / gaps if gaps else None,
            "tokens_per_second": self._completion / served if served > 0 else None,
        }

    def sum_up(self) -> None:
        """Tell the record what has come so far. Called once, however the request ends."""
        record, usage = self._record, self.usage
        record.finish_reasons = tuple(each.finish_reason for each in self.choices.values())
        record.finish_reason = record.finish_reasons[0]
        if not self._last_token_at:
            return
        record.completion_tokens = usage.completion
        record.cached_tokens = usage.cached or 0
        record.decode_s = max(self._last_token_at.values()) - self._first_token_at

    async def next(self, push: Push | None = None) -> dict[Choice, list[Piece]]:
        """What came for each choice since the last call; nothing for those that have ended.

        Pieces that came before a failure are returned first; then ApiError is raised.
        push: as of `Stream.next`; it must `take` what it is handed. If the reply ends so, nothing
        is returned.
        """
        news: dict[Choice, list[Piece]] = {}
        while not news and self._failure is None:
            outputs = await self._stream.next(push)
            if not outputs and self.ended:
                break
            if not outputs:
                raise RuntimeError("the stream ended before its sequences did")
            for output in outputs:
                self._take(output, news)
        if self._failure is not None and not news:
            raise from_failure(self._failure)
        return news

    def take(self, outputs: Sequence[Output]) -> dict[Choice, list[Piece]]:
        """What these say of each choice. None of them may be a failure."""
        self.heard_at = monotonic()
        news: dict[Choice, list[Piece]] = {}
        for output in outputs:
            self._take(output, news)
        return news

    def _take(self, output: Output, news: dict[Choice, list[Piece]]) -> None:
        choice = self.choices[output.request, output.index]
        if output.tokens:
            if output.timing is not None and self._timing is None:
                self._first_token(output, output.timing)
            self._last_token_at[output.request] = output.at
            news.setdefault(choice, []).extend(choice.take(output))
        if choice.finish_reason is not None:
            self._stream.finish_at(output.request, output.index, choice.tokens)
        if output.finish is not None and output.finish.failure is not None:
            self._failure = output.finish.failure

    def _first_token(self, output: Output, timing: Timing) -> None:
        self._timing = timing
        self._first_token_at = output.at
        self._record.queue_s = timing.admitted - timing.arrival
        self._record.ttft_s = output.at - timing.arrival
