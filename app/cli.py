"""`octavo`: a group of commands, each loaded only when it is asked for.

Packages register commands as entry points of the group `octavo.commands`. `octavo --help` reads the
first line of each command's module without importing it, so that it never waits for a heavy import.
"""

from __future__ import annotations

import ast
import importlib.util
from importlib.abc import InspectLoader
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

import click
from click.exceptions import NoSuchCommand, NoSuchOption

from engine.errors import ConfigurationError

ENTRY_POINTS: Final = "octavo.commands"
CONFIGURATION_EXIT_CODE: Final = 2
"""Exit code when the configuration, the command line or the model cannot be used."""


class LazyGroup(click.Group):
    """A click group whose commands are entry points, imported one at a time."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_commands())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = _commands().get(cmd_name)
        return None if entry is None else _load(entry)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not name.startswith("-") and name not in _commands():
            raise NoSuchCommand(name, possibilities=_commands(), ctx=ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, short_help(entry.module)) for name, entry in sorted(_commands().items())]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except NoSuchOption as error:
            raise _with_key(error) from None
        except ConfigurationError as error:
            raise _Refusal(error) from error


class _Refusal(click.ClickException):
    """A ConfigurationError on its way to stderr: `Error: ...`, one problem a line."""

    exit_code = CONFIGURATION_EXIT_CODE

    def __init__(self, error: ConfigurationError) -> None:
        lines = str(error).splitlines()
        several = [f"{len(lines)} problems in the configuration", *lines]
        super().__init__("\n  ".join(several) if len(lines) > 1 else str(error))


def _with_key(error: NoSuchOption) -> NoSuchOption:
    """The error, with the key to set where the command takes a configuration: `--port` is none."""
    parameters = error.ctx.command.params if error.ctx else []
    if not any(parameter.name == "overrides" for parameter in parameters):
        return error
    from app.config.keys import meant_by_option

    hints = " or ".join(f"--set {key}=..." for key in meant_by_option(error.option_name))
    if not hints:
        return error
    return NoSuchOption(error.option_name, f"{error.message} Did you mean {hints}?", ctx=error.ctx)


def _commands() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=ENTRY_POINTS)}


def _load(entry: EntryPoint) -> click.Command:
    """Import a command. Raises ClickException if it needs a package that is not installed."""
    try:
        command = entry.load()
    except ModuleNotFoundError as error:
        raise click.ClickException(f"{entry.name} needs {error.name}, not installed") from error
    if not isinstance(command, click.Command):
        raise click.ClickException(f"{entry.name} ({entry.value}) is not a click command")
    return command


def short_help(module: str) -> str:
    """The first docstring line of a module, read from its source; empty if there is none.

    Only the packages above the module are imported.
    """
    try:
        spec = importlib.util.find_spec(module)
    except ImportError:
        return ""
    loader = spec.loader if spec else None
    source = loader.get_source(module) if isinstance(loader, InspectLoader) else None
    docstring = ast.get_docstring(ast.parse(source)) if source else None
    return docstring.splitlines()[0] if docstring else ""


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="octavo", prog_name="octavo", message="%(prog)s %(version)s")
def main() -> None:
    """Serve a language model with the scheduling policy of your choice.

    \b
    Examples:
      octavo serve --set scheduler.policy=fair-share
      octavo capacity --preset llama-3.1-8b --gpu h200
      octavo sim --policy fair-share --trace arrivals.csv
    """
