"""What a rank computes with: the CPU, or a GPU of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias

import torch

from engine.backends.base import Backend
from engine.backends.parallel.followers import Followers
from engine.backends.parallel.group import Group
from engine.backends.parallel.part import Part
from engine.batch import Batch
from engine.models.weights import Cut, Weights

Agree: TypeAlias = Callable[[int, int], tuple[int, int]]
"""Makes of the blocks that a rank has room for, there and on the host, those that all have."""


class Steps(Protocol):
    """A follower's part of each step."""

    @property
    def blocks(self) -> int:
        """KV blocks of each rank."""
        ...

    def compute(self, batch: Batch) -> None:
        """Do the moves of a step, and compute it. What comes out is dropped."""
        ...

    def close(self) -> None:
        """Give the memory back."""
        ...


class Computer(Protocol):
    """Loads a rank's weights and makes of them what computes its part of each step.

    Raises what the backend of one process raises for a model or a memory that does not fit. Ranks
    do the same in the same order, for what they compute while they are made they compute together.
    """

    @property
    def torch_device(self) -> torch.device:
        """Where collectives find their tensors."""
        ...

    @property
    def agreement(self) -> Mapping[str, str]:
        """What has to be the same on all ranks beside the model, by what it is called."""
        ...

    @property
    def threads(self) -> int | None:
        """How many compute a rank's part of a step; None where that is a GPU's business."""
        ...

    def load(self, part: Part, cut: Cut) -> Weights:
        """The weights of a rank, of which `cut` says what it keeps."""
        ...

    def leader(
        self, part: Part, weights: Weights, followers: Followers, group: Group, agree: Agree
    ) -> Backend:
        """The backend of rank 0, whose every step the followers compute as well."""
        ...

    def follower(self, part: Part, weights: Weights, group: Group, agree: Agree) -> Steps:
        """What every other rank computes."""
        ...
