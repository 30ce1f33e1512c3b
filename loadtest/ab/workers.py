"""Work done side by side: in as many processes as there are cores, or in this one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Final, TypeVar

CHUNKS: Final = 200
"""So many at most, so that nobody is left with much at the end."""

T = TypeVar("T")
R = TypeVar("R")


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Workers:
    """Does the same to many things; answers are in their order, however many work."""

    def __init__(self, pool: Executor | None, tick: Callable[[], None]) -> None:
        self._pool = pool
        self._tick = tick

    def map(self, function: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """function and items have to be such as can be sent to another process. tick is called once
        for each item that is done."""
        answers = self._sent(function, items) if self._pool else map(function, items)
        done: list[R] = []
        for answer in answers:
            done.append(answer)
            self._tick()
        return done

    def _sent(self, function: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
        """In chunks, which share what their items have in common on the way."""
        assert self._pool is not None
        return self._pool.map(function, items, chunksize=1 + len(items) // CHUNKS)


@contextmanager
def workers(processes: int, tick: Callable[[], None] = lambda: None) -> Iterator[Workers]:
    """Workers for the time of a with block. They begin afresh: nothing is forked with threads."""
    if processes < 2:
        yield Workers(None, tick)
        return
    pool = ProcessPoolExecutor(processes, mp_context=get_context("spawn"))
    try:
        yield Workers(pool, tick)
    finally:
        pool.shutdown(cancel_futures=True)
