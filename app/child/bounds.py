"""What a child may take: processor time that nobody else wants, so much memory, so many seconds."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from contextlib import suppress
from typing import IO


def stand_back(thread: int = 0) -> None:
    """Have a thread, or the calling one, run when no other wants to, where that can be said.

    A thread that only is nice gets slices of some milliseconds, and while it has one the threads
    that compute a step wait for each other: beside one of nice 19 a step took four times as long.
    """
    if sys.platform == "linux":
        with suppress(OSError):
            os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))


def answers_only() -> IO[bytes]:
    """The stream for a child's answers; whatever else it prints is none, and goes to stderr.

    Signals that end a server are ignored from then on: one that drains may still need its child,
    which ends with its input.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return answers


def end_with(input_: IO[bytes]) -> None:
    """End the process when nobody can send it anything any more, whatever it is at.

    A server that is killed ends nothing itself, and what a child is at may be somebody's code that
    waits for ever, which takes no CPU time.
    """

    def watch() -> None:
        poll = select.poll()
        poll.register(input_, 0)  # the other end's closing is told all the same
        poll.poll()
        os._exit(0)

    threading.Thread(target=watch, name="octavo-end", daemon=True).start()


def limit_memory(more: int) -> None:
    """Let the process take so many bytes more than it has, where it can be held to that."""
    if sys.platform == "linux":
        import resource

        with open("/proc/self/statm", "rb") as numbers:
            pages = int(numbers.read().split()[0])
        most = pages * resource.getpagesize() + more
        with suppress(ValueError, OSError):  # less is allowed already
            resource.setrlimit(resource.RLIMIT_AS, (most, most))


def limit_time(more: int) -> None:
    """Let the process use so many seconds of CPU time more, where it can be held to that."""
    if sys.platform != "win32":
        import resource

        used = resource.getrusage(resource.RUSAGE_SELF)
        most = int(used.ru_utime + used.ru_stime) + more
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_CPU, (most, resource.RLIM_INFINITY))
