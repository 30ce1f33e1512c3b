"""Serve a model over OpenAI-compatible HTTP."""

from __future__ import annotations

from contextlib import closing
from functools import partial

import click
from rich.console import Console

from app.commands.options import config_options
from app.compose import compose, model_path
from app.computing import settle
from app.config import LoadedConfig
from app.draining_server import DrainingServer, uvicorn_config
from app.listener import Listener
from app.logs import configure_logs
from app.middleware import count_rejected
from app.ranks import follow_rank_0, leading, place_of
from app.reload import Reload
from app.waiting_room import WaitingRoom


@click.command()
@config_options
def serve(loaded: LoadedConfig) -> None:
    """Serve the configured model until SIGTERM or Ctrl-C.

    The first signal refuses new requests and lets those in flight end within
    server.shutdown_grace_s; a second one cuts them. SIGHUP reads the configuration again: policy,
    classes and tenants change between two steps, a bad configuration changes nothing.

    \b
    Examples:
      octavo serve
      octavo serve --config config.yaml --set server.port=9000
      octavo serve --set engine.backend=simulated
      octavo serve --set scheduler.policy=slo --set scheduler.params.late=reject
    """
    config = loaded.config
    configure_logs(config.log.level, config.log.format)
    place = place_of(config)
    if place.rank:
        config, choice = settle(config)
        follow_rank_0(config, choice, place, model_path(config, Console(stderr=True)))
        return
    listener = Listener(config.server)
    with closing(listener.socket):  # also where the model cannot be loaded
        with WaitingRoom(listener, config.server):
            house = compose(config, Console(stderr=True))
        service = house.service
        rejected = partial(count_rejected, service.metrics)
        uvicorn = uvicorn_config(house.application, config.server, rejected)
        reload = Reload(loaded, service.policies, service.tenancy, house.bridge)
        grace = config.server.shutdown_grace_s
        give_up = service.grammars.give_up
        server = DrainingServer(uvicorn, listener, house.bridge, grace, reload, give_up)
        with leading(house.followers, server.end):
            server.serve_to_the_end()
