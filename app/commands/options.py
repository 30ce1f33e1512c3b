"""Options that several commands share."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click

from app.config import load_with_sources
from app.config.layers import Layer
from app.config.schema import SchedulerConfig
from app.policy_loader import try_policy
from app.problems import BadConfiguration, Problem, refuse

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


def policy_option(
    name: str, params: Sequence[str], option: str = "--params", named: str = "--policy"
) -> SchedulerConfig:
    """What the options `named` NAME and `option` KEY=VALUE (YAML, may be repeated) say.

    Raises ConfigurationError for an unknown policy and for parameters that it does not take, or
    refuses; the message names the option.
    """
    layer = Layer()
    for param in params:
        key, equals, value = param.partition("=")
        if equals:
            layer.read(value, option, under=("scheduler", "params", *key.strip().split(".")))
        else:
            layer.problems.append(Problem("", "expected key=value", f"{option} {param}"))
    refuse(layer.problems)
    scheduler = SchedulerConfig.model_validate(
        {"policy": name, **layer.tree().get("scheduler", {})}
    )
    try:
        try_policy(scheduler)
    except BadConfiguration as error:
        names = {"scheduler.policy": named, "scheduler.params": option}
        raise BadConfiguration(*(_renamed(problem, names) for problem in error.problems)) from None
    return scheduler


def _renamed(problem: Problem, names: Mapping[str, str]) -> Problem:
    """The problem with the option in place of the configuration's key."""
    for key, name in names.items():
        if problem.key.startswith(key):
            rest = problem.key.removeprefix(key).removeprefix(".")
            return replace(problem, key=f"{name} {rest}".strip())
    return problem
