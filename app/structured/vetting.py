"""The process that finds out what becomes of a grammar, before the server takes it in.

What a client wrote may take the library for ever, all memory, or a deeper stack than there is. So
it is compiled here first, by a process that may end and that makes way for everybody else. It reads
a vocabulary and then grammars from its standard input, and answers each on its standard output:

    ◀─ [pieces, special, eos]          ready ─▶
    ◀─ [kind, text]                    {"grammar": in the library's notation} ─▶
                                       {"unfit": why nothing can be held to it} ─▶

It ends with its input. Started by `app.structured.vetter`; imports nothing that is large.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any, Final

import orjson

from app.structured.bounds import Unfit

if TYPE_CHECKING:
    from app.structured.compiler import Compiler

STACK_BYTES: Final = 64 * 2**20
"""Stack of a thread that compiles: the library recurses along chains of references and rules, and
at the usual 8 MiB some 1,000 of them end the process."""

MOST_MEMORY: Final = 256 * 2**20
"""Bytes that grammars may take, beyond what the process has before the first."""

MOST_CPU_S: Final = 60
"""CPU time of one grammar, should nobody be there any more to look at the clock."""

PATHS: Final = 2
STEPS: Final = 4
"""So many answers are begun, with so many tokens each, to find grammars that go wrong at once."""

_LENGTH: Final = 4


def write_frame(stream: IO[bytes], data: bytes) -> None:
    """Send some bytes, with their number in front."""
    stream.write(len(data).to_bytes(_LENGTH, "little") + data)
    stream.flush()


def read_frame(stream: IO[bytes]) -> bytes | None:
    """The next bytes that were sent whole; None at the end of the stream."""
    head = stream.read(_LENGTH)
    size = int.from_bytes(head, "little")
    data = stream.read(size) if len(head) == _LENGTH else b""
    return data if len(head) == _LENGTH and len(data) == size else None


def main() -> None:
    """Answer until there is nothing more to read."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a server that drains may still need it
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever else is printed is no answer
    threading.stack_size(STACK_BYTES)
    thread = threading.Thread(target=_serve, args=(sys.stdin.buffer, answers))
    thread.start()
    thread.join()


def stand_back(thread: int = 0) -> None:
    """Have a thread, or the calling one, run when no other wants to, where that can be said.

    A thread that only is nice gets slices of some milliseconds, and while it has one the threads
    that compute a step wait for each other: beside one of nice 19 a step took four times as long.
    """
    if sys.platform == "linux":
        with suppress(OSError):
            os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))


def _serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    vocabulary = read_frame(requests)
    if vocabulary is None:
        return
    from app.structured.compiler import Compiler
    from app.structured.vocabulary import Vocabulary

    compiler = Compiler(Vocabulary.load(vocabulary))
    _limit_memory()
    write_frame(answers, b"ready")
    while (request := read_frame(requests)) is not None:
        _limit_time()
        kind, text = orjson.loads(request)
        write_frame(answers, orjson.dumps(vet(compiler, kind, text)))


def vet(compiler: Compiler, kind: Any, text: str) -> dict[str, str]:
    """What there is to say about a grammar."""
    from app.structured.notation import translate

    try:
        grammar = translate(kind, text)
        walk(compiler.compile(grammar), compiler.eos)
    except Unfit as reason:
        return {"unfit": str(reason)}
    except RecursionError:
        return {"unfit": "is nested too deeply"}
    return {"grammar": grammar}


def walk(start: Any, eos: frozenset[int]) -> None:
    """Begin an answer with the first tokens that are allowed, and one with the last.

    Raises Unfit for a grammar that is too complex to go on from there.
    """
    for path in range(PATHS):
        matcher = start.deep_copy()
        for _ in range(STEPS):
            allowed = int.from_bytes(matcher.compute_bitmask(), "little")
            for token in eos:
                allowed &= ~(1 << token)
            if matcher.is_error() or not allowed:
                break
            lowest = (allowed & -allowed).bit_length() - 1
            matcher.consume_token(allowed.bit_length() - 1 if path else lowest)
            if matcher.is_stopped():
                break
        if matcher.is_error():
            raise Unfit("is too complex to go on after the first tokens of an answer")


def _limit_memory() -> None:
    """Let grammars have so much memory, where a process can be held to it."""
    if sys.platform == "linux":
        import resource

        with open("/proc/self/statm", "rb") as numbers:
            pages = int(numbers.read().split()[0])
        most = pages * resource.getpagesize() + MOST_MEMORY
        with suppress(ValueError, OSError):  # less is allowed already
            resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _limit_time() -> None:
    """Let the next grammar have so much CPU time."""
    if sys.platform != "win32":
        import resource

        used = resource.getrusage(resource.RUSAGE_SELF)
        most = int(used.ru_utime + used.ru_stime) + MOST_CPU_S
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_CPU, (most, resource.RLIM_INFINITY))


if __name__ == "__main__":
    main()
