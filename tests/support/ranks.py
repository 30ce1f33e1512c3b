"""Ranks as threads of one process, with gloo between them: what they compute is real."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist

from engine.backends.cpu import CPUBackend
from engine.backends.parallel.follower import Follower
from engine.backends.parallel.followers import Followers
from engine.backends.parallel.group import Group
from engine.backends.parallel.leader import LeaderRunner
from engine.backends.parallel.part import Part
from engine.backends.parallel.place import Place
from engine.backends.parallel.wanted import Wanted
from engine.backends.parallel.wire import Link, call, listen
from engine.backends.runners import ModelRunner

HOST = "127.0.0.1"
HANG_S = 60.0

T = TypeVar("T")
Runner = Callable[[int, ModelRunner], ModelRunner]
"""Makes of a rank's runner the one that it has in a test."""


def gloo(store: dist.Store, rank: int, world: int, seconds: float = HANG_S) -> Group:
    """The group of a rank, in whatever process or thread the others are."""
    return Group(dist.ProcessGroupGloo(store, rank, world, timedelta(seconds=seconds)), world)


def together(world: int, work: Callable[[int, Group], T]) -> list[T]:
    """What `work` gives on each rank."""
    store = dist.HashStore()
    with ThreadPoolExecutor(world) as threads:
        futures = [
            threads.submit(lambda rank=rank: work(rank, gloo(store, rank, world)))
            for rank in range(world)
        ]
        return [future.result(HANG_S) for future in futures]


@contextlib.contextmanager
def met(world: int) -> Iterator[tuple[dict[int, Link], dict[int, Link]]]:
    """Links between rank 0 and all others: its ends by rank, and theirs."""
    store = dist.HashStore()
    with ThreadPoolExecutor(world) as threads:
        calls = {r: threads.submit(call, store, HOST, HANG_S, r) for r in range(1, world)}
        here = listen(store, HOST, world, HANG_S)
        there = {rank: future.result(HANG_S) for rank, future in calls.items()}
    try:
        yield here, there
    finally:
        for link in (*here.values(), *there.values()):
            link.close()


@dataclass
class Ranks:
    """backend: rank 0's. ended: what became of each follower, by rank."""

    backend: CPUBackend
    followers: Followers
    ends: dict[int, Link]
    ended: dict[int, Future[Any]] = field(default_factory=dict)


def plain(rank: int, runner: ModelRunner) -> ModelRunner:
    return runner


@contextlib.contextmanager
def ranks(
    path: Path,
    world: int,
    blocks: int,
    *,
    host_blocks: int = 0,
    timeout_s: float = HANG_S,
    runner: Runner = plain,
    kv_dtype: str = "float32",
) -> Iterator[Ranks]:
    """A backend whose model is dealt to `world` threads; all have ended behind the `with`."""
    store, wanted = dist.HashStore(), Wanted(path, kv_dtype)

    def made(rank: int) -> ModelRunner:
        part = Part(Place(rank, world, rank, world), wanted)
        weights, _ = part.load(gloo(store, rank, world, timeout_s))
        return runner(rank, part.runner(weights, blocks, host_blocks))

    def follow(rank: int, link: Link) -> None:
        follower = Follower(rank, link, made(rank))
        try:
            follower.follow()
        finally:
            follower.close()

    with met(world) as (links, ends), ThreadPoolExecutor(world) as threads:
        ended = {rank: threads.submit(follow, rank, link) for rank, link in ends.items()}
        followers = Followers(links)
        followers.start()
        backend = CPUBackend(LeaderRunner(made(0), followers))
        try:
            yield Ranks(backend, followers, ends, ended)
        finally:
            backend.close()


class Gate:
    """A runner that waits, once it is told to, before it computes anything."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self.open = threading.Event()
        self.open.set()
        self.reached = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def run(self, *step: Any) -> Any:
        self.reached.set()
        assert self.open.wait(HANG_S)
        return self._runner.run(*step)
