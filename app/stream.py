"""The reply of a generation: an ASGI response that holds the request open while it answers.

with bridge.open(request) as stream:      leaving it, however, is the abort
    first output  |  client leaves        raced: the head is not sent before there is news
    an error      →  JSON with its status
    tokens        →  JSON, or an event stream inside the same `with`
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from sse_starlette.sse import AppStatus, EventSourceResponse
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.bridge import LAGGED, Stream
from app.choices import Choice, Piece, coalesce, likeliest
from app.chunks import DONE, KEEPALIVE, Chunks, completion_body, error_event
from app.connection import last_words
from app.directory import Names
from app.errors import ApiError, from_failure
from app.generation import Generation
from app.reader import Reader
from app.record import Record
from app.service import Service
from app.text.sequence import SequenceText

Result = TypeVar("Result")
News = Mapping[Choice, list[Piece]]


def tame_sse_starlette() -> None:
    """Switch off two habits of the library, for the whole process.

    It hooks into uvicorn's signal handler to cut all streams at once; here they end by themselves,
    or when the bridge gives up on them at the end of the grace period. And at debug level it logs
    every chunk, which is text that nobody's logs should hold.
    """
    AppStatus.enable_automatic_graceful_drain = False
    logging.getLogger("sse_starlette").setLevel(logging.INFO)


class GenerationResponse:
    """Answers one generation."""

    def __init__(self, service: Service, generation: Generation, record: Record) -> None:
        self._service = service
        self._generation = generation
        self._record = record
        tokenizer = service.tokenizer
        self._choices = [
            Choice(index, SequenceText(tokenizer, generation.stops))
            for index in range(generation.submission.n)
        ]
        self._logprobs = [generation.dialect.logprobs(tokenizer.token_bytes) for _ in self._choices]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer; a client that reads too slowly loses its connection, and so its place.

        Raises ApiError, Overloaded, QuotaExceeded or NotReady while nothing has been sent yet,
        ClientDisconnect if nobody waits.
        """
        submission = self._generation.submission
        with (
            last_words(scope) as hang_up_soon,
            self._service.bridge.open(
                submission, partial(self._cut, hang_up_soon), self._generation.tenant
            ) as stream,
            self._service.directory.listed(submission.id, self._names),
            self._service.metrics.follow(submission),
        ):
            reader = self._reader(stream)
            answer = self._streamed if self._generation.stream else self._whole
            response = await answer(reader, receive)
            await response(scope, receive, send)
            self._settle(reader)

    @property
    def _names(self) -> Names:
        return Names(self._generation.identity.id, self._record.request_id)

    def _reader(self, stream: Stream) -> Reader:
        return Reader(stream, self._generation.submission, self._choices, self._record)

    def _cut(self, hang_up_soon: Callable[[], None]) -> None:
        """The client lags; it may be so far behind that it never reads why it was cut."""
        self._record.error = from_failure(LAGGED).code
        hang_up_soon()

    def _settle(self, reader: Reader) -> None:
        if reader.ended and reader.last_token_at is not None:
            self._service.metrics.served(self._generation.submission, reader.last_token_at)
        elif self._record.error is None:
            self._record.client_disconnected = True

    # ---------------------------------------------------------------- at once

    async def _whole(self, reader: Reader, receive: Receive) -> Response:
        pieces = await unless_left(receive, self._read_all(reader))
        answers = self._generation.answers
        chosen = likeliest(pieces, answers.count) if answers.ranked else self._choices
        choices = [
            {
                "index": index,
                **self._generation.dialect.content("".join(p.text for p in pieces[choice])),
                "logprobs": self._render_logprobs(choice, pieces[choice]),
                "finish_reason": choice.finish_reason,
                "stop_reason": choice.stop_reason,
            }
            for index, choice in enumerate(chosen)
        ]
        generation = self._generation
        body = completion_body(
            generation.dialect.object, generation.identity, choices, reader.usage
        )
        return Response(body, media_type="application/json")

    async def _read_all(self, reader: Reader) -> dict[Choice, list[Piece]]:
        pieces: dict[Choice, list[Piece]] = {choice: [] for choice in self._choices}
        while not reader.ended:
            for choice, news in (await reader.next()).items():
                pieces[choice].extend(news)
        return pieces

    # ---------------------------------------------------------------- piece by piece

    async def _streamed(self, reader: Reader, receive: Receive) -> Response:
        news = news_or_silence(reader, self._service.sse.keepalive_interval_s)
        first = await unless_left(receive, anext(news))  # an error here still has its status
        return EventSourceResponse(self._frames(reader, first, news), sep="\n", ping=0)

    async def _frames(
        self, reader: Reader, first: News | None, later: AsyncIterator[News | None]
    ) -> AsyncIterator[bytes]:
        generation = self._generation
        chunks = Chunks(generation.dialect.style, generation.identity, usage=generation.usage)
        try:
            if len(self._choices) > 1:
                yield chunks.opening(len(self._choices))
            yield self._render(first, chunks)
            async for news in later:
                yield self._render(news, chunks)
            if generation.usage:
                yield chunks.usage(reader.usage)
        except ApiError as error:
            self._record.error = error.code
            yield error_event(error.body())
        yield DONE

    def _render(self, news: News | None, chunks: Chunks) -> bytes:
        if news is None:
            comments = self._service.sse.keepalive_mode == "comment"
            return KEEPALIVE if comments else chunks.silence()
        return b"".join(
            self._frame(choice, piece, chunks)
            for choice, pieces in news.items()
            for piece in coalesce(pieces)
        )

    def _frame(self, choice: Choice, piece: Piece, chunks: Chunks) -> bytes:
        return chunks.frame(
            choice.index,
            piece.text,
            logprobs=self._render_logprobs(choice, [piece]),
            finish_reason=piece.finish_reason,
            stop_reason=piece.stop_reason,
        )

    def _render_logprobs(self, choice: Choice, pieces: list[Piece]) -> dict[str, Any] | None:
        if not self._generation.logprobs:
            return None
        entries = [entry for piece in pieces for entry in piece.entries]
        return self._logprobs[choice.index].render(entries)


async def news_or_silence(reader: Reader, interval: float) -> AsyncIterator[News | None]:
    """Everything `reader` has to say; None for each `interval` seconds without news (0: never)."""
    if not interval:
        while not reader.ended:
            yield await reader.next()
        return
    while not reader.ended:
        coming = asyncio.ensure_future(reader.next())
        try:
            while not (await asyncio.wait({coming}, timeout=interval))[0]:
                yield None
            yield coming.result()
        finally:
            coming.cancel()


async def unless_left(receive: Receive, work: Awaitable[Result]) -> Result:
    """Do `work` unless the client leaves first; then it is cancelled and ClientDisconnect raised.

    The request's body must have been read.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_left(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        leaving.result()
        raise ClientDisconnect
    finally:
        working.cancel()
        leaving.cancel()


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
