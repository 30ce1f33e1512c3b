"""The seam behind which tokens are computed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from engine.batch import Batch
from engine.controls import Sampled, SampleRow


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Where the computing of a step went, in seconds on its first thread, waiting included.

    glue: everything between products and attention.
    """

    products: float
    attention: float
    glue: float


class Backend(Protocol):
    """Computes batches. Called from the engine thread only.

    A step is `submit`, `sample`, `collect`, with the ticket tying them together; at depth 1 the
    next `submit` may come before the last `collect`. A `RowFault` from any of the three fails the
    rows it names, BackendLost ends the engine, and any other exception fails the requests of the
    batch.
    """

    @property
    def reads_arrays(self) -> bool:
        """Whether it needs the arrays of a batch; if not, they are not made."""
        ...

    @property
    def total_blocks(self) -> int:
        """KV blocks the backend holds."""
        ...

    @property
    def host_blocks(self) -> int:
        """Blocks of host memory that KV blocks can be offloaded to; 0 if there are none."""
        ...

    @property
    def move_seconds(self) -> float:
        """An estimate of the seconds that one block takes to host memory, or back."""
        ...

    def submit(self, batch: Batch) -> int:
        """Start computing; returns the ticket. Block moves come first (see `Batch`)."""
        ...

    def sample(self, ticket: int, rows: Collection[SampleRow]) -> None:
        """Choose one token for each of the batch's `sample_rows`."""
        ...

    def collect(self, ticket: int) -> Sampled:
        """Wait for the result of `ticket`. Each ticket is collected once."""
        ...

    def close(self) -> None:
        """Give back what the backend holds."""
        ...
