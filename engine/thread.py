"""The engine thread: blocks on its inbox when idle, hands failures over, never dies silently."""

from __future__ import annotations

import logging
import queue
import threading
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

    def _run(self) -> None:
        try:
            while not self._engine.stopped:
                self._engine.step(self._mail())
            self._close(CLOSED)
        except BaseException:  # nobody may wait for a thread that has ended, whatever ended it
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
