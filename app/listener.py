"""The socket that clients connect to, taken before anything slow is done."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from app.config.schema import ServerConfig
from app.problems import BadConfiguration, Problem

BACKLOG = 2048
"""Connections that may wait to be accepted."""


class Listener:
    """A socket that clients can connect to; they wait until somebody accepts them.

    url: where clients reach it, with the port that was really taken.
    """

    def __init__(self, server: ServerConfig) -> None:
        """Take the address of `server`. Raises ConfigurationError if it cannot be had."""
        self._server = server
        family = socket.AF_INET6 if ":" in server.host else socket.AF_INET
        self.socket = socket.socket(family)
        # A port that a server before this one has just left may be taken at once.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with self._or_refuse():
            self.socket.bind((server.host, server.port))
            # Several may have bound the address; it is taken by the one that listens first.
            self.socket.listen(BACKLOG)

    @property
    def at(self) -> str:
        """Host and port."""
        host = f"[{self._server.host}]" if ":" in self._server.host else self._server.host
        return f"{host}:{self.socket.getsockname()[1]}"

    @property
    def url(self) -> str:
        return f"http://{self.at}"

    @contextmanager
    def _or_refuse(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.socket.close()
            raise BadConfiguration(_problem(self._server, error)) from error


def _problem(server: ServerConfig, error: OSError) -> Problem:
    reason = (error.strerror or str(error)).lower()
    if error.errno in (errno.EADDRINUSE, errno.EACCES):
        return Problem("server.port", f"{server.port} on {server.host} cannot be taken: {reason}")
    return Problem("server.host", f"{server.host} cannot be listened on: {reason}")
