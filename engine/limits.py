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
    """Tokens and rows of a step, tokens of a request (prompt and output), and classes by name.

    prompt_step_tokens: tokens of a step in which nobody decodes; None: no more than of others.
    """

    step_tokens: int
    rows: int
    model_len: int
    classes: Mapping[str, ClassLimits] = field(default_factory=dict)
    prompt_step_tokens: int | None = None

    def budget(self, decodes: int) -> int:
        """Tokens of a step beside so many running decodes: more where none would be held up."""
        if decodes or self.prompt_step_tokens is None:
            return self.step_tokens
        return max(self.step_tokens, self.prompt_step_tokens)

    def of(self, slo_class: str) -> ClassLimits:
        """The limits of a class; a class nobody named has none."""
        return self.classes.get(slo_class, NO_LIMITS)
