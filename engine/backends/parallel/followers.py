"""The other ranks, as rank 0 knows them: what they are told, and what became of them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from engine.backends.parallel.wire import Kind, Link, fields
from engine.errors import CollectiveFailed, GroupLost

log = logging.getLogger("octavo.engine")

ROUNDS: Final = (Kind.PLAN, Kind.READY, Kind.ROOM)
"""What every follower says once, in this order, before the first step."""

BLAME_S: Final = 2.0
"""How long is waited for the last words of a rank, where a step has failed and nobody said why."""

FAREWELL_S: Final = 5.0
"""How long followers may take to end after they were told to."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Why a rank cannot go on. symptom: it says that another one has failed it."""

    rank: int
    reason: str
    symptom: bool = False


class Followers:
    """Links to all other ranks, each listened to by a thread of its own.

    `lost` may be asked by any thread, everything else by one.
    """

    def __init__(self, links: Mapping[int, Link]) -> None:
        self._links = dict(links)
        self._changed = threading.Condition()
        self._losses: list[Loss] = []
        self._said: dict[Kind, dict[int, dict[str, Any]]] = {kind: {} for kind in ROUNDS}
        self._stopping = False
        self._tell: Callable[[], None] | None = None
        self._leaving = False
        self._threads = [
            threading.Thread(
                target=self._listen, args=each, name=f"octavo-rank-{each[0]}", daemon=True
            )
            for each in self._links.items()
        ]

    def start(self) -> None:
        """Listen from now on."""
        for thread in self._threads:
            thread.start()

    def when_one_leaves(self, tell: Callable[[], None]) -> None:
        """Call `tell`, on any thread, when a rank is lost or was told to end; at once if it was."""
        with self._changed:
            self._tell = tell
            already = self._leaving
        if already:
            tell()

    @property
    def lost(self) -> GroupLost | None:
        """Why the group cannot go on; None while it can. A cause comes before its symptoms."""
        with self._changed:
            return self._lost()

    def all(self, kind: Kind) -> dict[int, dict[str, Any]]:
        """Wait until all have said what each says once; returns what it was. Raises GroupLost.

        kind: one of ROUNDS.
        """
        said = self._said[kind]
        with self._changed:
            self._changed.wait_for(lambda: self._losses or len(said) == len(self._links))
            lost = self._lost()
            if lost is None:
                return dict(said)
        self._say_farewell()
        raise lost

    def tell_all(self, kind: Kind, **values: Any) -> None:
        """Send named values to all of them. Raises GroupLost."""
        self._send(lambda link: link.tell(kind, **values))

    @contextmanager
    def computing(self, step: npt.NDArray[np.int32]) -> Iterator[None]:
        """Send a step to all of them; rank 0 computes its part within the `with`.

        Whatever goes wrong, there or here, comes out of it as GroupLost: nobody knows any more
        what the others are waiting for.
        """
        self._send(lambda link: link.send_array(Kind.STEP, step))
        try:
            yield
        except CollectiveFailed as error:
            raise self.blame() from error
        except Exception as error:
            raise self.fail(f"cannot go on: {error!r}") from error

    def blame(self) -> GroupLost:
        """Who is to blame for a step that did not come about. Waits a little for last words."""
        with self._changed:
            self._changed.wait_for(lambda: any(not loss.symptom for loss in self._losses), BLAME_S)
            if all(loss.symptom for loss in self._losses):
                told = {loss.rank for loss in self._losses}
                silent = sorted(set(self._links) - told) or sorted(self._links)
                self._lose(Loss(silent[0], "does not answer"))
            lost = self._lost()
            assert lost is not None, "somebody is to blame"
        self._say_farewell()
        return lost

    def fail(self, reason: str) -> GroupLost:
        """Rank 0 itself cannot go on: the others are told. Returns what to raise."""
        with self._changed:
            self._lose(Loss(0, reason))
        self._say_farewell()
        return GroupLost(0, reason)

    def stop(self) -> None:
        """Tell them that there is nothing more to compute, and wait until they have ended."""
        with self._changed:
            self._stopping = True
        self._say_farewell()
        deadline = time.monotonic() + FAREWELL_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        for link in self._links.values():
            link.close()

    def _send(self, send: Callable[[Link], None]) -> None:
        if lost := self.lost:
            raise lost
        for link in self._links.values():
            try:
                send(link)
            except OSError:
                raise self.blame() from None

    def _say_farewell(self) -> None:
        """Tell whoever still listens that this is the end, and of what."""
        lost = self.lost
        kind, values = (Kind.STOP, {}) if lost is None else (Kind.FAULT, {"reason": _without(lost)})
        for link in self._links.values():
            with suppress(OSError):  # it has gone, which its thread has noticed
                link.tell(kind, **values)

    def _listen(self, rank: int, link: Link) -> None:
        """Take in what a rank says, until it has gone."""
        try:
            while True:
                kind, body = link.receive()
                self._heard(rank, kind, fields(body) if body else {})
        except (OSError, EOFError) as error:
            words = (
                "has ended without a word" if isinstance(error, EOFError) else f"is gone: {error}"
            )
            with self._changed:
                if not self._stopping and all(loss.rank != rank for loss in self._losses):
                    self._lose(Loss(rank, words))

    def _heard(self, rank: int, kind: Kind, values: dict[str, Any]) -> None:
        with self._changed:
            if kind in ROUNDS:
                self._said[kind][rank] = values
            elif kind == Kind.LEAVING:
                log.warning("rank %d was told to end, and so all do", rank)
                self._leave()
            elif kind == Kind.FAULT and not self._stopping:
                symptom = bool(values.get("symptom"))
                self._lose(Loss(rank, str(values.get("reason")), symptom))
            self._changed.notify_all()

    def _lose(self, loss: Loss) -> None:
        """Under the lock."""
        first = all(other.symptom for other in self._losses)
        self._losses.append(loss)
        if first and not loss.symptom:
            log.error("rank %d %s: nothing can be computed any more", loss.rank, loss.reason)
        self._changed.notify_all()
        self._leave()

    def _leave(self) -> None:
        """Under the lock; whoever is told only takes a note."""
        self._leaving = True
        if self._tell is not None:
            self._tell()

    def _lost(self) -> GroupLost | None:
        """Under the lock."""
        if not self._losses:
            return None
        first = min(self._losses, key=lambda loss: loss.symptom)
        return GroupLost(first.rank, first.reason)


def _without(lost: GroupLost) -> str:
    """Why rank 0 cannot go on, as the others are told."""
    if lost.rank == 0:
        return lost.reason
    return f"cannot go on without rank {lost.rank}, which {lost.reason}"
