"""What becomes of the KV of a request that gives way: moved to host memory, or computed again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from engine.blocks import BlockPool
from engine.host import HostMemory
from engine.memory import KVMemory
from engine.request import Request
from policies.base import StepCost


@dataclass(frozen=True, slots=True)
class Offload:
    """Host memory that preempted requests may move to.

    blocks, move_seconds: as the backend says. cost: predicts what computing again would take.
    """

    blocks: int
    move_seconds: float
    cost: StepCost


@dataclass(frozen=True, slots=True)
class ReliefSettings:
    """How requests may give way.

    offload: None for no host memory. recompute: whether what is lost may be computed again. Without
    that nobody gives way whose KV does not fit into host memory, however long moving it takes;
    only with reserved blocks is that enough for everybody to reach an end.
    """

    offload: Offload | None = None
    recompute: bool = True

    def make_host_pool(self) -> BlockPool | None:
        """The host blocks to offload to, all free; None if there are none."""
        return BlockPool(self.offload.blocks) if self.offload else None


OFFLOAD_NOTHING: Final = ReliefSettings()


class Relief:
    """Chooses how running requests give way. chunk: tokens of a prompt computed in one step."""

    def __init__(
        self, memory: KVMemory, host: HostMemory, settings: ReliefSettings, chunk: int
    ) -> None:
        self._memory = memory
        self._host = host
        self._settings = settings
        self._chunk = chunk

    def possible(self, requests: Iterable[Request]) -> bool:
        """Whether all of them may give way in one step."""
        if self._settings.recompute:
            return True
        blocks = 0
        for request in requests:
            contents = self._host.contents(request)
            if contents is None:
                return False
            blocks += self._host.needed(contents)
        return blocks <= self._host.free

    def keep(self, request: Request) -> int:
        """Offload what a request has computed, if there is room and it is worth the time.

        Returns how many blocks go to host memory; 0: what was computed is lost.
        """
        offload = self._settings.offload
        if offload is None:
            return 0
        contents = self._host.contents(request) or {}
        blocks = self._host.needed(contents)
        if not 0 < blocks <= self._host.free:
            return 0
        moving = 2 * blocks * offload.move_seconds
        if self._settings.recompute and self._recomputing(request, offload.cost) < moving:
            return 0
        self._host.offload(contents)
        return blocks

    def lost(self, request: Request) -> int:
        """Tokens to compute again when a request gives way now, with what is stored of it."""
        return sum(
            max(0, sequence.computed - max(begin, sequence.stored))
            for sequence, begin in zip(request.open_sequences, self._begins(request), strict=True)
        )

    def _recomputing(self, request: Request, cost: StepCost) -> float:
        """Seconds to compute again what a request has computed, beside whatever else runs."""
        tokens = read = context = 0
        for sequence, begin in zip(request.open_sequences, self._begins(request), strict=True):
            for start in range(begin, sequence.computed, self._chunk):
                end = min(start + self._chunk, sequence.computed)
                tokens += end - start
                read += end
                context += (end - start) * end
        return cost.seconds(tokens, 0, read, context) - cost.seconds(0, 0, 0, 0)

    def _begins(self, request: Request) -> Iterator[int]:
        """Where each sequence would begin to compute again: siblings share the first one's
        prompt."""
        for number, sequence in enumerate(request.open_sequences):
            yield self._memory.fork_tokens(sequence) if number else 0
