"""Rounds in which every engine does a work once before any does the next.

So a busy moment of the machine meets all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Protocol, TypeVar

from loadtest.peers.processes import Command
from loadtest.peers.results import Results
from loadtest.peers.roster import Engine
from loadtest.peers.servers import Mix, Server, free_port, measure_served
from loadtest.peers.work import Contender, PeerFailed, Work

Tell = Callable[[str], None]
"""Told what is done next."""


class _Closing(Protocol):
    def close(self) -> None: ...


_Open = TypeVar("_Open", bound=_Closing)


class Contest:
    """Measures `engines` and puts what it finds into `results`.

    An engine that fails is out, and `results` say why. tick: called after each measurement; save:
    when everybody has done a work.
    """

    def __init__(
        self,
        engines: Mapping[str, Engine],
        results: Results,
        tell: Tell,
        tick: Callable[[], None],
        save: Callable[[], None],
    ) -> None:
        self._engines = engines
        self._results = results
        self._tell = tell
        self._tick = tick
        self._save = save

    def direct(self, works: Sequence[Work], first: int, rounds: int) -> None:
        """Rounds `first` to `first + rounds - 1` of the works, on all that load."""
        with ExitStack() as stack:
            opened = self._open(stack, {name: each.open for name, each in self._engines.items()})
            for number in range(first, first + rounds):
                for work in works:
                    for name in _turned(opened, number):
                        self._do(opened, name, work, number)
                    self._save()

    def served(
        self,
        client: Command,
        environment: Mapping[str, str],
        mix: Mix,
        first: int,
        rounds: int,
    ) -> None:
        """The same over HTTP, for the engines that have a server."""
        servers = {
            name: partial(_on_a_free_port, each.serve)
            for name, each in self._engines.items()
            if each.serve
        }
        with ExitStack() as stack:
            opened = self._open(stack, servers)
            for number in range(first, first + rounds):
                for name in _turned(opened, number):
                    self._tell(f"{name} over HTTP, round {number + 1}")
                    try:
                        served = measure_served(client, environment, opened[name].url, mix, number)
                    except PeerFailed as failure:
                        self._fail(name, failure)
                        opened.pop(name).close()
                    else:
                        self._results.add_served(name, served)
                    self._tick()
                    self._save()

    def _open(
        self, stack: ExitStack, makers: Mapping[str, Callable[[], _Open]]
    ) -> dict[str, _Open]:
        """What could be opened, by name; closed when `stack` is."""
        opened = {}
        for name, make in makers.items():
            self._tell(f"loading {name}")
            try:
                opened[name] = make()
            except PeerFailed as failure:
                self._fail(name, failure)
            else:
                stack.callback(opened[name].close)
        return opened

    def _do(self, opened: dict[str, Contender], name: str, work: Work, number: int) -> None:
        self._tell(f"{name} {work.name}, round {number + 1}")
        try:
            self._results.add(name, work.name, opened[name].measure(work, number))
        except PeerFailed as failure:
            self._fail(name, failure)
            opened.pop(name).close()
        self._tick()

    def _fail(self, name: str, failure: PeerFailed) -> None:
        entrants = self._results.entrants
        entrants[name] = replace(entrants[name], failure=str(failure))
        self._tell(f"{name}: {failure}")


def _on_a_free_port(serve: Callable[[int], Server]) -> Server:
    return serve(free_port())


def _turned(names: Mapping[str, object], number: int) -> list[str]:
    """The names, another one first in each round."""
    found = list(names)
    start = number % len(found) if found else 0
    return found[start:] + found[:start]
