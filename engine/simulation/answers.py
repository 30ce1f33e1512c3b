"""Blocks of answers under the names that a trace gives them: later prompts begin with them."""

from __future__ import annotations

from collections.abc import Sequence as List

from engine.batch import BLOCK
from engine.outside import Outside
from engine.prefix import KeyChain, extend
from engine.request import Sequence
from engine.simulation.records import Record


class NamedAnswers(Outside):
    """Names blocks for a scheduler. records: the requests, by number."""

    def __init__(self, records: List[Record]) -> None:
        self._records = records

    def chain_of(self, sequence: Sequence) -> KeyChain:
        submission = sequence.request.submission
        prefix = self._records[sequence.request.id].arrival.prefix
        if prefix is None or not prefix.answer:
            return super().chain_of(sequence)
        return NamedChain([*submission.prompt_keys, *prefix.answer_keys()], submission.prompt_keys)


class NamedChain(KeyChain):
    """A chain some of whose keys are known before their blocks are full. named: from the first."""

    __slots__ = ("_named",)

    def __init__(self, named: List[bytes], keys: List[bytes] = ()) -> None:
        super().__init__(b"", keys)
        self._named = named

    def grow(self, tokens: List[int]) -> list[bytes]:
        known = len(self.keys)
        for place in range(known, len(tokens) // BLOCK):
            if place < len(self._named):
                self._parent = self._named[place]
            else:
                self._parent = extend(self._parent, tokens[place * BLOCK : (place + 1) * BLOCK])
            self.keys.append(self._parent)
        return self.keys[known:]

    def fork(self) -> KeyChain:
        twin = NamedChain(self._named, self.keys)
        twin._parent = self._parent
        return twin
