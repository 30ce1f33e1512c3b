"""Options that several commands share."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from app.config import load_with_sources

R = TypeVar("R")


def config_options(command: Callable[..., R]) -> Callable[..., R]:
    """Give a click command the options --config FILE and --set SECTION.KEY=VALUE.

    In their place `command` gets, as first argument, the configuration that they, the environment
    and the file make; a ConfigurationError ends `octavo` with exit code 2. Below `click.command`:

        @click.command()
        @config_options
        @click.option("--verbose", is_flag=True)
        def serve(loaded: LoadedConfig, verbose: bool) -> None:
            run(loaded.config)
    """

    @click.option(
        "--config",
        "config_file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Configuration file.  [default: $OCTAVO_CONFIG, else ./config.yaml if there is one]",
    )
    @click.option(
        "--set",
        "overrides",
        multiple=True,
        metavar="SECTION.KEY=VALUE",
        help="Override one value; may be repeated. Goes over OCTAVO_SECTION__KEY and the file.",
    )
    @functools.wraps(command)
    def wrapped(config_file: Path | None, overrides: tuple[str, ...], **kwargs: Any) -> R:
        return command(load_with_sources(config_file, os.environ, overrides), **kwargs)

    return wrapped
