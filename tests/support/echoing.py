"""A child that says what it is told, but for some words: `python -m support.echoing`."""

from __future__ import annotations

import os
import sys
import time

from app.child.bounds import answers_only, limit_memory
from app.child.frames import READY, read_frame, write_frame


def main() -> None:
    answers = answers_only()
    greeting = read_frame(sys.stdin.buffer)
    limit_memory(64 * 2**20)
    write_frame(answers, READY)
    while (said := read_frame(sys.stdin.buffer)) is not None:
        write_frame(answers, b"%b %b" % (greeting, answer(said)))


def answer(said: bytes) -> bytes:
    if said == b"sleep":
        time.sleep(600)
    elif said == b"die":
        os._exit(3)
    elif said == b"print":
        print("something else", flush=True)
    elif said == b"grow":
        try:
            bytearray(2**30)
        except MemoryError:
            return b"MemoryError"
    return said


if __name__ == "__main__":
    main()
