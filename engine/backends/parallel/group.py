"""The ranks as torch.distributed sees them: gloo between CPUs, NCCL between GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from engine.backends.parallel.place import Place
from engine.errors import CollectiveFailed

STARTING_S: Final = 600.0
"""How long a collective waits for a rank while models are loaded and kernels compiled, which takes
one of them longer than another."""

MEETING_S: Final = 300.0
"""How long ranks wait for each other at the start, before any of them loads anything."""


class Work(Protocol):
    """Something that was begun."""

    def wait(self) -> bool: ...


class Processes(Protocol):
    """What of torch's process groups is used; on a GPU, all of it is enqueued."""

    def allreduce(self, tensors: list[Tensor], /) -> Work: ...
    def broadcast(self, tensor: Tensor, root: int, /) -> Work: ...
    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], /) -> Work: ...


class Group:
    """Collectives of the ranks (`matrices.Collectives`)."""

    def __init__(self, processes: Processes, world: int) -> None:
        self._processes = processes
        self._world = world

    def all_reduce(self, x: Tensor) -> None:
        with _failing():
            self._processes.allreduce([x]).wait()

    def broadcast(self, x: Tensor) -> None:
        """Give x of rank 0 to all others, in place."""
        with _failing():
            self._processes.broadcast(x, 0).wait()

    def all_gather(self, x: Tensor) -> list[Tensor]:
        parts = [torch.empty_like(x) for _ in range(self._world)]
        with _failing():
            self._processes.allgather([parts], [x.contiguous()]).wait()
        return parts


@contextmanager
def _failing() -> Iterator[None]:
    """torch says RuntimeError for whatever goes wrong between processes."""
    try:
        yield
    except RuntimeError as error:
        raise CollectiveFailed(str(error).splitlines()[0]) from error


def meet() -> Store:
    """The store of all ranks, once each of them is there.

    Where it is stands in the environment (MASTER_ADDR, MASTER_PORT), as torchrun sets it. Raises
    CollectiveFailed if they do not come together within `MEETING_S`.
    """
    with _failing():
        store, _, _ = next(rendezvous("env://", timeout=timedelta(seconds=MEETING_S)))
    return PrefixStore("octavo", store)


def join(place: Place, store: Store, device: torch.device) -> Group:
    """The group of all ranks, which compute on `device`; each process joins one.

    A collective waits for `STARTING_S` until `expect` says otherwise. Raises CollectiveFailed.
    """
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.set_device(device)
    with _failing():
        dist.init_process_group(
            "nccl" if on_gpu else "gloo",
            store=store,
            rank=place.rank,
            world_size=place.world,
            timeout=timedelta(seconds=STARTING_S),
            device_id=device if on_gpu else None,  # then NCCL connects now, and in no graph
        )
    world = dist.group.WORLD
    assert world is not None, "it has been made"
    return Group(world, place.world)


def expect(timeout_s: float) -> None:
    """From now on let a collective wait only so long for a rank that does not come."""
    if dist.is_initialized():
        distributed_c10d._set_pg_timeout(timedelta(seconds=timeout_s), dist.group.WORLD)


def leave() -> None:
    """End this process's part in the group, if it has one."""
    if dist.is_initialized():
        dist.destroy_process_group()
