"""The grammars of requests: compiled aside, bounded in size and time, and kept for the next one."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections import OrderedDict
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Final

from app.config.schema import StructuredConfig
from app.structured.bounds import Unfit
from app.structured.matching import CompiledGrammar
from app.structured.source import Source
from app.text.tokenizer import Tokenizer
from engine.grammar import Grammar

if TYPE_CHECKING:
    from app.structured.compiler import Compiler

STACK_BYTES: Final = 64 * 2**20
"""Stack of a thread that compiles: the library recurses along chains of references and rules, and
at the usual 8 MiB some 1,000 of them end the process."""

NICE: Final = 10
"""How far threads that compile stand back, in Unix's unit."""

_stack_size = threading.Lock()


class Grammars:
    """Compiles grammars for one tokenizer. Made cheaply; works and takes memory once it is asked.

    A grammar that is being compiled, or was, is compiled once for all who want it; what cannot be
    is remembered, too. Least recently used ones make way.
    """

    def __init__(self, config: StructuredConfig, tokenizer: Tokenizer) -> None:
        self._config = config
        self._tokenizer = tokenizer
        self._known: OrderedDict[bytes, Future[CompiledGrammar]] = OrderedDict()
        self._knowing = threading.Lock()
        self._pool: Executor | None = None
        self._masks = ThreadPoolExecutor(1, thread_name_prefix="octavo-masks")
        self._compiler: Compiler | None = None
        self._making = threading.Lock()

    async def get(self, source: Source) -> Grammar:
        """The grammar of a source. Call it on the event loop.

        Raises ApiError: 400 for what cannot be followed, is too large or takes too long.
        """
        most = self._config.max_bytes
        if len(source.text) > most or len(source.text.encode("utf-8", "replace")) > most:
            raise source.refused(f"is longer than the {most} bytes that are possible here")
        future = asyncio.wrap_future(self._future(source))
        try:
            return await asyncio.wait_for(asyncio.shield(future), self._config.timeout_s)
        except TimeoutError:
            took = f"takes longer than the {self._config.timeout_s:g} s that are possible here"
            raise source.refused(took) from None
        except Unfit as reason:
            raise source.refused(str(reason)) from None

    def close(self) -> None:
        """Give the threads back."""
        self._masks.shutdown(wait=False, cancel_futures=True)
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _future(self, source: Source) -> Future[CompiledGrammar]:
        """The grammar, or what it is going to be."""
        if self._pool is None:
            self._pool = _deep_pool(self._config.workers)
        key = source.key
        with self._knowing:
            future = self._known.get(key)
            if future is None:
                future = self._known[key] = self._pool.submit(self._compile, source, key)
            self._known.move_to_end(key)
            while len(self._known) > self._config.cache_entries:
                self._known.popitem(last=False)
        return future

    def _compile(self, source: Source, key: bytes) -> CompiledGrammar:
        from app.structured.compiler import Compiler

        with self._making:
            if self._compiler is None:
                self._compiler = Compiler(self._tokenizer)
        start = self._compiler.compile(source)
        forget = partial(self._forget, key)
        return CompiledGrammar(start, self._tokenizer, self._masks, forget, source.opening)

    def _forget(self, key: bytes) -> None:
        """Have the next request compile a grammar anew. From any thread."""
        with self._knowing:
            self._known.pop(key, None)


def _deep_pool(workers: int) -> Executor:
    """Threads with a deep stack, all of them started."""
    pool = ThreadPoolExecutor(workers, "octavo-grammar", _step_aside)
    together = threading.Barrier(workers)
    with _stack_size:
        before = threading.stack_size(STACK_BYTES)
        try:
            started = [pool.submit(together.wait) for _ in range(workers)]
        finally:
            threading.stack_size(before)
    for each in started:
        each.result()
    return pool


def _step_aside() -> None:
    """Let the threads that compute steps go first, where a thread can have a priority."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
