"""The built-in policies as tests serve with them: by entry point, parameters that matter set."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import entry_points
from typing import Any, Final

from policies.base import Policy

PARAMETERS: Final[Mapping[str, Mapping[str, Any]]] = {
    "fcfs": {"backfill": 2},
    "decode-priority": {"tbt_s": 0.02, "decode_slack": 1, "window": 4},
    "priority": {"ageing_s": 0.01},
    "shortest-first": {"tokens_per_s": 5_000.0},
    "prefix-first": {"quantum": 60.0, "ageing": 5_000.0},
    "slo": {"patience": 0.2},
    "static-batch": {"size": 3},
}
"""Parameters that let a policy do all it can within a short test; else its defaults."""

BUILT_IN: Final[Mapping[str, Callable[..., Policy]]] = {
    entry.name: partial(entry.load(), **PARAMETERS.get(entry.name, {}))
    for entry in sorted(entry_points(group="octavo.policies"), key=lambda entry: entry.name)
    if entry.value.startswith("policies.")
}
