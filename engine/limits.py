"""What steps, requests and classes may be at most."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ClassLimits:
    """What one class may hold. None is no limit.

    max_running: requests that run at once; max_waiting: requests that wait; max_blocks_fraction:
    share of the KV pool (0 < f <= 1) beyond which none of its requests is admitted. A running
    request may grow beyond it.
    """

    max_running: int | None = None
    max_waiting: int | None = None
    max_blocks_fraction: float | None = None


NO_LIMITS = ClassLimits()


@dataclass(frozen=True, slots=True)
class Limits:
    """Tokens and rows of a step, tokens of a request (prompt and output), and classes by name."""

    step_tokens: int
    rows: int
    model_len: int
    classes: Mapping[str, ClassLimits] = field(default_factory=dict)

    def of(self, slo_class: str) -> ClassLimits:
        """The limits of a class; a class nobody named has none."""
        return self.classes.get(slo_class, NO_LIMITS)
