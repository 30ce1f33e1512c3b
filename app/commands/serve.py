"""Serve a model over OpenAI-compatible HTTP."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import FrameType

import click
import uvicorn
from rich.console import Console

from app.commands.options import config_options
from app.compose import House, compose
from app.config import Config, LoadedConfig
from app.logs import configure_logs

log = logging.getLogger("octavo")


@click.command()
@config_options
def serve(loaded: LoadedConfig) -> None:
    """Serve the configured model until SIGTERM or Ctrl-C.

    The first signal refuses new requests and lets those in flight end within
    server.shutdown_grace_s; a second one cuts them.

    \b
    Examples:
      octavo serve
      octavo serve --config config.yaml --set server.port=9000
      octavo serve --set engine.backend=simulated
    """
    config = loaded.config
    configure_logs(config.log.level, config.log.format)
    house = compose(config, Console(stderr=True))
    _announce(config, house)
    run(config, house)


def run(config: Config, house: House) -> None:
    """Serve until a signal comes."""
    grace = config.server.shutdown_grace_s
    server = DrainingServer(
        uvicorn.Config(
            house.application,
            host=config.server.host,
            port=config.server.port,
            log_config=None,
            access_log=False,
            timeout_keep_alive=config.server.keep_alive_s,
            # After the grace period open requests are told so; this is for clients who do not read.
            timeout_graceful_shutdown=int(grace) + 5,
        ),
        on_signal=lambda: house.bridge.drain_soon(grace),
    )
    server.run()


class DrainingServer(uvicorn.Server):
    """A uvicorn whose first signal drains and whose second one cuts; the exit code is 0."""

    def __init__(self, config: uvicorn.Config, on_signal: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_signal = on_signal

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called in the main thread between two bytecodes: hand over, do nothing here."""
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True
        self._on_signal()


def _announce(config: Config, house: House) -> None:
    service = house.service
    log.info(
        "serving %s with policy %s, context %d tokens",
        service.model_id,
        config.scheduler.policy,
        service.max_model_len,
    )
