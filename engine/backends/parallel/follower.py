"""Every other rank's part of a step: wait to be told what to compute, and compute it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from engine.backends.parallel.computer import Steps
from engine.backends.parallel.messages import unpack
from engine.backends.parallel.wire import Kind, Link, array, fields
from engine.batch import Batch
from engine.errors import CollectiveFailed, GroupLost

WHY_S: Final = 5.0
"""How long a rank that was left alone waits for the words of rank 0, which has to find out."""


class Follower:
    """Computes what rank 0 sends, until it says that that is all.

    What comes out is dropped: logits are the same on each rank, and rank 0 samples.
    """

    def __init__(self, link: Link, steps: Steps) -> None:
        self._link = link
        self._steps = steps

    @property
    def blocks(self) -> int:
        """KV blocks of each rank."""
        return self._steps.blocks

    def follow(self) -> None:
        """Compute steps. Raises GroupLost if rank 0 ends otherwise, and whatever a step raises."""
        with telling(self._link):
            while (batch := self._told()) is not None:
                self._steps.compute(batch)

    def ask_to_stop(self) -> None:
        """Tell rank 0 that this process is to end: it ends all of them. Safe in signal handlers,
        since nobody else speaks while steps are computed."""
        with suppress(OSError):
            self._link.tell(Kind.LEAVING)

    def close(self) -> None:
        """Hang up, and give the memory back."""
        self._link.close()
        self._steps.close()

    def _told(self) -> Batch | None:
        """The next step; None if there are no more."""
        kind, body = received(self._link)
        if kind == Kind.STOP:
            return None
        if kind != Kind.STEP:
            raise GroupLost(0, f"says {kind.name} between two steps")
        return unpack(array(body))


def answered(link: Link, kind: Kind, **values: Any) -> dict[str, Any]:
    """What rank 0 says to the same kind of message. Raises GroupLost, as `received` does."""
    with suppress(OSError):  # why it does not listen is in what it said last
        link.tell(kind, **values)
    found, body = received(link)
    if found != kind:
        raise GroupLost(0, f"says {found.name} to {kind.name}")
    return fields(body)


def received(link: Link) -> tuple[Kind, bytearray]:
    """The next message from rank 0. Raises GroupLost if it has ended, or says that it must."""
    try:
        kind, body = link.receive()
    except TimeoutError:
        raise  # whoever sets a time limit means something by it
    except EOFError:
        raise GroupLost(0, "has ended without a word") from None
    except OSError as error:
        raise GroupLost(0, f"is gone: {error}") from error
    if kind == Kind.FAULT:
        raise GroupLost(0, str(fields(body).get("reason")))
    return kind, body


@contextmanager
def telling(link: Link) -> Iterator[None]:
    """Whatever this rank cannot go on for is told to rank 0, which knows more of a symptom."""
    try:
        yield
    except GroupLost:
        raise  # that came from there
    except CollectiveFailed as error:
        _last_words(link, f"was left alone: {error}", symptom=True)
        _ask_why(link)
        raise
    except Exception as error:
        _last_words(link, f"cannot go on: {error!r}", symptom=False)
        raise


def _ask_why(link: Link) -> None:
    """Raise GroupLost if rank 0 says, within a little time, why a collective has failed."""
    link.wait(WHY_S)
    with suppress(TimeoutError):
        while True:
            received(link)


def _last_words(link: Link, reason: str, *, symptom: bool) -> None:
    with suppress(OSError):  # it has gone, so nobody needs to be told
        link.tell(Kind.FAULT, reason=reason, symptom=symptom)
