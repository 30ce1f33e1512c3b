"""File < environment < `--set`: one configuration from three sources, checked alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from app.config.checks import impossible, strangers, type_problems
from app.config.keys import fields, subsection
from app.config.layers import Layer
from app.config.policies import named_policies
from app.config.schema import Config, SchedulerConfig
from app.policy_loader import check_policy, default_params, find_policy, under
from app.problems import BadConfiguration, Problem, nearest, refuse

FILE_VARIABLE: Final = "OCTAVO_CONFIG"
DEFAULT_FILE: Final = Path("config.yaml")
_PREFIX: Final = "OCTAVO_"

SIMILAR_KNOB: Final = 0.85
"""How much of a variable's name must agree with a knob's for that to be what was meant."""


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A configuration and where its values came from."""

    config: Config
    file: Path | None
    """The file that was read; None if there was none."""
    sources: Mapping[str, str]
    """Where each key that was given got its value: `config.yaml:12`, a variable, `--set`."""
    read_again: Callable[[], LoadedConfig]
    """Reads the same sources anew; the environment and `--set` are as they were."""


def load_config(
    path: Path | None = None,
    environ: Mapping[str, str] | None = None,
    overrides: Sequence[str] = (),
) -> Config:
    """Read and check the configuration; see `load_with_sources`."""
    return load_with_sources(path, environ, overrides).config


def load_with_sources(
    path: Path | None = None,
    environ: Mapping[str, str] | None = None,
    overrides: Sequence[str] = (),
) -> LoadedConfig:
    """Read and check the configuration.

    `path` is the YAML file; without it the file that OCTAVO_CONFIG names, else `config.yaml` in the
    working directory if there is one, else none. Over it go variables OCTAVO_SECTION__KEY of
    `environ` (e.g. OCTAVO_ENGINE__MAX_ROWS=32), and over these `overrides`, each
    `section.key=value`. Values are YAML.

    Raises ConfigurationError with one line for each problem found, in whichever source.
    """
    environ = environ or {}
    file = _file_to_read(path, environ)
    layers = [_file_layer(file)] if file else []
    layers += [_environment_layer(environ), _override_layer(overrides)]

    refuse([problem for layer in layers for problem in _layer_problems(layer)])
    merged = Layer.merge(layers)
    config = Config.model_validate(merged.tree())
    refuse(
        [
            *impossible(config, merged.origin),
            *strangers(config, merged.origin),
            *_policy_problems(config, merged),
        ]
    )
    again = partial(load_with_sources, path, dict(environ), overrides)
    return LoadedConfig(config, file, merged.sources(), again)


def _file_to_read(path: Path | None, environ: Mapping[str, str]) -> Path | None:
    if path is not None:
        return path
    if named := environ.get(FILE_VARIABLE):
        return Path(named)
    return DEFAULT_FILE if DEFAULT_FILE.exists() else None


def _file_layer(path: Path) -> Layer:
    layer = Layer()
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        layer.problems.append(Problem("", f"cannot be read: {error.strerror}", str(path)))
    except UnicodeDecodeError:
        layer.problems.append(Problem("", "is not UTF-8 text", str(path)))
    else:
        layer.read(text, str(path), lines=True)
    return layer


def _environment_layer(environ: Mapping[str, str]) -> Layer:
    layer = Layer()
    for name, value in environ.items():
        if name.startswith(_PREFIX) and "__" in name:
            key = name.removeprefix(_PREFIX).lower().split("__")
            layer.read(value, name, under=key)
        elif meant := _knob_meant_by(name, value):
            message = f"two underscores stand between section and key; did you mean {meant}?"
            layer.problems.append(Problem("", message, name))
    return layer


def _knob_meant_by(name: str, value: str) -> str | None:
    """The variable of a knob that `name` spells with single underscores, or nearly so.

    Others are none of ours: Kubernetes sets OCTAVO_PORT, OCTAVO_SERVICE_HOST and the like for a
    service that is called octavo, and OCTAVO_SERVER_PORT=tcp://… for one called octavo-server.
    """
    if not name.startswith(_PREFIX) or "://" in value:
        return None
    knobs = {"_".join(path): path for path, field in fields() if not subsection(field)}
    sections = tuple(f"{path[0]}_" for path in knobs.values())
    word = name.removeprefix(_PREFIX).lower()
    match = nearest(word, knobs, SIMILAR_KNOB) if word.startswith(sections) else None
    return _PREFIX + "__".join(knobs[match]).upper() if match else None


def _override_layer(overrides: Sequence[str]) -> Layer:
    layer = Layer()
    for override in overrides:
        key, equals, value = override.partition("=")
        if equals:
            layer.read(value, "--set", under=key.strip().split("."))
        else:
            layer.problems.append(Problem("", "expected section.key=value", f"--set {override}"))
    return layer


def _layer_problems(layer: Layer) -> Iterator[Problem]:
    yield from layer.problems
    yield from type_problems(layer.tree(), layer.origin)


def _policy_problems(config: Config, layer: Layer) -> Iterator[Problem]:
    """What is wrong with the policy in charge, an experiment's arms, and shadows."""
    for section, wanted in named_policies(config).items():
        yield from _problems_of(wanted, section, layer)
    for name in config.scheduler.allowed or ():
        try:
            default_params(find_policy(name))
        except BadConfiguration as error:
            where = layer.origin(("scheduler", "allowed"))
            for problem in error.problems:
                yield replace(problem, key="scheduler.allowed", where=where)


def _problems_of(scheduler: SchedulerConfig, section: str, layer: Layer) -> Iterator[Problem]:
    """What is wrong with a policy that `section` names, in the words of its keys."""
    try:
        check_policy(scheduler)
    except BadConfiguration as error:
        for problem in under(section, error).problems:
            yield replace(problem, where=layer.origin(tuple(problem.key.split("."))))
