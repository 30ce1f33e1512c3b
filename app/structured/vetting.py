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

import sys
import threading
from typing import IO, TYPE_CHECKING, Any, Final

import orjson

from app.child.bounds import answers_only, limit_memory, limit_time
from app.child.frames import READY, read_frame, write_frame
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


def main() -> None:
    """Answer until there is nothing more to read."""
    answers = answers_only()
    threading.stack_size(STACK_BYTES)
    thread = threading.Thread(target=_serve, args=(sys.stdin.buffer, answers))
    thread.start()
    thread.join()


def _serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    vocabulary = read_frame(requests)
    if vocabulary is None:
        return
    from app.structured.compiler import Compiler
    from app.structured.vocabulary import Vocabulary

    compiler = Compiler(Vocabulary.load(vocabulary))
    limit_memory(MOST_MEMORY)
    write_frame(answers, READY)
    while (request := read_frame(requests)) is not None:
        limit_time(MOST_CPU_S)
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


if __name__ == "__main__":
    main()
