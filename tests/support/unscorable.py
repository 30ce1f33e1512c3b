"""Policies that a process which scores them has to survive, or not."""

from __future__ import annotations

import os
import signal
import time

from policies.base import Policy


class Endless(Policy):
    """Does not come back."""

    def __init__(self, *, services: object) -> None:
        while True:
            time.sleep(0.01)


class Deadly(Policy):
    """Takes its process with it."""

    def __init__(self, *, services: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Greedy(Policy):
    """Wants more memory than there may be."""

    def __init__(self, *, services: object) -> None:
        self.much = bytearray(8 * 2**30)


class Chatty(Policy):
    """Prints, which is no answer."""

    def __init__(self, *, services: object) -> None:
        print("hello")


class Wrong(Policy):
    """Raises whenever it is asked."""

    def rank(self, request: object) -> tuple:
        raise RuntimeError("no")

    pick = rank
