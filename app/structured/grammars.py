"""The grammars of requests: vetted and compiled aside, bounded, and kept for the next one."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import OrderedDict
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import cached_property, partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from app.bridge import DRAINING
from app.child.bounds import stand_back
from app.child.process import SHUTTING_DOWN
from app.config.schema import StructuredConfig
from app.errors import grammars_busy, grammars_unavailable, not_ready
from app.structured.bounds import Unfit
from app.structured.closing import Closers, ClosingGrammar
from app.structured.masks import MaskCrew
from app.structured.matching import CompiledGrammar
from app.structured.source import Source
from app.structured.vetter import NotVetted, TookTooLong, Vetter
from app.structured.vetting import STACK_BYTES
from app.structured.vocabulary import Vocabulary
from app.text.tokenizer import Tokenizer
from engine.grammar import Grammar

if TYPE_CHECKING:
    from app.structured.compiler import Compiler

log = logging.getLogger("octavo.structured")

CLOSABLE: Final = ("json", "tools")
"""Kinds of answers that are JSON, or little else."""

_stack_size = threading.Lock()


class Grammars:
    """Compiles grammars for one tokenizer. Starts threads and processes once it is asked.

    A grammar that is being compiled, or was, is compiled once for all who want it; what cannot be
    is remembered, too. Least recently used ones make way. Without the library whatever asks for a
    grammar is refused; the log says so when the server starts.
    """

    def __init__(self, config: StructuredConfig, tokenizer: Tokenizer) -> None:
        self._config = config
        self._tokenizer = tokenizer
        self._known: OrderedDict[bytes, Future[CompiledGrammar]] = OrderedDict()
        self._knowing = threading.Lock()
        self._vocabulary = Vocabulary.of(tokenizer)
        self._compiler = _compiler(self._vocabulary)
        dump = self._vocabulary.dump()
        self._vetters = [Vetter(dump, config.timeout_s) for _ in range(config.workers)]
        self._idle = self._vetters[:]
        self._vetting = ThreadPoolExecutor(config.workers, thread_name_prefix="octavo-vetting")
        self._compiling: Executor | None = None
        self._awaited: set[asyncio.Future[CompiledGrammar]] = set()
        self._given_up = False
        self._masks = MaskCrew(-(-tokenizer.vocab_size // 32))

    async def get(self, source: Source) -> CompiledGrammar:
        """The grammar of a source. Call it on the event loop.

        Raises ApiError: 400 for what cannot be followed, is too large or takes too long; 503 while
        too many others are being compiled, or the server is shutting down; 501 if none can be.
        """
        if self._given_up:
            raise not_ready(DRAINING)
        most = self._config.max_bytes
        if len(source.text) > most or len(source.text.encode("utf-8", "replace")) > most:
            raise source.refused(f"is longer than the {most} bytes that are possible here")
        if self._compiler is None:
            raise grammars_unavailable(source.param)
        future = self._future(source)
        made = asyncio.wrap_future(future)
        made.add_done_callback(_heard)
        self._awaited.add(made)
        made.add_done_callback(self._awaited.discard)
        try:
            await asyncio.wait({made}, timeout=self._config.timeout_s)
            if not (future.running() or future.done()):
                raise grammars_busy()
            return await asyncio.shield(made)
        except Unfit as reason:
            raise source.refused(str(reason)) from None
        except NotVetted:
            raise grammars_unavailable(source.param) from None
        except asyncio.CancelledError:
            if made.cancelled():
                raise not_ready(DRAINING) from None
            raise

    def give_up(self) -> None:
        """Tell who waits for a grammar, and who will ask for one, that the server shuts down.

        With its grammar a request would be refused all the same. Call it on the event loop.
        """
        self._given_up = True
        for made in list(self._awaited):
            made.cancel()

    def within(
        self, grammar: CompiledGrammar, source: Source, closes: bool | None, tokens: int
    ) -> Grammar:
        """The grammar of a source for an answer of at most so many tokens.

        closes: whether it is to be complete by then; None: as the configuration says.
        """
        if closes is None:
            closes = self._config.close_within_limit
        if not closes or source.opening or source.kind not in CLOSABLE:
            return grammar
        return ClosingGrammar(grammar, lambda: self._closers, tokens)

    @cached_property
    def _closers(self) -> Closers:
        return Closers(self._vocabulary)

    def close(self) -> None:
        """End the processes, and give the threads back."""
        self._masks.close()
        self._vetting.shutdown(wait=False, cancel_futures=True)
        for vetter in self._vetters:
            vetter.close()
        if self._compiling is not None:
            self._compiling.shutdown(wait=False, cancel_futures=True)

    def _future(self, source: Source) -> Future[CompiledGrammar]:
        """The grammar, or what it is going to be. Raises ApiError."""
        if self._compiling is None:
            self._compiling = _deep_thread()
        key = source.key
        with self._knowing:
            future = self._known.get(key)
            if future is None:
                self._make_way()
                future = self._known[key] = self._vetting.submit(self._make, source, key)
            self._known.move_to_end(key)
        return future

    def _make_way(self) -> None:
        """Forget who was used least recently, and is made. Raises ApiError if nobody is."""
        if len(self._known) < self._config.cache_entries:
            return
        for key, future in self._known.items():
            if future.done():
                del self._known[key]
                return
        raise grammars_busy()

    def _make(self, source: Source, key: bytes) -> CompiledGrammar:
        """Vet a grammar; only one that came through that is compiled here."""
        assert self._compiling is not None
        vetter = self._idle.pop()  # as many as threads that get here
        try:
            grammar = vetter.vet(source.kind, source.text)
        except TookTooLong:
            self._forget(key)  # at another time it may be in time
            most = self._config.timeout_s
            raise Unfit(f"takes longer than the {most:g} s that are possible here") from None
        except NotVetted as error:
            self._forget(key)
            if str(error) != SHUTTING_DOWN:
                log.error("%s", error)
            raise
        finally:
            self._idle.append(vetter)
        return self._compiling.submit(self._compile, grammar, source, key).result()

    def _compile(self, grammar: str, source: Source, key: bytes) -> CompiledGrammar:
        assert self._compiler is not None
        start = self._compiler.compile(grammar)
        forget = partial(self._forget, key)
        return CompiledGrammar(
            start,
            self._tokenizer,
            self._masks,
            forget,
            source.opening,
            forces=self._config.forced_tokens,
        )

    def _forget(self, key: bytes) -> None:
        """Have the next request compile a grammar anew. From any thread."""
        with self._knowing:
            self._known.pop(key, None)


def _compiler(vocabulary: Vocabulary) -> Compiler | None:
    """What compiles, made before there is anybody whom that holds up; None without the library."""
    if find_spec("llguidance") is None:
        log.warning(
            "llguidance is not installed: requests for structured outputs and tools are refused"
        )
        return None
    from app.structured.compiler import Compiler

    return Compiler(vocabulary)


def _heard(future: asyncio.Future[CompiledGrammar]) -> None:
    """Nobody may be there any more to take an error in."""
    if not future.cancelled():
        future.exception()


def _deep_thread() -> Executor:
    """One thread with a deep stack, started."""
    pool = ThreadPoolExecutor(1, "octavo-grammar", stand_back)
    with _stack_size:
        before = threading.stack_size(STACK_BYTES)
        try:
            started = pool.submit(threading.get_ident)
        finally:
            threading.stack_size(before)
    started.result()
    return pool
