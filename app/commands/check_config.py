"""Print the configuration that is in effect."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

import click
from pydantic import BaseModel, SecretStr

from app.commands.options import config_options
from app.computing import settle
from app.config import Config, LoadedConfig
from app.config.document import reads_as_itself
from app.config.policies import named_policies
from app.policy_loader import try_policy


@click.command()
@config_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of YAML.")
def check_config(loaded: LoadedConfig, as_json: bool) -> None:
    """Print the configuration that is in effect, or say what is wrong with it.

    Later sources outdo earlier ones: defaults, file, OCTAVO_SECTION__KEY variables, --set.
    The YAML names the source of every value that is not the default. Secrets are not shown. All
    policies are made with their parameters, an experiment's and shadows, too; the model's files
    are not looked at. What engine.backend comes to on this machine goes to stderr.
    Exit code 0 if the configuration can be used, 2 if not.

    \b
    Example:
      octavo check-config --config config.yaml --set engine.max_rows=32
    """
    for section, scheduler in named_policies(loaded.config).items():
        try_policy(scheduler, section)
    _, choice = settle(loaded.config)
    click.echo(f"engine.backend is {choice.backend}: {choice.reason}", err=True)
    if as_json:
        click.echo(loaded.config.model_dump_json(indent=2))
        return
    click.echo(f"# {loaded.file or 'no file'}")
    for line in _yaml(loaded):
        click.echo(line)


def _yaml(loaded: LoadedConfig) -> Iterator[str]:
    yield from _section(loaded.config, Config(), (), loaded)


def _section(
    values: BaseModel, defaults: BaseModel, path: tuple[str, ...], loaded: LoadedConfig
) -> Iterator[str]:
    """The lines of a section, each value that is not the default with its source."""
    indent = "  " * len(path)
    for name in type(values).model_fields:
        value, default = getattr(values, name), getattr(defaults, name)
        if isinstance(value, BaseModel):
            yield f"{indent}{name}:"
            yield from _section(value, default, (*path, name), loaded)
        elif value and isinstance(value, dict) and _are(BaseModel, value.values()):
            yield f"{indent}{name}:"
            for entry, row in value.items():
                yield f"{indent}  {entry}:"
                yield from _section(row, type(row)(), (*path, name, entry), loaded)
        elif _secret(value):
            yield f"{indent}# {name}: set, and not shown{_source((*path, name), loaded)}"
        else:
            source = _source((*path, name), loaded) if value != default else ""
            yield f"{indent}{name}: {_scalar(value)}{source}"


def _secret(value: object) -> bool:
    """Whether it is a secret, or some of them."""
    if isinstance(value, dict):
        value = list(value.values())
    return isinstance(value, SecretStr) or (
        isinstance(value, list) and bool(value) and _are(SecretStr, value)
    )


def _are(kind: type, values: Iterable[object]) -> bool:
    return all(isinstance(value, kind) for value in values)


def _source(path: tuple[str, ...], loaded: LoadedConfig) -> str:
    """The sources of a knob as a comment; policy parameters may come from several."""
    key = ".".join(path)
    sources = {
        where: None for name, where in loaded.sources.items() if f"{name}.".startswith(f"{key}.")
    }
    return f"  # {', '.join(sources)}"


def _scalar(value: object) -> str:
    """A value in YAML: strings plain where that reads back as the same string, the rest as JSON."""
    if isinstance(value, str) and reads_as_itself(value):
        return value
    return json.dumps(value, ensure_ascii=False)
