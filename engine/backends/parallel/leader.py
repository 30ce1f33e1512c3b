"""Rank 0's part of a step: tell the others what to compute, and compute it with them."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from engine.backends.base import StepTimes
from engine.backends.kv_cache import BlockStore
from engine.backends.parallel.followers import Followers
from engine.backends.parallel.group import leave
from engine.backends.parallel.messages import pack
from engine.backends.runners import Logits, ModelRunner
from engine.backends.sampler import BestAllowed
from engine.batch import Batch, Int32
from engine.controls import SampleRow


class LeaderRunner:
    """A runner of rank 0's shard whose every step the followers compute as well (ModelRunner).

    After a step that failed, on whatever rank, nobody knows any more what the others are waiting
    for: it and all that come after it raise GroupLost.
    """

    def __init__(self, runner: ModelRunner, followers: Followers) -> None:
        self._runner = runner
        self._followers = followers
        self.threads = runner.threads
        self.native = runner.native

    @property
    def cache(self) -> BlockStore:
        return self._runner.cache

    def run(self, batch: Batch, token_ids: Int32) -> Logits:
        with self._followers.computing(pack(batch, token_ids)):
            return self._runner.run(batch, token_ids)

    def draw(
        self, logits: Tensor, at: Sequence[int], best: Tensor, rows: Sequence[SampleRow]
    ) -> Tensor:
        return self._runner.draw(logits, at, best, rows)

    @property
    def best_allowed(self) -> BestAllowed | None:
        return self._runner.best_allowed

    def times(self) -> StepTimes:
        return self._runner.times()

    def close(self) -> None:
        """End all ranks."""
        lost = self._followers.lost
        self._followers.stop()
        self._runner.close()
        if lost is None:
            leave()  # with somebody missing it might wait for him
