"""What simulated requests run on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.allocation import PAGED, Allocation
from engine.backends.simulated import Noise
from engine.batch import BLOCK
from engine.cost import LinearCost
from engine.guard import GuardSettings
from engine.limits import ClassLimits, Limits
from engine.relief import Offload, ReliefSettings
from engine.simulation.residuals import Residuals, lognormal

DEFAULT_GUARD = GuardSettings()


@dataclass(frozen=True, slots=True)
class Machine:
    """What requests run on.

    cost: seconds of a step; the policy predicts with the same coefficients. pool_tokens: what the
    KV cache holds; step_tokens, rows: what a step may compute; prompt_step_tokens: the same where
    nobody decodes. model_len: tokens of a request; None: as many as the pool holds. noise: how
    steps scatter: as was measured, or the standard deviation of the logarithm of a factor whose
    mean is one.
    host_blocks: blocks that can be offloaded, each in move_seconds; recompute: whether what is lost
    may be computed again.
    """

    cost: LinearCost
    pool_tokens: int = 10_000
    step_tokens: int = 2048
    rows: int = 256
    classes: Mapping[str, ClassLimits] = field(default_factory=dict)
    guard: GuardSettings = DEFAULT_GUARD
    prefix_cache: bool = True
    depth: int = 0
    noise: float | Residuals = 0.0
    prompt_step_tokens: int | None = None
    model_len: int | None = None
    allocation: Allocation = PAGED
    host_blocks: int = 0
    move_seconds: float = 0.0
    recompute: bool = True

    @property
    def blocks(self) -> int:
        """Blocks of the KV cache."""
        return self.pool_tokens // BLOCK

    @property
    def limits(self) -> Limits:
        """The last token generated needs no KV."""
        most = self.blocks * BLOCK + 1
        length = most if self.model_len is None else min(most, self.model_len)
        return Limits(self.step_tokens, self.rows, length, self.classes, self.prompt_step_tokens)

    def noise_of(self, seed: int) -> Noise | None:
        """By what factor steps take longer; the same seed gives the same factors."""
        if isinstance(self.noise, Residuals):
            return self.noise.noise(seed) if self.noise else None
        return lognormal(self.noise, seed) if self.noise else None

    @property
    def relief(self) -> ReliefSettings:
        """How requests give way."""
        offload = None
        if self.host_blocks:
            offload = Offload(self.host_blocks, self.move_seconds, self.cost)
        return ReliefSettings(offload, self.recompute)
