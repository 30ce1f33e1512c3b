"""The KV of a draft model: block tables over a pool of its own, beside that of the served model."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from collections.abc import Sequence as Items

from engine.batch import BLOCK
from engine.blocks import BlockPool, blocks_for
from engine.drafting.draft import Draft
from engine.request import Sequence


class DraftMemory:
    """Who holds which blocks. Between steps a draft holds those of its computed tokens.

    drafts: least recently guessed first. Full blocks of known tokens are found by others under the
    keys that they have in the served model's cache, if it keeps any: siblings and followers share
    them. A shared block is never written again: of what is known only the last token is computed
    twice, and its block is not shared.
    """

    def __init__(self, blocks: int) -> None:
        self.pool = BlockPool(blocks)
        self.drafts: dict[Sequence, Draft] = {}

    def of(self, sequence: Sequence) -> Draft:
        """What there is of a sequence, at first nothing."""
        draft = self.drafts.get(sequence)
        if draft is None:
            draft = self.drafts[sequence] = Draft()
        return draft

    def used(self, sequence: Sequence) -> None:
        """It has been guessed just now."""
        self.drafts[sequence] = self.drafts.pop(sequence)

    def adopt(self, draft: Draft, keys: Items[bytes]) -> None:
        """Let a draft without blocks begin with cached ones. keys: of the sequence's full blocks.

        One token is left to compute, so that there are logits to guess from.
        """
        blocks = self.pool.match(keys[: (draft.known - 1) // BLOCK])
        for block in blocks:
            self.pool.share(block)
        draft.table.extend(blocks)
        draft.published = len(blocks)
        draft.computed = len(blocks) * BLOCK

    def publish(self, draft: Draft, keys: Items[bytes]) -> None:
        """Let blocks be found that are full of known tokens. Their KV is written."""
        full = min(min(draft.computed, draft.known - 1) // BLOCK, len(keys))
        for place in range(draft.published, full):
            self.pool.publish(draft.table[place], keys[place])
        draft.published = max(draft.published, full)

    def hold(self, draft: Draft, tokens: int, whole: int, others: Iterable[Sequence]) -> bool:
        """Have the blocks of so many tokens; False if there is no room for the `whole`.

        others: who gives way for it, in this order, and only if that suffices. Whoever could not be
        finished is not begun, and takes nothing from those who could.
        """
        lacks = blocks_for(whole) - len(draft.table)
        giving: list[Draft] = []
        found = self.pool.free
        for sequence in others:
            if found >= lacks:
                break
            giving.append(self.drafts[sequence])
            found += self._alone(giving[-1])
        if found < lacks:
            return False
        for each in giving:
            self.cut(each, 0)
        takes = blocks_for(tokens) - len(draft.table)
        if takes > 0:
            draft.table.extend(self.pool.take_all(takes))
        return True

    def cut(self, draft: Draft, tokens: int) -> None:
        """Have the KV of so many tokens at most, and give back the blocks of others, last first."""
        draft.computed = min(draft.computed, tokens)
        while len(draft.table) > blocks_for(draft.computed):
            self.pool.give(draft.table.pop())
        draft.published = min(draft.published, len(draft.table))

    def forget(self, sequence: Sequence) -> None:
        """Give everything back that is held for a sequence."""
        draft = self.drafts.pop(sequence, None)
        if draft is not None:
            self.cut(draft, 0)

    def check(self, running: Collection[Sequence]) -> None:
        """Assert that blocks are held for computed tokens of these sequences, and none is lost."""
        assert self.drafts.keys() <= set(running), "E12: a draft of a sequence that runs no more"
        self.pool.check([draft.table for draft in self.drafts.values()])
        for sequence, draft in self.drafts.items():
            held = blocks_for(draft.computed)
            assert len(draft.table) == held, f"E3: table of the draft of {sequence.name}"
            assert draft.published <= max(draft.known - 1, 0) // BLOCK, "guesses can be found"
            assert draft.computed <= len(draft.tokens), "what is computed has tokens"

    def _alone(self, draft: Draft) -> int:
        """Blocks of a draft that nobody shares."""
        return sum(self.pool.references(block) == 1 for block in draft.table)
