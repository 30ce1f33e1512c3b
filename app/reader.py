"""Joins a stream of engine outputs to the choices of a reply."""

from __future__ import annotations

from collections.abc import Sequence

from app.bridge import Stream
from app.choices import Choice, Piece
from app.chunks import Usage
from app.errors import from_failure
from app.record import Record
from engine.inbox import Submission
from engine.outputs import Failure, Output


class Reader:
    """Reads one request's stream to its end.

    last_token_at: engine time of the latest token, None before the first.
    """

    def __init__(
        self, stream: Stream, submission: Submission, choices: Sequence[Choice], record: Record
    ) -> None:
        self.choices = choices
        self.last_token_at: float | None = None
        self._stream = stream
        self._submission = submission
        self._record = record
        self._cached = 0
        self._failure: Failure | None = None

    @property
    def ended(self) -> bool:
        """Whether every choice has its finish_reason."""
        return all(choice.finish_reason is not None for choice in self.choices)

    @property
    def usage(self) -> Usage:
        completion = sum(choice.tokens for choice in self.choices)
        return Usage(len(self._submission.prompt), completion, self._cached)

    async def next(self) -> dict[Choice, list[Piece]]:
        """What came for each choice since the last call; nothing for those that have ended.

        Pieces that came before a failure are returned first; then ApiError is raised.
        """
        news: dict[Choice, list[Piece]] = {}
        while not news and self._failure is None:
            outputs = await self._stream.next()
            if not outputs:
                raise RuntimeError("the stream ended before its sequences did")
            for output in outputs:
                self._take(output, news)
        self._note()
        if self._failure is not None and not news:
            raise from_failure(self._failure)
        return news

    def _take(self, output: Output, news: dict[Choice, list[Piece]]) -> None:
        choice = self.choices[output.index]
        if output.tokens:
            self._first_token(output)
            self.last_token_at = output.at
            news.setdefault(choice, []).extend(choice.take(output))
        if choice.finish_reason is not None:
            self._stream.finish_at(choice.index, choice.tokens)
        if output.finish is not None and output.finish.failure is not None:
            self._failure = output.finish.failure
        self._cached = max(self._cached, output.cached)

    def _first_token(self, output: Output) -> None:
        if output.timing is not None and self._record.ttft_s is None:
            self._record.queue_s = output.timing.admitted - output.timing.arrival
            self._record.ttft_s = output.at - output.timing.arrival

    def _note(self) -> None:
        """Keep the log line true, in case the client leaves now."""
        self._record.completion_tokens = sum(choice.tokens for choice in self.choices)
        self._record.finish_reason = self.choices[0].finish_reason
