"""Commands that are no subcommands of `octavo`: `python -m loadtest.live` and the like."""

from __future__ import annotations

import shlex
import sys
from datetime import UTC, datetime
from typing import NoReturn

import click

from app.cli import CONFIGURATION_EXIT_CODE
from engine.errors import ConfigurationError
from loadtest.machine import Unmeasured
from loadtest.reports import Origin, here


def run(command: click.Command, module: str) -> NoReturn:
    """Run a module's command; what cannot be is said in a line, without a traceback."""
    try:
        command(prog_name=f"python -m {module}")
    except (ConfigurationError, Unmeasured) as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(CONFIGURATION_EXIT_CODE if isinstance(error, ConfigurationError) else 1)
    sys.exit(0)


def origin(module: str, server: str) -> Origin:
    """Where a report of a module's command comes from: how it was called, when, of which server."""
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return here(shlex.join(["python", "-m", module, *sys.argv[1:]]), made, server=server)
