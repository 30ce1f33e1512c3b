"""An end to calls of a policy that do not return."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from engine.guard import Guard

PATIENCE_S: Final = 20.0
"""CPU seconds of a part, which takes a second or so, before what runs then is interrupted."""

IMPATIENCE_S: Final = 0.1
"""CPU seconds from one interruption to the next: a policy that loops once will loop again."""


class DidNotReturnError(BaseException):
    """What was called has taken all the time there is. The guard takes it for the policy's own."""


@contextmanager
def patience(
    seconds: float = PATIENCE_S, again: float = IMPATIENCE_S
) -> Iterator[Callable[[], None]]:
    """Interrupt whatever has taken so many CPU seconds; gives a function that starts anew.

    A loop is ended by that, but not a call that waits. On the main thread, and on systems that have
    such a clock; elsewhere nobody is interrupted.
    """
    if not hasattr(signal, "setitimer"):
        yield lambda: None
        return

    interrupted = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        if interrupted and not _asked(frame):
            return  # the engine, which is not late
        interrupted = True
        place = "" if frame is None else f" (line {frame.f_lineno} of {frame.f_code.co_filename})"
        raise DidNotReturnError(f"it did not return{place}")

    def anew() -> None:
        nonlocal interrupted
        interrupted = False
        signal.setitimer(signal.ITIMER_VIRTUAL, seconds, again)

    before = signal.signal(signal.SIGVTALRM, interrupt)
    anew()
    try:
        yield anew
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _asked(frame: FrameType | None) -> bool:
    """Whether the guard is asking the policy something here."""
    while frame is not None:
        if frame.f_code in _ASKING:
            return True
        frame = frame.f_back
    return False


_ASKING: Final = {each.__code__ for each in (Guard._ask, Guard.hand_over, Guard.observe)}
