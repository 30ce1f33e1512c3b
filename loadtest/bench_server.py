"""A server in a process of its own, which measures itself and says what it found over a pipe."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Final

import uvicorn
from rich.console import Console

from app.compose import House, compose
from app.config import Config
from app.draining_server import uvicorn_config
from app.listener import Listener
from app.logs import configure_logs
from loadtest.machine import Unmeasured

LOOK_S: Final = 0.2
"""Seconds between two looks whether the processes are still there."""

Work = Callable[[House, Connection], Awaitable[None]]
"""What the server's process does while it serves, until the pipe says end or is closed. A function
of a module: the other process imports it."""


@dataclass(frozen=True, slots=True)
class BenchServer:
    """The server's process as the measuring one sees it. vocab: valid token ids are below."""

    process: BaseProcess
    pipe: Connection
    port: int
    model: str
    vocab: int

    def answer(self, clients: BaseProcess | None = None) -> Any:
        """What the server says next. Raises Unmeasured if a process ends that should not."""
        return answer(self.pipe, self.process, clients)


@contextmanager
def bench_server(config: Config, work: Work) -> Iterator[BenchServer]:
    """A server that has started; it is ended with the `with`. Raises Unmeasured."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(config, work, there), daemon=True)
    process.start()
    there.close()
    try:
        port, vocab = answer(here, process, None)
        yield BenchServer(process, here, port, config.model.served_name, vocab)
    finally:
        with suppress(OSError):
            here.send(("end", None))
        process.join(10)
        process.kill()


def answer(pipe: Connection, server: BaseProcess, clients: BaseProcess | None) -> Any:
    """What comes through the pipe. Raises Unmeasured if a process ends that should not."""
    while not pipe.poll(LOOK_S):
        if not server.is_alive():
            raise Unmeasured("the server ended")
        if clients is not None and clients.exitcode:
            raise Unmeasured("the clients were refused")
    try:
        return pipe.recv()
    except EOFError:
        raise Unmeasured("the server ended") from None


# ── in the server's process ───────────────────────────────────────────────────────────────────


def _serve(config: Config, work: Work, pipe: Connection) -> None:
    """Serve, and work until the pipe says end."""
    configure_logs("error", config.log.format)
    house = compose(config, Console(stderr=True, quiet=True))
    listener = Listener(config.server)
    uvicorn_settings = uvicorn_config(house.application, config.server)
    with asyncio.Runner(loop_factory=uvicorn_settings.get_loop_factory()) as runner:
        runner.run(_working(house, listener, uvicorn.Server(uvicorn_settings), work, pipe))


async def _working(
    house: House, listener: Listener, server: uvicorn.Server, work: Work, pipe: Connection
) -> None:
    serving = asyncio.ensure_future(server.serve(sockets=[listener.socket]))
    pipe.send((listener.socket.getsockname()[1], house.service.tokenizer.vocab_size))
    with suppress(EOFError, BrokenPipeError):  # who measures has gone
        await work(house, pipe)
    server.should_exit = True
    await serving
