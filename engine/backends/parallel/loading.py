"""How a model comes to several processes: they meet, agree, load a shard each, and agree again.

    a follower                           rank 0
    HELLO  I am rank 1
    PLAN   the model, the KV format ─▶   as I have them?          else nobody goes on
                                    ◀─   LOAD
           load my shard                 load my shard
    READY  the weights, blocks      ─▶   the weights I have?      else nobody goes on
                                    ◀─   GO  the fewest blocks of all

Whatever goes wrong with one of them is said to the others before it ends.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from engine.backends.cpu import CPUBackend
from engine.backends.parallel.follower import Follower, expected, telling
from engine.backends.parallel.followers import Followers
from engine.backends.parallel.group import MEETING_S, join, meet
from engine.backends.parallel.leader import LeaderRunner
from engine.backends.parallel.part import Part
from engine.backends.parallel.place import Place
from engine.backends.parallel.wanted import Wanted
from engine.backends.parallel.wire import Kind, call, fields, listen
from engine.errors import CollectiveFailed, ConfigurationError, GroupLost
from engine.models.config import ModelConfig

CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Led:
    """What rank 0 has. config: of the whole model."""

    backend: CPUBackend
    followers: Followers
    config: ModelConfig


def lead(place: Place, wanted: Wanted) -> Led:
    """Meet all other ranks, and load rank 0's shard while they load theirs.

    Raises ConfigurationError for what cannot be served, here or there, GroupLost if a rank ends or
    does not come.
    """
    _use_threads(wanted)
    store = meet()
    links = listen(store, os.environ["MASTER_ADDR"], place.world, MEETING_S)
    followers = Followers(links)
    followers.start()
    with _failing_all(followers):
        part = Part(place, wanted)
        _compare("another", part.agreement, followers.all(Kind.PLAN))
        followers.tell_all(Kind.LOAD)
        group = join(place, store, CPU, wanted.timeout_s)
        weights, fingerprint = part.load(group)
        ready = followers.all(Kind.READY)
        _compare("other", {"weights": fingerprint}, ready)
        blocks = min(part.blocks, *(said["blocks"] for said in ready.values()))
        host_blocks = min(part.host_blocks, *(said["host_blocks"] for said in ready.values()))
        runner = part.runner(weights, blocks, host_blocks)
        followers.tell_all(Kind.GO, blocks=blocks, host_blocks=host_blocks)
    backend = CPUBackend(LeaderRunner(runner, followers))
    return Led(backend, followers, part.shard.whole)


def follow(place: Place, wanted: Wanted) -> Follower:
    """Meet rank 0, and load this rank's shard; what comes back is ready to follow.

    Raises ConfigurationError for what cannot be served, GroupLost if rank 0 ends.
    """
    _use_threads(wanted)
    store = meet()
    link = call(store, os.environ["MASTER_ADDR"], MEETING_S, rank=place.rank)
    with telling(link):
        part = Part(place, wanted)
        link.tell(Kind.PLAN, **part.agreement)
        expected(link, Kind.LOAD)
        group = join(place, store, CPU, wanted.timeout_s)
        weights, fingerprint = part.load(group)
        link.tell(Kind.READY, weights=fingerprint, blocks=part.blocks, host_blocks=part.host_blocks)
        room = fields(expected(link, Kind.GO))
        return Follower(place.rank, link, part.runner(weights, **room))


def _use_threads(wanted: Wanted) -> None:
    if wanted.threads is not None:
        torch.set_num_threads(wanted.threads)


def _compare(other: str, mine: Mapping[str, str], theirs: Mapping[int, Mapping[str, Any]]) -> None:
    """Raise ConfigurationError if a rank is about to compute something else than rank 0."""
    for rank, said in sorted(theirs.items()):
        for what, value in mine.items():
            if said.get(what) != value:
                raise ConfigurationError(
                    f"rank {rank} has {other} {what} than rank 0: {said.get(what)}, not {value}"
                )


@contextmanager
def _failing_all(followers: Followers) -> Iterator[None]:
    """Whatever rank 0 cannot go on for is told to the others."""
    try:
        yield
    except CollectiveFailed as error:
        raise followers.blame() from error
    except GroupLost:
        raise  # which the others have been told
    except Exception as error:
        followers.fail(f"cannot be loaded: {error}")
        raise
