"""The waiting requests of one flow in an order that follows the prefix cache.

For policies that override `prefix_key`. The block keys of the waiting prompts form a radix tree,
and each request hangs where its keys end:

    root ── system prompt ─┬─ chat 1 ──┬─ request 3
            (all known)    │ (2 of 5)  └─ request 8
                           └─ chat 2 ───── request 5
                              (0 of 3)

Known blocks reach some way down each branch. A node that they reach *stands*: requests below it,
but not below another standing node, have the same cached prefix and are one group. So a block that
is published or evicted moves one group to another place in the order, however many wait in it.

Nothing happens at once: the pool's changes are written down for all flows together, and a flow
reads what is new to it when somebody asks for its head. It looks at the changes or at its nodes,
whichever are fewer. So a hundred thousand flows cost nothing until it is their turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from engine.heap import AddressableHeap, Looks
from engine.request import Request

Key = Any


class PrefixChanges:
    """What the prefix cache learned and forgot, in order; `note` is the pool's `on_change`.

    forgotten: how many keys were forgotten so far. Of the changes the last few are kept.
    """

    KEPT = 1 << 16

    def __init__(self, find: Callable[[bytes], int | None]) -> None:
        self.find = find
        self.forgotten = 0
        self._keys: list[bytes] = []
        self._dropped = 0

    @property
    def count(self) -> int:
        """Changes since the beginning."""
        return self._dropped + len(self._keys)

    def note(self, key: bytes, known: bool) -> None:
        """Write a change down."""
        self.forgotten += not known
        self._keys.append(key)
        if len(self._keys) > self.KEPT:
            self._dropped += self.KEPT // 2
            del self._keys[: self.KEPT // 2]

    def since(self, count: int) -> Sequence[bytes] | None:
        """The keys that changed after the first `count` changes; None if they are not kept."""
        start = count - self._dropped
        return self._keys[start:] if start >= 0 else None


class Node:
    """Blocks start … end - 1 of the prompts below it, the first `known` - `start` of them known.

    pending: the requests that end here and the children that do not stand, by the best key in them.
    ready: children whose first block is known although not all of this node is (the parent was
    evicted before). standing: children that stand. best: the request whose key the order has.
    checked: changes of the cache up to which everything from the root to here was seen to be known.
    """

    __slots__ = (
        "best",
        "chain",
        "checked",
        "children",
        "end",
        "known",
        "parent",
        "pending",
        "ready",
        "standing",
        "stands",
        "start",
    )

    def __init__(self, chain: Sequence[bytes], start: int, end: int, parent: Node | None) -> None:
        self.chain = chain
        self.start = start
        self.end = end
        self.known = start
        self.parent = parent
        self.stands = False
        self.best: tuple[Request, int] | None = None
        self.checked = -1
        self.children = 0
        self.pending: AddressableHeap[Request | Node] = AddressableHeap()
        self.ready: set[Node] = set()
        self.standing: set[Node] = set()

    @property
    def complete(self) -> bool:
        """Whether all its blocks are known."""
        return self.known == self.end

    @property
    def above(self) -> Node:
        """The parent of a node that is not the root."""
        assert self.parent is not None, "the root has no parent"
        return self.parent

    def first(self) -> Request:
        """The request with the smallest key in the group."""
        item = self.pending.peek()
        while isinstance(item, Node):
            item = item.pending.peek()
        return item


class PrefixOrder:
    """An addressable heap (see `AddressableHeap`) of requests whose place follows their prefix.

    keys_of: the block keys that a request can be matched by. place: the key of a request in the
    flow when so many tokens are cached; it must keep the order of `push`'s keys where the number is
    the same.
    """

    def __init__(
        self,
        changes: PrefixChanges,
        keys_of: Callable[[Request], Sequence[bytes]],
        place: Callable[[Request, int], Key],
        block: int,
    ) -> None:
        self._changes = changes
        self._keys_of = keys_of
        self._place = place
        self._block = block
        self._root = Node((), 0, 0, None)
        self._root.stands = True
        self._nodes: dict[bytes, Node] = {}  # by their first key
        self._watched: dict[bytes, Node] = {}  # by their last known and first unknown keys
        self._homes: dict[Request, Node] = {}
        self._order: AddressableHeap[Node] = AddressableHeap()
        self._read = changes.count

    def __len__(self) -> int:
        return len(self._homes)

    def __contains__(self, request: Request) -> bool:
        return request in self._homes

    def push(self, request: Request, key: Key) -> None:
        """Add a request under its key among those with the same cached prefix."""
        node = self._home(self._keys_of(request))
        self._homes[request] = node
        node.pending.push(request, key)
        self._rise(node)

    def remove(self, request: Request) -> None:
        """Take the request out. Raises KeyError if it is not in."""
        node = self._homes.pop(request)
        node.pending.remove(request)
        while not (node.pending or node.children) and node.parent is not None:
            self._delete(node)
            node = node.above
        self._rise(node)

    def first(self) -> tuple[Key, Request]:
        """The smallest key and its request. Raises LookupError if nobody is in."""
        self._catch_up()
        while True:
            key, node = self._order.first()
            if not self._mend(node):
                return key, node.first()

    def cached(self, request: Request) -> int:
        """Blocks of the request that are cached. Raises KeyError if it is not in."""
        self._catch_up()
        while True:
            node = self._homes[request]
            while not node.stands:
                node = node.above
            if not self._mend(node):
                return node.known

    def before(self, request: Request, looks: Looks) -> Iterator[Request]:
        """Who goes before a request, in no order, as far as `looks` reach.

        Raises KeyError if it is not in.
        """
        self.cached(request)  # brings its node up to date
        node = self._homes[request]
        while not node.stands:
            node = node.above
        bound = self._place(request, node.known * self._block)
        for group in self._order.leaving(lambda key, _: key < bound, looks):
            yield from self._members(group, group.known * self._block, bound, looks)

    def _members(self, node: Node, cached: int, bound: Key, looks: Looks) -> Iterator[Request]:
        """Those of a group that go before `bound`; all of it have as many tokens cached."""

        def goes_first(_: Key, item: Request | Node) -> bool:
            first = item.first() if isinstance(item, Node) else item
            return bool(self._place(first, cached) < bound)

        for item in node.pending.leaving(goes_first, looks):
            if isinstance(item, Node):
                yield from self._members(item, cached, bound, looks)
            else:
                yield item

    # ---------------------------------------------------------------- the tree

    def _home(self, keys: Sequence[bytes]) -> Node:
        """The node at which these keys end; made where there is none."""
        node = self._root
        while node.end < len(keys):
            child = self._nodes.get(keys[node.end])
            if child is None:
                return self._add(Node(keys, node.end, len(keys), node))
            end = _shared_end(child, keys)
            node = child if end == child.end else self._split(child, end)
        return node

    def _add(self, node: Node) -> Node:
        node.above.children += 1
        self._nodes[node.chain[node.start]] = node
        self._watch(node)
        self._settle(node)
        return node

    def _delete(self, node: Node) -> None:
        parent = node.above
        parent.children -= 1
        del self._nodes[node.chain[node.start]]
        self._unwatch(node)
        parent.ready.discard(node)
        if node.stands:
            parent.standing.discard(node)
            self._order.discard(node)
        else:
            parent.pending.discard(node)

    def _split(self, node: Node, end: int) -> Node:
        """Put a node between this one and its parent, for the blocks before `end`."""
        parent = node.above
        upper = Node(node.chain, node.start, end, parent)
        upper.children = 1
        upper.checked = node.checked
        upper.stands = node.stands
        self._unwatch(node)
        upper.known, node.known = min(node.known, end), max(node.known, end)
        node.start, node.parent = end, upper
        self._nodes[upper.chain[upper.start]] = upper
        self._nodes[node.chain[end]] = node
        self._watch(upper)
        self._watch(node)
        if node in parent.ready:
            parent.ready.remove(node)
            parent.ready.add(upper)
        if upper.stands:
            parent.standing.remove(node)
            parent.standing.add(upper)
            upper.standing.add(node)
            if node.known == end:
                self._unstand(node)
        else:
            key = parent.pending.key(node)
            parent.pending.remove(node)
            upper.pending.push(node, key)
            parent.pending.push(upper, key)
            if node.known > end:
                upper.ready.add(node)
        self._settle(node)  # nobody counted on behind the first unknown block
        return upper

    def _rise(self, node: Node) -> None:
        """Say upwards what the best of a node is now, as far as its group reaches."""
        while not node.stands:
            parent = node.above
            if node.pending:
                key = node.pending.first()[0]
                if node in parent.pending and parent.pending.key(node) == key:
                    return
                parent.pending.push(node, key)
            else:
                parent.pending.discard(node)
            node = parent
        self._arrange(node)

    def _arrange(self, node: Node) -> None:
        """Put a standing node where it belongs in the order."""
        if not node.pending:
            self._order.discard(node)
            node.best = None
            return
        best = (node.first(), node.known)
        if best != node.best or node not in self._order:
            node.best = best
            self._order.push(node, self._place(best[0], best[1] * self._block))

    # ---------------------------------------------------------------- the cache

    def _catch_up(self) -> None:
        """Bring the tree in line with what was published and evicted since the last look."""
        changes = self._changes
        new = changes.count - self._read
        if not new:
            return
        keys = changes.since(self._read) if new <= len(self._nodes) else None
        self._read = changes.count
        if keys is None:
            for node in list(self._nodes.values()):
                self._settle(node)
            return
        for key in keys:
            watching = self._watched.get(key)
            if watching is not None:
                self._settle(watching)

    def _settle(self, node: Node) -> None:
        """Count a node's known blocks anew from where they ended, and what follows from that."""
        find, chain, known = self._changes.find, node.chain, node.known
        while known > node.start and find(chain[known - 1]) is None:
            known -= 1
        while known < node.end and find(chain[known]) is not None:
            known += 1
        if known != node.known:
            self._move(node, known)
        elif known > node.start and not node.stands:
            self._reach(node)

    def _move(self, node: Node, known: int) -> None:
        """So many blocks of the node are known now."""
        self._unwatch(node)
        node.known = known
        self._watch(node)
        parent = node.above
        if known == node.start:
            parent.ready.discard(node)
            if node.stands:
                self._unstand(node)
            return
        if not node.stands:
            self._reach(node)
            return
        if node.complete:
            self._call(node)
        else:
            for child in list(node.standing):
                self._unstand(child)
        self._arrange(node)

    def _reach(self, node: Node) -> None:
        """The first block of a node is known: it stands if all before it are known, too."""
        parent = node.above
        if not (parent.stands and parent.complete):
            parent.ready.add(node)
            return
        parent.ready.discard(node)
        parent.standing.add(node)
        parent.pending.discard(node)
        node.stands = True
        if node.complete:
            self._call(node)
        self._arrange(node)
        self._arrange(parent)

    def _call(self, node: Node) -> None:
        """Let the children stand that were ready."""
        for child in list(node.ready):
            self._reach(child)

    def _unstand(self, node: Node) -> None:
        """A node is reached no more: it goes back into its parent's group, with all below."""
        for child in list(node.standing):
            self._unstand(child)
        parent = node.above
        node.stands = False
        node.best = None
        self._order.discard(node)
        parent.standing.discard(node)
        if node.known > node.start:
            parent.ready.add(node)
        self._rise(node)

    def _mend(self, node: Node) -> bool:
        """Whether a block in the middle of a standing node's prefix turned out to be forgotten.

        Looks at all of them, but only if some were forgotten since the last look. It is rare: the
        end of a prefix is evicted before its beginning, unless two requests computed it at once.
        """
        forgotten, find = self._changes.forgotten, self._changes.find
        gaps: list[tuple[Node, int]] = []
        step: Node | None = node
        while step is not None and step.checked != forgotten:
            step.checked = forgotten
            for place in range(step.start, step.known):
                if find(step.chain[place]) is None:
                    gaps.append((step, place))
                    break
            step = step.parent
        for broken, known in gaps:
            self._move(broken, known)
        return bool(gaps)

    def _watch(self, node: Node) -> None:
        """Be told when the last known block is forgotten and when the next becomes known."""
        for place in (node.known - 1, node.known):
            if node.start <= place < node.end:
                self._watched[node.chain[place]] = node

    def _unwatch(self, node: Node) -> None:
        for place in (node.known - 1, node.known):
            if node.start <= place < node.end:
                self._watched.pop(node.chain[place], None)


def _shared_end(node: Node, keys: Sequence[bytes]) -> int:
    """Where the blocks of a node and these keys part. Keys are chained: equal ones have equal
    beginnings."""
    low, high = node.start + 1, min(node.end, len(keys))
    while low < high:
        middle = (low + high + 1) // 2
        if node.chain[middle - 1] == keys[middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low
