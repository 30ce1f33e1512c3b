"""Turns of the engine to files, on a thread of its own: serving never waits for a disk."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

import orjson
import structlog

from app.recording.decisions import DecisionHash
from app.recording.names import Names
from app.recording.rows import row_of
from engine.recorder import Turn

log = structlog.stdlib.get_logger("octavo")

PAUSE_S: Final = 0.5
"""Between two writes: what is lost at most where the process is killed."""

MOST_TURNS: Final = 20_000
"""That wait to be written. A disk that is slower than that ends the recording."""

CLOSING_S: Final = 10.0
"""How long the last writes may take at the end."""


class Lines(Protocol):
    """Where lines go (`RotatedFiles`)."""

    def write(self, lines: bytes) -> None: ...
    def close(self) -> None: ...


class RecordingWriter:
    """Takes turns from the engine thread and writes them, some at a time.

    Behind each write is a line with a hash of all decisions so far, and with what a step costs by
    now: `cost`. Where turns come faster than they can be written, or writing fails, the recording
    ends and says so: what is in it is right, and complete up to there. cpu_s: CPU seconds that its
    thread has taken so far.
    """

    def __init__(
        self,
        files: Lines,
        names: Names,
        cost: Callable[[], list[float]],
        most_turns: int = MOST_TURNS,
        pause_s: float = PAUSE_S,
    ) -> None:
        self._files = files
        self._names = names
        self._cost = cost
        self._most_turns = most_turns
        self._pause_s = pause_s
        self._turns: deque[Turn] = deque()
        self._news = threading.Event()
        self._closing = threading.Event()
        self.cpu_s = 0.0
        self._lost = False
        self._ended = False
        self._written = 0
        self._decisions = DecisionHash(names.name)
        self._thread = threading.Thread(target=self._run, name="octavo-recording", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def take(self, turn: Turn) -> None:
        """One more turn; on the engine thread, quick, never waits."""
        if self._lost:
            return
        if len(self._turns) >= self._most_turns:
            self._lost = True
        else:
            self._turns.append(turn)
        if not self._news.is_set():
            self._news.set()

    def close(self) -> None:
        """Write what there is, and end. Who has not started has nothing to end."""
        self._closing.set()
        self._news.set()
        if self._thread.is_alive():
            self._thread.join(CLOSING_S)

    def _run(self) -> None:
        try:
            while not self._ended:
                self._news.wait()
                self._closing.wait(self._pause_s)
                self._news.clear()
                self._write()
                self.cpu_s = time.thread_time()
        except Exception as error:  # a full disk, mostly
            self._lost = True
            log.error("the recording has ended: it cannot be written", why=str(error))
        finally:
            self._turns.clear()

    def _write(self) -> None:
        """Write all that waits, and the end if this is it."""
        closing, lost = self._closing.is_set(), self._lost
        turns = [self._turns.popleft() for _ in range(len(self._turns))]
        if turns:
            self._files.write(b"".join(self._lines(turns)))
        if lost or closing:
            self._ended = True
            self._files.write(_line({"end": "lost" if lost else "closed"}))
            self._files.close()
        if lost:
            log.error("the recording has ended: turns came faster than they could be written")

    def _lines(self, turns: Iterable[Turn]) -> Iterable[bytes]:
        for turn in turns:
            yield _line(row_of(turn, self._names))
            for entry in turn.decisions:
                self._decisions(*entry)
            self._written += 1
        decisions = self._decisions
        yield _line(
            {
                "turns": self._written,
                "decisions": decisions.entries,
                "digest": decisions.digest,
                "cost": self._cost(),
            }
        )


def _line(row: dict[str, Any]) -> bytes:
    return orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)
