"""How a model comes to several processes: they meet, agree, load a shard each, and agree again.

    a follower                          rank 0
    HELLO  I am rank 1
    PLAN   the model, the KV format ─▶  as I have them?    else nobody goes on
                                    ◀─  PLAN
           load my shard                load my shard
    READY  what I have loaded       ─▶  what I have?       else nobody goes on
                                    ◀─  READY
    ROOM   the blocks that fit      ─▶  the fewest of all
                                    ◀─  ROOM

Whatever goes wrong with one of them is said to the others before it ends.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from engine.backends.base import Backend
from engine.backends.parallel.computer import Computer
from engine.backends.parallel.follower import Follower, answered, telling
from engine.backends.parallel.followers import Followers
from engine.backends.parallel.group import MEETING_S, Group, expect, join, meet
from engine.backends.parallel.matrices import joined
from engine.backends.parallel.part import Part
from engine.backends.parallel.place import Place
from engine.backends.parallel.shards import Fingerprint
from engine.backends.parallel.wanted import Wanted
from engine.backends.parallel.wire import Kind, Link, call, listen
from engine.errors import CollectiveFailed, ConfigurationError, GroupLost
from engine.models.config import ModelConfig
from engine.models.weights import Weights

Join = Callable[[], Group]
"""Takes this rank's place in the group, once it is known that all will come."""


@dataclass(frozen=True, slots=True)
class Led:
    """What rank 0 has. config: of the whole model. threads: as of its Computer."""

    backend: Backend
    followers: Followers
    config: ModelConfig
    threads: int | None


def lead(place: Place, wanted: Wanted, computer: Computer) -> Led:
    """Meet all other ranks, and load rank 0's shard while they load theirs.

    Raises ConfigurationError for what cannot be served, here or there, GroupLost if a rank ends or
    does not come.
    """
    store = meet()
    links = listen(store, os.environ["MASTER_ADDR"], place.world, MEETING_S)
    joining = partial(join, place, store, computer.torch_device)
    ready = led(Followers(links), place, wanted, computer, joining)
    expect(wanted.timeout_s)
    return ready


def follow(place: Place, wanted: Wanted, computer: Computer) -> Follower:
    """Meet rank 0, and load this rank's shard; what comes back is ready to follow.

    Raises ConfigurationError for what cannot be served, GroupLost if rank 0 ends.
    """
    store = meet()
    link = call(store, os.environ["MASTER_ADDR"], MEETING_S, place.rank)
    joining = partial(join, place, store, computer.torch_device)
    ready = followed(link, place, wanted, computer, joining)
    expect(wanted.timeout_s)
    return ready


def led(followers: Followers, place: Place, wanted: Wanted, computer: Computer, join: Join) -> Led:
    """Rank 0's side of what lies behind HELLO."""

    def agree(blocks: int, host_blocks: int) -> tuple[int, int]:
        rooms = followers.all(Kind.ROOM).values()
        blocks = min(blocks, *(room["blocks"] for room in rooms))
        host_blocks = min(host_blocks, *(room["host_blocks"] for room in rooms))
        followers.tell_all(Kind.ROOM, blocks=blocks, host_blocks=host_blocks)
        return blocks, host_blocks

    followers.start()
    with _failing_all(followers):
        part = Part(place, wanted)
        agreement = {**part.agreement, **computer.agreement}
        _compare(agreement, followers.all(Kind.PLAN))
        followers.tell_all(Kind.PLAN)
        group = join()
        weights, fingerprint = _load(part, computer, group)
        _compare({"weights": fingerprint}, followers.all(Kind.READY))
        followers.tell_all(Kind.READY)
        backend = computer.leader(part, weights, followers, group, agree)
    return Led(backend, followers, part.shard.whole, computer.threads)


def followed(link: Link, place: Place, wanted: Wanted, computer: Computer, join: Join) -> Follower:
    """The other ranks' side of what lies behind HELLO."""

    def agree(blocks: int, host_blocks: int) -> tuple[int, int]:
        room = answered(link, Kind.ROOM, blocks=blocks, host_blocks=host_blocks)
        return room["blocks"], room["host_blocks"]

    with telling(link):
        part = Part(place, wanted)
        answered(link, Kind.PLAN, **part.agreement, **computer.agreement)
        group = join()
        weights, fingerprint = _load(part, computer, group)
        answered(link, Kind.READY, weights=fingerprint)
        return Follower(link, computer.follower(part, weights, group, agree))


def _load(part: Part, computer: Computer, group: Group) -> tuple[Weights, str]:
    """A rank's weights, loaded one tensor after the other; and what tells models apart."""
    fingerprint = Fingerprint()

    def cut(name: str, tensor: Tensor) -> Tensor:
        fingerprint.add(name, tensor)
        return part.shard.cut(name, tensor)

    return joined(computer.load(part, cut), part.shard, group), str(fingerprint)


def _compare(mine: Mapping[str, str], theirs: Mapping[int, Mapping[str, Any]]) -> None:
    """Raise ConfigurationError if a rank is about to compute something else than rank 0."""
    for rank, said in sorted(theirs.items()):
        for what, value in mine.items():
            if said.get(what) != value:
                raise ConfigurationError(
                    f"rank {rank} differs from rank 0 in {what}: {said.get(what)}, not {value}"
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
