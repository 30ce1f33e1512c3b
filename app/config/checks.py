"""What must hold beyond known keys: types, ranges, and knobs that fit together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any, Protocol

from pydantic import ValidationError

from app.config.experiment_schema import ExperimentConfig
from app.config.keys import Path, is_secret
from app.config.schema import DEFAULT, Config
from app.config.shadow_schema import IN_CHARGE
from app.explain import HIDDEN, explain
from app.problems import Problem, refuse, suggest


class Origin(Protocol):
    """Tells where a value at one of `paths` was said last."""

    def __call__(self, *paths: Path) -> str: ...


def type_problems(tree: Mapping[str, Any], origin: Origin) -> Iterator[Problem]:
    """Wrong types and values out of range."""
    try:
        Config.model_validate(tree)
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            path = tuple(str(part) for part in detail["loc"] if part != "[key]")
            if is_secret(path):
                detail["input"] = HIDDEN
            yield Problem(".".join(path), explain(detail), origin(path))


def impossible(config: Config, origin: Origin) -> Iterator[Problem]:
    """Combinations of knobs that cannot work."""
    if message := _no_relief(config):
        where = origin(("engine", "relief"), ("engine", "prefix_cache"), ("engine", "allocation"))
        yield Problem("engine.relief", message, where)
    rows, budget = config.engine.max_rows, config.engine.step_tokens
    window = config.guard.window
    # Within the window each decode gets a token, and prompts get as many together as it has steps.
    if config.guard.enabled and rows + window > window * budget:
        yield Problem(
            "engine.max_rows",
            f"{rows} + {window} is more than the {window * budget} tokens that guard.window ="
            f" {window} steps of engine.max_step_tokens = {budget} compute, so some request would"
            " starve",
            origin(("engine", "max_rows"), ("engine", "max_step_tokens"), ("guard", "window")),
        )
    if config.engine.allocation == "reserve" and config.engine.prefix_cache is True:
        yield Problem(
            "engine.prefix_cache",
            "true cannot be had with engine.allocation = reserve, where no block is shared; write"
            " auto or false",
            origin(("engine", "prefix_cache"), ("engine", "allocation")),
        )
    if config.engine.speculation.method == "draft":
        yield from _no_draft(config, origin)
    if config.engine.tensor_parallel > 1:
        yield from _no_shards(config, origin)

    yield from _bad_experiment(config.experiment, origin)
    yield from _bad_shadow(config, origin)
    if config.tracing.enabled and not has_opentelemetry():
        message = "needs OpenTelemetry, which is not installed; pip install 'octavo[otel]'"
        yield Problem("tracing.enabled", message, origin(("tracing", "enabled")))


def _bad_experiment(experiment: ExperimentConfig, origin: Origin) -> Iterator[Problem]:
    """What makes an experiment compare nothing."""
    arms = experiment.arms
    if len(arms) == 1:
        where = origin(("experiment", "arms"))
        yield Problem("experiment.arms", f"{next(iter(arms))} has nothing to compare with", where)
    alike: dict[str, str] = {}
    for name, arm in arms.items():
        other = alike.setdefault(repr((arm.policy, sorted(arm.params.items()))), name)
        if other != name:
            key = f"experiment.arms.{name}"
            yield Problem(key, f"the same as {other}", origin(("experiment", "arms", name)))
    if experiment.washout_s >= experiment.period_s:
        yield Problem(
            "experiment.washout_s",
            f"{experiment.washout_s:g} leaves nothing of experiment.period_s ="
            f" {experiment.period_s:g} to measure",
            origin(("experiment", "washout_s"), ("experiment", "period_s")),
        )


def _bad_shadow(config: Config, origin: Origin) -> Iterator[Problem]:
    """What makes shadows compare nothing, or be told apart by nobody."""
    policies = config.shadow.policies
    if policies and config.experiment.arms:
        yield Problem(
            "shadow.policies",
            "cannot be had with experiment.arms: who is in charge has to stay for two windows",
            origin(("shadow", "policies"), ("experiment", "arms")),
        )
    if IN_CHARGE in policies:
        where = origin(("shadow", "policies", IN_CHARGE))
        yield Problem(
            f"shadow.policies.{IN_CHARGE}", "is what the policy in charge is called", where
        )
    least, most = config.shadow.least_requests, config.shadow.most_requests
    if least > most:
        where = origin(("shadow", "least_requests"), ("shadow", "most_requests"))
        message = f"{least} are more than shadow.most_requests = {most}, so nothing would be scored"
        yield Problem("shadow.least_requests", message, where)


def has_opentelemetry() -> bool:
    """Whether what the extra `otel` installs is there."""
    try:
        return find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    except ModuleNotFoundError:
        return False


def strangers(config: Config, origin: Origin) -> Iterator[Problem]:
    """Classes that nobody defined, and keys that tell nobody apart."""
    classes = [*config.classes, DEFAULT]
    owners: dict[str, str] = {}
    if config.server.admin_key is not None:
        owners[config.server.admin_key.get_secret_value()] = "server.admin_key"
    for name, tenant in config.tenants.items():
        key, where = f"tenants.{name}.classes", origin(("tenants", name, "classes"))
        for slo_class in tenant.classes:
            if slo_class not in classes:
                hint = suggest(slo_class, classes, "classes")
                yield Problem(key, f"unknown class {slo_class}; {hint}", where)
        key, where = f"tenants.{name}.keys", origin(("tenants", name, "keys"))
        for secret in tenant.keys:
            owner = owners.setdefault(secret.get_secret_value(), key)
            if owner != key:
                yield Problem(key, f"a key that {owner} is or has, too", where)
    if config.identity.require_key and not any(t.keys for t in config.tenants.values()):
        where = origin(("identity", "require_key"))
        yield Problem("identity.require_key", "no tenant has a key, so nobody could enter", where)


def _no_relief(config: Config) -> str | None:
    """What is wrong with the ways of finding blocks, in the order in which they are written."""
    relief, order = config.engine.relief, ("evict", "offload", "recompute")
    needed = set(relief)
    if config.engine.allocation != "reserve":
        needed.add("recompute")
    if config.engine.caches_prefixes:
        needed.add("evict")
    if len(set(relief)) < len(relief):
        fault = "each step is written once"
    elif "recompute" in needed - set(relief):
        fault = "recompute cannot be left out unless engine.allocation is reserve"
    elif "evict" in needed - set(relief):
        fault = "evict cannot be left out while there is a prefix cache (engine.prefix_cache)"
    elif "evict" in relief[1:]:
        fault = "evict comes first: it costs nobody who runs anything"
    elif "recompute" in relief[:-1]:
        fault = "offload after recompute would never be reached"
    else:
        return None
    return f"{fault}; write [{', '.join(step for step in order if step in needed)}]"


def _no_draft(config: Config, origin: Origin) -> Iterator[Problem]:
    """Why there can be no draft model."""
    section = ("engine", "speculation")
    if config.engine.backend == "simulated":
        where = origin((*section, "method"), ("engine", "backend"))
        message = "draft needs a model that is computed, and engine.backend is simulated"
        yield Problem("engine.speculation.method", message, where)
    elif config.engine.speculation.model is None:
        where = origin((*section, "model"), (*section, "method"))
        message = "engine.speculation.method = draft needs a model, a .gguf file or a folder"
        yield Problem("engine.speculation.model", message, where)


def _no_shards(config: Config, origin: Origin) -> Iterator[Problem]:
    """Why the model cannot be shared by several processes."""
    key, ranks = ("engine", "tensor_parallel"), config.engine.tensor_parallel
    if config.engine.backend == "simulated":
        message = (
            f"{ranks} processes need a model that is computed, and engine.backend is simulated"
        )
        yield Problem(".".join(key), message, origin(key, ("engine", "backend")))
    elif config.model.dtype == "int8":
        message = f"{ranks} processes cannot share int8 weights; write model.dtype = float32"
        yield Problem(".".join(key), message, origin(key, ("model", "dtype")))


def check_pool(config: Config, *, total_blocks: int, block_size: int, max_model_len: int) -> None:
    """Refuse a KV pool that one full request does not fit in.

    `total_blocks` blocks of `block_size` tokens are there; a request may be `max_model_len` tokens
    long (prompt and answer). Raises ConfigurationError.
    """
    needed = -(-max_model_len // block_size)
    if total_blocks >= needed:
        return
    simulated = config.engine.backend == "simulated"
    knob = "engine.simulated.total_blocks" if simulated else "engine.kv_memory"
    message = (
        f"{total_blocks} blocks of {block_size} tokens are fewer than the {needed} that one request"
        f" of model.max_model_len = {max_model_len} tokens needs; raise {knob} or lower"
        " model.max_model_len"
    )
    refuse([Problem(knob, message)])
