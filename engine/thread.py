"""The engine thread: blocks on its inbox when idle, hands failures over, never dies silently."""

from __future__ import annotations

import logging
import queue
import sys
import threading
import traceback
from collections.abc import Callable

from engine.inbox import Message, Submission
from engine.loop import Engine
from engine.outputs import Failure, FailureKind

log = logging.getLogger("octavo.engine")

BROKEN = Failure(FailureKind.ENGINE_FAULT, "the engine has stopped after an internal error")
CLOSED = Failure(FailureKind.SHUTTING_DOWN, "the server is shutting down")


class EngineThread:
    """Runs an engine's loop. `post` may be called from any thread, everything else from one.

    on_exit is called on the engine thread when the loop has ended, for whatever reason, after the
    last outputs were emitted.
    """

    def __init__(self, engine: Engine, on_exit: Callable[[], None] = lambda: None) -> None:
        self._engine = engine
        self._inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._on_exit = on_exit
        self._ended: Failure | None = None
        self._step_began: float | None = None
        self._thread = threading.Thread(target=self._run, name="octavo-engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def post(self, message: Message) -> None:
        """Say something to the engine. After `ended` is set nobody listens any more."""
        self._inbox.put(message)

    def join(self, timeout: float | None = None) -> None:
        """Wait until the loop has ended."""
        self._thread.join(timeout)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def ended(self) -> Failure | None:
        """Why the loop takes no more requests, or None while it does."""
        return self._ended

    @property
    def step_age(self) -> float:
        """Seconds by the engine's clock that the step in progress has taken so far.

        0 between two steps: who waits for mail, however long, is not stuck.
        """
        began = self._step_began
        return 0.0 if began is None else self._engine.clock.now() - began

    @property
    def stack(self) -> str:
        """Where the thread is, in lines as of a traceback; empty if it does not run."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        return "".join(traceback.format_stack(frame)) if frame is not None else ""

    def _run(self) -> None:
        try:
            while not self._engine.stopped:
                messages = self._mail()
                self._step_began = self._engine.clock.now()
                self._engine.step(messages)
                self._step_began = None
            self._close(CLOSED)
        except BaseException:  # nobody may wait for a thread that has ended, whatever ended it
            self._ended = BROKEN
            log.exception("the engine loop is broken")
            self._close(BROKEN)
        finally:
            self._on_exit()

    def _mail(self) -> list[Message]:
        """Everything in the inbox; waits for the first message when there is nothing to do."""
        patience = self._engine.patience
        messages: list[Message] = []
        try:
            messages.append(self._inbox.get(block=patience != 0, timeout=patience))
            while True:
                messages.append(self._inbox.get_nowait())
        except queue.Empty:
            return messages

    def _close(self, failure: Failure) -> None:
        """Fail what is open and what came too late.

        `ended` is set before the last look into the inbox, and a poster looks at `ended` after its
        put: so each submission is either failed here or refused there, never forgotten.
        """
        self._ended = failure
        late: list[Submission] = []
        while not self._inbox.empty():
            message = self._inbox.get_nowait()
            if isinstance(message, Submission):
                late.append(message)
        self._engine.close(failure, late)
