"""One rank's part of a model on disk: its shape, and what has to be the same on all ranks."""

from __future__ import annotations

from importlib.metadata import version

from engine.backends.parallel.place import Place
from engine.backends.parallel.shards import Shard
from engine.backends.parallel.wanted import Wanted
from engine.models.files import read_config


class Part:
    """What the rank at `place` is to compute of the model that is wanted.

    Raises ModelError for a model that cannot be served, UnfitShards for one that cannot be dealt to
    so many.
    """

    def __init__(self, place: Place, wanted: Wanted) -> None:
        self.place = place
        self.wanted = wanted
        self.shard = Shard(read_config(wanted.path), place.rank, place.world)

    @property
    def agreement(self) -> dict[str, str]:
        """What has to be the same on all ranks, by what it is called."""
        return {
            "version of Octavo": version("octavo"),
            "model": repr(self.shard.whole),
            "KV format": self.wanted.kv_dtype,
        }
