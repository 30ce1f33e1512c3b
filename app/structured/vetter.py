"""The server's side of a process that vets grammars (`app.structured.vetting`)."""

from __future__ import annotations

import signal
from typing import Final

import orjson

from app.child.process import Child, NoChild
from app.structured.bounds import Unfit
from app.structured.kinds import Kind

MODULE: Final = "app.structured.vetting"


class TookTooLong(Exception):
    """A grammar was given up after its time."""


class NotVetted(Exception):
    """No process could be had, whatever the grammar."""


class Vetter:
    """One process, started when it is needed first and again after it ended.

    vocabulary: a dump of one. timeout_s: of a grammar. Used by one thread at a time, but for
    `close`.
    """

    def __init__(self, vocabulary: bytes, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.child = Child(MODULE, vocabulary, "the process that vets grammars")

    @property
    def pid(self) -> int | None:
        """The process, if there is one."""
        return self.child.pid

    def vet(self, kind: Kind, text: str) -> str:
        """A grammar in the library's notation that compiles within the limits.

        Raises Unfit, TookTooLong, or NotVetted.
        """
        request = orjson.dumps([kind, text])
        answer = self._ask(request)
        if answer is None and self.child.end() == -signal.SIGKILL:
            answer = self._ask(request)  # limits end it otherwise: not its fault
        if answer is None:
            self.child.end()
            raise Unfit("takes more memory, or a deeper stack, than is possible here")
        said = orjson.loads(answer)
        if "unfit" in said:
            raise Unfit(said["unfit"])
        grammar: str = said["grammar"]
        return grammar

    def close(self) -> None:
        """End the process, whatever it does. From any thread."""
        self.child.close()

    def _ask(self, request: bytes) -> bytes | None:
        """What it answers; None if it ended. Raises TookTooLong or NotVetted."""
        try:
            return self.child.ask(request, self.timeout_s)
        except TimeoutError:
            raise TookTooLong from None
        except NoChild as reason:
            raise NotVetted(str(reason)) from None
