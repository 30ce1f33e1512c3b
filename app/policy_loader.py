"""From the name of a scheduling policy and its parameters to the policy."""

from __future__ import annotations

import importlib
import inspect
import random
import typing
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import entry_points
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from pydantic import PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_json

from app.explain import explain
from app.problems import BadConfiguration, Problem, refuse, suggest
from policies.base import Policy, Services

if TYPE_CHECKING:
    from app.config.schema import SchedulerConfig

ENTRY_POINTS: Final = "octavo.policies"
_BUILT_IN: Final = "policies."
_POLICY: Final = "scheduler.policy"
_PARAMS: Final = "scheduler.params"
_FAILURES: Final = (Exception, SystemExit)
"""What somebody's code may raise when it is imported, looked at or called: no reason to end."""


def load_policy(scheduler: SchedulerConfig, services: Services) -> Policy:
    """Make the policy that the configuration names.

    Raises ConfigurationError for an unknown policy, for parameters that its constructor does not
    take, for values that the constructor refuses (with ValueError), and where it fails otherwise.
    """
    policy, params = check_policy(scheduler)
    try:
        made: object = policy(services=services, **params)
    except ValueError as error:
        message = f"policy {scheduler.policy} refuses them: {_words(error) or type(error).__name__}"
        raise BadConfiguration(Problem(_PARAMS, message)) from error
    except _FAILURES as error:
        message = f"{scheduler.policy} cannot be made: {_told(error)}"
        raise BadConfiguration(Problem(_POLICY, message)) from error
    if not isinstance(made, Policy):
        message = f"{scheduler.policy} made something else than a policy: {type(made).__name__}"
        raise BadConfiguration(Problem(_POLICY, message))
    return made


class ConfiguredPolicy:
    """Makes the policy that a configuration names, a fresh one each time. Can be sent to other
    processes."""

    def __init__(self, scheduler: SchedulerConfig) -> None:
        self.scheduler = scheduler

    def __call__(self, *, services: Services) -> Policy:
        """Raises what `load_policy` raises."""
        return load_policy(self.scheduler, services)


def try_policy(scheduler: SchedulerConfig, section: str = "scheduler") -> None:
    """Make the policy that is named at `section` and drop it.

    Raises what `load_policy` raises, before anything is served.
    """
    from engine.cost import LinearCost

    try:
        load_policy(scheduler, Services(cost=LinearCost(), rng=random.Random(0)))
    except BadConfiguration as error:
        raise under(section, error) from error


def under(section: str, error: BadConfiguration) -> BadConfiguration:
    """What is wrong with a policy that is named elsewhere than at `scheduler`, or nowhere ("")."""

    def there(problem: Problem) -> Problem:
        key = problem.key.replace("scheduler", section, 1).removeprefix(".")
        return replace(problem, key=key)

    return BadConfiguration(*map(there, error.problems))


def check_policy(scheduler: SchedulerConfig) -> tuple[type[Policy], dict[str, Any]]:
    """Find the policy's class and check its parameters, without making one.

    Returns the class, and the parameters as its annotations want them: a YAML list where a tuple is
    annotated becomes a tuple. Raises ConfigurationError.
    """
    policy = find_policy(scheduler.policy)
    annotations, required = _parameters(policy)
    problems: list[Problem] = []
    params: dict[str, Any] = {}
    for name, value in scheduler.params.items():
        key = f"{_PARAMS}.{name}"
        if name not in annotations:
            hint = suggest(name, annotations, f"parameters of {scheduler.policy}")
            problems.append(Problem(key, f"unknown parameter; {hint}"))
            continue
        try:
            params[name] = _typed(value, annotations[name])
        except ValidationError as error:
            problems += [Problem(key, explain(detail)) for detail in error.errors()]
        except PydanticSerializationError:
            problems.append(Problem(key, "nested too deeply"))
        except PydanticUserError:
            problems.append(Problem(key, f"YAML has no values of type {annotations[name]}"))
    problems += [
        Problem(f"{_PARAMS}.{name}", f"policy {scheduler.policy} needs a value here")
        for name in sorted(required - scheduler.params.keys())
    ]
    refuse(problems)
    return policy, params


def allowed_policies(scheduler: SchedulerConfig) -> list[str]:
    """The names that may be asked for over HTTP: those the configuration lists, or our own."""
    if scheduler.allowed is not None:
        return scheduler.allowed
    entries = entry_points(group=ENTRY_POINTS)
    return sorted(entry.name for entry in entries if entry.module.startswith(_BUILT_IN))


def default_params(policy: type[Policy]) -> dict[str, Any]:
    """The parameters that a policy takes, with their defaults; None also where there is none."""
    annotations, _ = _parameters(policy)
    defaults: dict[str, Any] = dict.fromkeys(annotations)
    for owner in reversed(policy.__mro__):
        if "__init__" in vars(owner):
            for name, parameter in inspect.signature(vars(owner)["__init__"]).parameters.items():
                if name in defaults and parameter.default is not parameter.empty:
                    defaults[name] = parameter.default
    return defaults


def find_policy(name: str) -> type[Policy]:
    """The class behind a short name (an `octavo.policies` entry point) or `package.module:Class`.

    Raises ConfigurationError.
    """
    installed = {entry.name: entry.value for entry in entry_points(group=ENTRY_POINTS)}
    target = name if ":" in name else installed.get(name)
    if target is None:
        hint = suggest(name, installed, "policies")
        raise BadConfiguration(Problem(_POLICY, f"unknown policy {name}; {hint}"))
    found = _import(target)
    if isinstance(found, type) and issubclass(found, Policy):
        return found
    raise BadConfiguration(Problem(_POLICY, f"{target} is not a subclass of policies.base.Policy"))


def _import(target: str) -> object:
    """The object that `package.module:Class` names; whatever goes wrong is a BadConfiguration."""
    module_name, _, attribute = target.partition(":")
    try:
        module = importlib.import_module(module_name)
    except _FAILURES as error:
        message = f"cannot import {module_name} ({_told(error)}); is its folder on PYTHONPATH?"
        raise BadConfiguration(Problem(_POLICY, message)) from error
    try:
        return getattr(module, attribute)
    except AttributeError:
        hint = suggest(attribute, _policies_in(module), f"policies in {module_name}")
        message = f"{module_name} has no {attribute}; {hint}"
        raise BadConfiguration(Problem(_POLICY, message)) from None
    except _FAILURES as error:  # a module may have a __getattr__ of its own
        message = f"cannot find {target} ({_told(error)})"
        raise BadConfiguration(Problem(_POLICY, message)) from error


def _policies_in(module: ModuleType) -> list[str]:
    members = inspect.getmembers(module, inspect.isclass)
    return [name for name, kind in members if issubclass(kind, Policy) and kind is not Policy]


def _parameters(policy: type[Policy]) -> tuple[dict[str, Any], set[str]]:
    """The annotated parameters of a policy's constructor, and the names without a default.

    A constructor that takes `**params` hands them on, so its parents' parameters count too.
    """
    annotations: dict[str, Any] = {}
    required: set[str] = set()
    for owner in policy.__mro__:
        init = vars(owner).get("__init__")
        if init is None:
            continue
        parameters = list(inspect.signature(init).parameters.values())[1:]
        hints = _hints(init)
        for parameter in parameters:
            various = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
            if various or parameter.name in annotations:
                continue
            annotations[parameter.name] = hints.get(parameter.name, Any)
            if parameter.default is parameter.empty:
                required.add(parameter.name)
        if all(parameter.kind is not parameter.VAR_KEYWORD for parameter in parameters):
            break
    annotations.pop("services", None)
    return annotations, required - {"services"}


def _hints(init: Callable[..., object]) -> dict[str, Any]:
    """Resolved annotations; Services is known even where it was imported for checking only."""
    try:
        return typing.get_type_hints(init, localns={"Services": Services}, include_extras=True)
    except _FAILURES as error:
        message = f"cannot resolve the annotations of {init.__qualname__}: {_words(error)}"
        raise BadConfiguration(Problem(_POLICY, message)) from error


def _typed(value: object, annotation: Any) -> Any:
    """`value` as `annotation` wants it. Strict, except that YAML has only lists and mappings.

    That is what JSON's rules say too, so the value takes the way through JSON.
    """
    text = to_json(value, inf_nan_mode="constants")
    return TypeAdapter(annotation).validate_json(text, strict=True)


def _told(error: BaseException) -> str:
    """What kind of exception it is, and what it says."""
    name, words = type(error).__name__, _words(error)
    return f"{name}: {words}" if words else name


def _words(error: BaseException) -> str:
    """What somebody's exception says; nothing if it cannot even be asked."""
    try:
        return str(error)
    except _FAILURES:
        return ""
