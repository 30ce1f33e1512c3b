"""Ranks as threads of one process, with gloo between them: what they compute is real."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist

from engine.backends.parallel.computer import Computer
from engine.backends.parallel.cpu_ranks import CPUComputer
from engine.backends.parallel.followers import Followers
from engine.backends.parallel.group import Group
from engine.backends.parallel.loading import Join, followed, led
from engine.backends.parallel.place import Place
from engine.backends.parallel.shards import Shard
from engine.backends.parallel.wanted import Wanted
from engine.backends.parallel.wire import Link, call, listen
from engine.backends.runners import ModelRunner
from engine.batch import BLOCK
from engine.capacity import KV_DTYPES
from engine.models.files import read_config

HOST = "127.0.0.1"
HANG_S = 60.0

T = TypeVar("T")
Hook = Callable[[int, ModelRunner], ModelRunner]
"""Makes of a rank's runner the one that it has in a test."""

Rank = tuple[Place, Wanted, Computer, Join]
"""What makes a rank."""


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
    """backend: rank 0's. ends: the links' other ends, ended: what became of each follower, both by
    rank."""

    backend: Any
    followers: Followers
    ends: dict[int, Link]
    ended: dict[int, Future[None]]


def plain(rank: int, runner: ModelRunner) -> ModelRunner:
    return runner


class HookedComputer(CPUComputer):
    """The CPU, with runners that `hook` makes of its own."""

    def __init__(self, rank: int, hook: Hook) -> None:
        self._rank = rank
        self._hook = hook

    def runner(self, *parts: Any) -> ModelRunner:
        return self._hook(self._rank, super().runner(*parts))


def wanted(path: Path, world: int, blocks: int, host_blocks: int = 0) -> Wanted:
    """A model in so many blocks of each rank, in float32."""
    config = Shard(read_config(path), 0, world).config
    size = BLOCK * config.kv_bytes_per_token(KV_DTYPES["float32"])
    return Wanted(path, kv_memory_bytes=blocks * size, offload_memory_bytes=host_blocks * size)


@contextlib.contextmanager
def ranks(
    path: Path,
    world: int,
    blocks: int,
    *,
    host_blocks: int = 0,
    timeout_s: float = HANG_S,
    hook: Hook = plain,
    computer: Callable[[int], Computer] | None = None,
    others: Mapping[int, Wanted] | None = None,
) -> Iterator[Ranks]:
    """A backend whose model is dealt to `world` threads; all have ended behind the `with`.

    computer: what a rank computes with; None for the CPU, with this hook. others: what ranks want
    that want something else.
    """
    store, usual = dist.HashStore(), wanted(path, world, blocks, host_blocks)
    make = computer or (lambda rank: HookedComputer(rank, hook))

    def place(rank: int) -> Rank:
        wants = (others or {}).get(rank, usual)
        joining = partial(gloo, store, rank, world, timeout_s)
        return Place(rank, world, rank, world), wants, make(rank), joining

    def follow(rank: int, link: Link) -> None:
        with contextlib.closing(link):
            follower = followed(link, *place(rank))
            follower.follow()
            follower.close()

    with met(world) as (links, ends), ThreadPoolExecutor(world) as threads:
        ended = {rank: threads.submit(follow, rank, link) for rank, link in ends.items()}
        all_of_it = led(Followers(links), *place(0))
        try:
            yield Ranks(all_of_it.backend, all_of_it.followers, ends, ended)
        finally:
            all_of_it.backend.close()


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
