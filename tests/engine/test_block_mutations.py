"""Deliberate bugs in pool, keys and callers: each is noticed by the walk of test_blocks."""

from __future__ import annotations

import pytest
from test_blocks import Owner, World, walk

from engine import prefix
from engine.blocks import BlockPool


class NoReference(BlockPool):
    """Sharing does not raise the reference count."""

    def share(self, block: int) -> None:
        if not self.references(block):
            super().share(block)


class StillCached(BlockPool):
    """A block that is shared anew stays where it can be evicted."""

    def share(self, block: int) -> None:
        self._references[block] += 1


class KeyOutlivesEviction(BlockPool):
    """The key of an evicted block still leads to it."""

    def _evict(self) -> int:
        block, key = next(iter(self._cached)), self._keys[next(iter(self._cached))]
        super()._evict()
        self._known[key] = block
        return block


class EvictsMostRecent(BlockPool):
    """The cached block used last is evicted first."""

    def _evict(self) -> int:
        self._cached.move_to_end(next(reversed(self._cached)), last=False)
        return super()._evict()


class EvictsTooEarly(BlockPool):
    """Cached blocks go while free ones are left."""

    def take(self) -> int:
        if self._cached:
            self._free.append(self._evict())
        return super().take()


class DoublePublish(BlockPool):
    """Of two equal blocks the second gets the key as well."""

    def publish(self, block: int, key: bytes) -> bool:
        if self._known.get(key, block) != block:
            self._keys[block] = key
            return False
        return super().publish(block, key)


class ForgetsToFree(BlockPool):
    """The last owner of an unknown block gives it to nobody."""

    def give(self, block: int) -> None:
        super().give(block)
        if not self.references(block) and self.key_of(block) is None:
            self._free.remove(block)


class ResetLeaks(BlockPool):
    """A cache reset loses the cached blocks."""

    def forget_all(self) -> None:
        for block in list(self._known.values()):
            key = self._forget(block)
            if self.on_change is not None:
                self.on_change(key, False)
        self._cached.clear()


class PublishesUnwritten(World):
    """Blocks can be found before their KV is written."""

    def publishable(self, owner: Owner) -> int:
        return len(owner.tokens) // prefix.BLOCK


class SkipsTheCopy(World):
    """A block with several owners is written without a copy."""

    def _own(self, owner: Owner, index: int) -> bool:
        return True


class CopiesNothing(World):
    """A block with several owners is replaced, and its content is not copied."""

    def _own(self, owner: Owner, index: int) -> bool:
        old = owner.table[index]
        owned = super()._own(owner, index)
        if owner.table[index] != old:
            self.content[owner.table[index]] = None
        return owned


def assert_caught(world: World, says: str) -> None:
    with pytest.raises(AssertionError, match=says):
        walk(world, 3_000, seed=3)


@pytest.mark.parametrize(
    ("pool_type", "says"),
    [
        (NoReference, "reference counts differ from owners"),
        (StillCached, "a cached block has an owner"),
        (KeyOutlivesEviction, "blocks and keys disagree"),
        (EvictsMostRecent, "not the least recently used"),
        (EvictsTooEarly, "taken while others were free"),
        (DoublePublish, "blocks and keys disagree"),
        (ForgetsToFree, "blocks were lost"),
        (ResetLeaks, "blocks were lost"),
    ],
)
def test_a_bug_in_the_pool_is_caught(pool_type: type[BlockPool], says: str) -> None:
    assert_caught(World(15, pool_type), says)


@pytest.mark.parametrize(
    ("world_type", "says"),
    [
        (PublishesUnwritten, "published before it was written"),
        (SkipsTheCopy, "a block being written has one owner"),
        (CopiesNothing, "KV was lost"),
    ],
)
def test_a_bug_in_its_caller_is_caught(world_type: type[World], says: str) -> None:
    assert_caught(world_type(15), says)


def test_keys_without_their_salt_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = prefix.root
    monkeypatch.setattr(prefix, "root", lambda salt: honest(b""))
    assert_caught(World(15), "a match holds something else")


def test_keys_without_their_parent_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = prefix._extend
    monkeypatch.setattr(prefix, "_extend", lambda parent, packed: honest(b"", packed))
    assert_caught(World(15), "two prefixes have one key")


def test_without_a_bug_the_same_walk_passes() -> None:
    world = World(15)
    walk(world, 3_000, seed=3)
    assert world.pool.free == world.total
