"""The reply of a generation: an ASGI response that holds the request open while it answers.

with bridge.open(request) as stream:      leaving it, however, is the abort
    first output  |  client leaves        raced: the head is not sent before there is news
    an error      →  JSON with its status
    tokens        →  JSON, or an event stream inside the same `with`
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import TypeVar

from sse_starlette.sse import AppStatus, EventSourceResponse
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.bridge import LAGGED, Push
from app.choices import Choice, Piece, coalesce, likeliest, merge
from app.chunks import KEEPALIVE
from app.connection import SHORT_CUT, ShortCut, last_words
from app.directory import Names
from app.errors import ApiError, from_failure
from app.generation import Generation
from app.reader import Key, Reader
from app.record import Record
from app.replies.base import Reply, Report
from app.service import Service
from app.text.sequence import SequenceText
from engine.outputs import Output

REPORTED_BYTES = 64
"""What it takes to tell how likely a token of a prompt is, in the bytes that `off_loop` counts."""

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
        self._choices = _choices(service, generation)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer; a client that reads too slowly loses its connection, and so its place.

        Raises ApiError, Overloaded, QuotaExceeded or NotReady while nothing has been sent yet,
        ClientDisconnect if nobody waits.
        """
        submissions = self._generation.submissions
        self._record.ab_arm = self._service.arm
        ids = [submission.id for submission in submissions]
        with (
            last_words(scope) as hang_up_soon,
            self._service.bridge.open(
                *submissions,
                on_cut=partial(self._cut, hang_up_soon),
                tenant=self._generation.tenant,
                terms=self._generation.terms,
                streamed=self._generation.stream,
                charged=self._generation.charged,
            ) as stream,
            self._service.directory.listed(ids, self._names),
            self._service.metrics.follow(submissions, self._ending),
        ):
            reader = Reader(stream, submissions, self._choices, self._record)
            try:
                if self._generation.stream:
                    response = await self._streamed(reader, receive, scope.get(SHORT_CUT))
                else:
                    response = await self._whole(reader, receive)
                await response(scope, receive, send)
                self._settle(reader)
            finally:
                reader.sum_up()

    @property
    def _names(self) -> Names:
        return Names(self._generation.identity.id, self._record.request_id)

    def _cut(self, hang_up_soon: Callable[[], None]) -> None:
        """The client lags; it may be so far behind that it never reads why it was cut."""
        self._record.error = from_failure(LAGGED).code
        hang_up_soon()

    def _settle(self, reader: Reader) -> None:
        if reader.ended:
            for submission in self._generation.submissions:
                last = reader.last_token_at(submission.id)
                assert last is not None, "a request has ended that never said anything"
                keys = [(submission.id, index) for index in range(submission.n)]
                tokens = [reader.choices[key].tokens for key in keys]
                self._service.metrics.served(submission, last, tokens)
        elif self._record.error is None:
            self._record.client_disconnected = True

    def _ending(self, key: Key) -> str | None:
        """How a sequence ended, for the metrics; None if it did not."""
        return self._choices[key].finish_reason or ("error" if self._record.error else None)

    def _report(self, reader: Reader) -> Report:
        if not self._service.per_request_metrics:
            return Report(reader.usage)
        policy = self._service.policies.current.policy
        cached = reader.usage.cached
        metrics = {**reader.metrics(), "cached_tokens": cached, "policy": policy}
        if self._record.ab_arm is not None:
            metrics["ab_arm"] = self._record.ab_arm
        return Report(reader.usage, metrics)

    # ---------------------------------------------------------------- at once

    async def _whole(self, reader: Reader, receive: Receive) -> Response:
        pieces = await unless_left(receive, self._read_all(reader))
        said = [(choice, merge(pieces[choice])) for choice in self._choices.values()]
        told = REPORTED_BYTES * sum(len(choice.prompt_logprobs) for choice, _ in said)
        reply = self._generation.reply
        body = await self._service.off_loop(
            told, reply.whole, self._chosen(said), self._report(reader)
        )
        return Response(body, media_type="application/json")

    def _chosen(self, said: list[tuple[Choice, Piece]]) -> list[tuple[Choice, Piece]]:
        """The answers to each prompt that the client wants."""
        answers = self._generation.answers
        if not answers.ranked:
            return said
        each = answers.chosen_from
        groups = [said[start : start + each] for start in range(0, len(said), each)]
        return [answer for group in groups for answer in likeliest(group, answers.count)]

    async def _read_all(self, reader: Reader) -> dict[Choice, list[Piece]]:
        pieces: dict[Choice, list[Piece]] = {choice: [] for choice in self._choices.values()}
        while not reader.ended:
            for choice, news in (await reader.next()).items():
                pieces[choice].extend(news)
        return pieces

    # ---------------------------------------------------------------- piece by piece

    async def _streamed(
        self, reader: Reader, receive: Receive, short_cut: ShortCut | None
    ) -> Response:
        """Most of what follows the first frame takes the short cut, past sse-starlette's tasks."""
        push = None if short_cut is None else partial(self._pushed, reader, short_cut)
        news = news_or_silence(reader, self._service.sse.keepalive_interval_s, push)
        first = await unless_left(receive, anext(news))  # an error here still has its status
        return EventSourceResponse(self._frames(reader, first, news), sep="\n", ping=0)

    async def _frames(
        self, reader: Reader, first: News | None, later: AsyncIterator[News | None]
    ) -> AsyncIterator[bytes]:
        reply = self._generation.reply
        try:
            if begin := reply.begin():
                yield begin
            if said := self._render(first, reply):
                yield said
            async for news in later:
                if said := self._render(news, reply):
                    yield said
            yield reply.end(self._report(reader))
        except ApiError as error:
            self._record.error = error.code
            yield reply.fail(error)

    def _pushed(self, reader: Reader, short_cut: ShortCut, outputs: Sequence[Output]) -> bool:
        """Send what these say, if the client takes it at once. Called for each token."""
        if not short_cut.clear:
            return False
        if frames := self._render(reader.take(outputs), self._generation.reply):
            short_cut.write(frames)
        return True

    def _render(self, news: News | None, reply: Reply) -> bytes:
        if news is None:
            comments = self._service.sse.keepalive_mode == "comment"
            return KEEPALIVE if comments else reply.silence()
        frames = [
            reply.add(choice, piece)
            for choice, pieces in news.items()
            for piece in coalesce(pieces)
        ]
        return frames[0] if len(frames) == 1 else b"".join(frames)


def _choices(service: Service, generation: Generation) -> dict[Key, Choice]:
    """The choices that the sequences of a generation become, in the order of the reply."""
    choices: dict[Key, Choice] = {}
    for prompt, submission in enumerate(generation.submissions):
        for index in range(submission.n):
            text = SequenceText(
                service.tokenizer,
                generation.stops.strings,
                include_stop=generation.stops.included,
                skip_special=not generation.special,
            )
            choices[submission.id, index] = Choice(len(choices), text, prompt)
    return choices


async def news_or_silence(
    reader: Reader, interval: float, push: Push | None = None
) -> AsyncIterator[News | None]:
    """Everything `reader` has to say; None for each `interval` seconds without news (0: never).

    push: as of `Reader.next`. What it takes is no silence. While a silence is on its way out it is
    handed nothing: it would overtake it.
    """
    if not interval:
        while not reader.ended:
            yield await reader.next(push)
        return
    silent = False

    def behind(outputs: Sequence[Output]) -> bool:
        return not silent and push is not None and push(outputs)

    while not reader.ended:
        coming = asyncio.ensure_future(reader.next(behind))
        heard, left = monotonic(), interval
        try:
            while not (await asyncio.wait({coming}, timeout=left))[0]:
                heard = max(heard, reader.heard_at)
                left = heard + interval - monotonic()
                if left <= 0:
                    silent = True
                    yield None
                    silent = False
                    heard, left = monotonic(), interval
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
