"""Block tables, host memory and moves, in any order, beside a model of what is in every slot.

A slot holds the whole history that the KV of its token depends on: the salt and all tokens up to
it. So whatever a sequence reads through its table is either its own or noticed.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest
from support.engines import GREEDY

from engine import prefix
from engine.batch import BLOCK
from engine.blocks import BlockPool, blocks_for
from engine.host import HostMemory
from engine.inbox import Submission
from engine.memory import KVMemory
from engine.moves import Launched, Moves
from engine.request import Request, Sequence

History = tuple[bytes, tuple[int, ...]]

GARBAGE: History = (b"garbage", ())
SALTS = (b"", b"tenant")
LENGTHS = (1, 15, 16, 17, 33)
PROMPT, OUTPUT = 2 * max(LENGTHS), 40


class World:
    """Requests that live in a KV memory, one step after the other, as the scheduler lets them.

    slots, host: what is where. granted: sequences of the step being planned and their tokens.
    seen: how often what happened.
    """

    def __init__(
        self,
        blocks: int = 16,
        host_blocks: int = 12,
        *,
        pool_type: type[BlockPool] = BlockPool,
        memory_type: type[KVMemory] = KVMemory,
        moves_type: type[Moves] = Moves,
    ) -> None:
        host = BlockPool(host_blocks)
        self.memory = memory_type(pool_type(blocks), cache=True, host=host)
        self.pool, self.host_pool = self.memory.pool, host
        self.memory.moves = self.moves = moves_type(self.pool, host)
        self.host = HostMemory(self.memory)
        self.running: list[Request] = []
        self.waiting: list[Request] = []
        self.granted: dict[Sequence, int] = {}
        self.slots = [GARBAGE] * (blocks * BLOCK)
        self.host_slots = [GARBAGE] * (host_blocks * BLOCK)
        self.seen: Counter[str] = Counter()
        self._tickets = 0

    # what happens between two steps

    def arrive(self, salt: bytes, prompt: list[int], n: int) -> None:
        submission = Submission(self._tickets, prompt, OUTPUT, GREEDY, arrival=0.0, n=n, salt=salt)
        self.waiting.append(Request(submission, self._tickets, self.memory))
        self._tickets += 1

    def admit(self, request: Request) -> None:
        """Let a waiting request run, if its known tokens fit."""
        if self.memory.wanted(request) > self.pool.free:
            self.seen["dry"] += 1
            return
        stored = [(s, s.stored) for s in request.open_sequences]
        restored = self.host.restore(request)
        assert all(s.computed >= count for s, count in stored), "what was stored is lost"
        self.waiting.remove(request)
        self.running.append(request)
        self.seen["restored"] += restored
        self.seen["hit"] += len(request.open_sequences[0].table) > restored
        for sequence in request.open_sequences:
            sequence.prefill_end = len(sequence.tokens)

    def grow(self, sequence: Sequence, count: int) -> None:
        """Grant tokens to a sequence, if there are blocks for them."""
        request = sequence.request
        if sequence in self.granted or sequence.done:
            return
        if sequence.reached == 0 and sequence is not request.open_sequences[0]:
            source = request.prompt_source()
            if source is None:
                return
            self.memory.fork(sequence, source)
            self.seen["forked"] += 1
        count = min(count, sequence.remaining)
        if count < 1 or self.memory.needs(sequence, count) > self.pool.free:
            return
        self.memory.extend(sequence, count)
        self.granted[sequence] = count

    def preempt(self, request: Request, *, offload: bool) -> None:
        """Take everything from a request, after offloading what it computed if there is room."""
        contents = self.host.contents(request)
        blocks = {block for each in (contents or {}).values() for block in each}
        table = {block for s in request.open_sequences for block in s.table}
        if offload and contents and len(blocks) <= self.host.free:
            self.seen["offloaded"] += len(blocks)
            self.seen["offloaded from the source of a copy"] += any(
                self.moves.content(block) != block for block in table
            )
            self.host.offload(contents)
            taken = sum(len(s.host) for s in request.open_sequences)
            self.seen["offloaded once for two"] += taken > len(blocks)
        elif contents is None:
            self.seen["preempted before it was restored"] += 1
        self._stop(request)
        self.running.remove(request)
        self.waiting.append(request)

    def end(self, sequence: Sequence) -> None:
        """One sequence is complete."""
        self._withdraw(sequence)
        self.memory.release(sequence)
        self.host.forget(sequence)
        sequence.done = True
        request = sequence.request
        if not request.open_sequences:
            (self.running if request in self.running else self.waiting).remove(request)

    def abort(self, request: Request) -> None:
        for sequence in request.open_sequences:
            self.end(sequence)

    # steps

    def step(self) -> None:
        """Compute what was granted; without grants the moves wait for the next step."""
        if not self.granted:
            self.seen["carried"] += bool(self.moves.requests)
            return
        launched = self.moves.launch()
        self._move(launched)
        for sequence, count in self.granted.items():
            self._write(sequence, count)
        granted, self.granted = self.granted, {}
        for sequence, count in granted.items():
            self._read(sequence, sequence.computed + count)
            sequence.begin_at(sequence.computed + count)
            self.memory.publish(sequence)
            if sequence.computed == len(sequence.tokens):
                sequence.tokens.append(sequence.index % 2)
            if sequence.generated > OUTPUT:
                self.end(sequence)

    def crash(self, chance: random.Random) -> None:
        """A step comes to nothing, after any part of it was done."""
        if not self.granted:
            return
        launched = self.moves.launch()
        self.seen["crashed"] += bool(launched.requests)
        if chance.random() < 0.5:
            self._move(launched)
            for sequence, count in self.granted.items():
                for position in range(sequence.computed, sequence.computed + count):
                    self.slots[self._slot(sequence, position)] = GARBAGE
        for sequence in self.granted:
            self.memory.trim(sequence)
        self.granted = {}
        for request in (*launched.requests, *self.moves.requests):
            for sequence in request.open_sequences:
                self.memory.release(sequence)
                self.host.forget(sequence)

    def check(self) -> None:
        """E1 and E3 for both memories."""
        sequences = [s for r in self.running + self.waiting for s in r.open_sequences]
        self.pool.check([*(s.table for s in sequences), self.moves.held()])
        self.host.check([s.host for s in sequences])
        for sequence in sequences:
            tokens = sequence.computed + self.granted.get(sequence, 0)
            assert len(sequence.table) == blocks_for(tokens), "E3"
            assert len(sequence.host) == blocks_for(sequence.stored), "E3: host"
            assert not (sequence.host and sequence.table), "in two memories"

    def close(self) -> None:
        """Everybody leaves, and it is as if they had never been (E12)."""
        for request in self.running + self.waiting:
            self.abort(request)
        self.check()
        assert self.pool.free == self.pool.total, "E12"
        assert self.host_pool.free == self.host_pool.total, "E12: host blocks"

    # what that means for slots

    def _stop(self, request: Request) -> None:
        for sequence in request.sequences:
            self._withdraw(sequence)
            self.memory.release(sequence)

    def _withdraw(self, sequence: Sequence) -> None:
        self.granted.pop(sequence, None)

    def _move(self, launched: Launched) -> None:
        """All reads of a kind before its writes: no source may be a destination."""
        here, there = self.slots, self.host_slots
        kinds = ((launched.offloads, here, there), (launched.restores, there, here))
        for pairs, sources, destinations in (*kinds, (launched.copies, here, here)):
            read = [self._block(sources, source) for source, _ in pairs]
            for content, (_, destination) in zip(read, pairs, strict=True):
                destinations[destination * BLOCK : (destination + 1) * BLOCK] = content
            assert len({destination for _, destination in pairs}) == len(pairs)
        self.seen["copied"] += len(launched.copies)
        reused = {d for _, d in launched.restores} | {d for _, d in launched.copies}
        self.seen["offloaded and taken at once"] += bool(
            reused & {source for source, _ in launched.offloads}
        )

    @staticmethod
    def _block(slots: list[History], block: int) -> list[History]:
        return slots[block * BLOCK : (block + 1) * BLOCK]

    def _slot(self, sequence: Sequence, position: int) -> int:
        return sequence.table[position // BLOCK] * BLOCK + position % BLOCK

    @staticmethod
    def _history(sequence: Sequence, position: int) -> History:
        return sequence.request.submission.salt, tuple(sequence.tokens[: position + 1])

    def _write(self, sequence: Sequence, count: int) -> None:
        for position in range(sequence.computed, sequence.computed + count):
            block = sequence.table[position // BLOCK]
            others = self._owners(block, position // BLOCK) - {sequence}
            ahead = [other for other in others if other.computed > position]
            assert not ahead, "what another has computed is written over"
            assert self.pool.key_of(block) is None, "what can be found must not change"
            self.slots[self._slot(sequence, position)] = self._history(sequence, position)

    def _owners(self, block: int, place: int) -> set[Sequence]:
        """Whose table has the block there. A sibling that forked later may own it as well."""
        open_sequences = (s for r in self.running for s in r.open_sequences)
        return {s for s in open_sequences if s.table[place : place + 1].tolist() == [block]}

    def _read(self, sequence: Sequence, count: int) -> None:
        for position in range(count):
            found = self.slots[self._slot(sequence, position)]
            assert found == self._history(sequence, position), "a sequence reads foreign KV"


def walk(world: World, steps: int, seed: int) -> None:
    """So many random moves; the model is asked after each."""
    chance = random.Random(seed)
    moves = {"arrive": 4, "admit": 8, "grow": 24, "step": 12, "offload": 4, "recompute": 1}
    moves |= {"end": 0.3, "abort": 0.7, "crash": 0.5}
    names, weights = list(moves), list(moves.values())
    for _ in range(steps):
        (name,) = chance.choices(names, weights)
        runs = chance.choice(world.running) if world.running else None
        waits = chance.choice(world.waiting) if world.waiting else None
        match name:
            case "arrive" if len(world.running) + len(world.waiting) < 7:
                prompt = [chance.randrange(2)] * chance.choice(LENGTHS)
                prompt += [chance.randrange(2)] * chance.choice(LENGTHS)
                world.arrive(chance.choice(SALTS), prompt, chance.choice((1, 1, 2, 3)))
            case "admit" if waits:
                world.admit(waits)
            case "grow" if runs:
                for sequence in chance.sample(runs.open_sequences, len(runs.open_sequences)):
                    world.grow(sequence, chance.choice((1, 7, 16, 40)))
            case "step":
                world.step()
            case "crash":
                world.crash(chance)
            case "offload" | "recompute" if runs:
                world.preempt(runs, offload=name == "offload")
            case "end" | "abort":
                leaver = chance.choice([r for r in (runs, waits) if r] or [None])
                if leaver and name == "abort":
                    world.abort(leaver)
                elif leaver:
                    world.end(chance.choice(leaver.open_sequences))
        world.check()
    world.close()


EVENTS = {
    "dry",
    "hit",
    "forked",
    "copied",
    "carried",
    "crashed",
    "offloaded",
    "offloaded once for two",
    "offloaded from the source of a copy",
    "offloaded and taken at once",
    "preempted before it was restored",
    "restored",
}


def test_a_walk_meets_everything_that_can_happen() -> None:
    world = World()
    walk(world, 4_000, seed=1)
    assert {event for event in EVENTS if world.seen[event] > 3} == EVENTS, world.seen


@pytest.mark.slow
@pytest.mark.parametrize(("blocks", "host_blocks"), [(16, 12), (40, 40)])
def test_a_long_walk_loses_no_block_and_mixes_up_no_content(blocks: int, host_blocks: int) -> None:
    world = World(blocks, host_blocks)
    walk(world, 100_000, seed=2)
    assert {event for event in EVENTS if world.seen[event] > 10} == EVENTS, world.seen


# ── deliberate bugs are noticed ───────────────────────────────────────────────────────────────


class NoReference(BlockPool):
    """Sharing does not raise the reference count."""

    def share(self, block: int) -> None:
        if not self.references(block):
            super().share(block)


class PublishesUnwritten(KVMemory):
    """Blocks can be found as soon as they are taken."""

    def extend(self, sequence: Sequence, count: int) -> None:
        super().extend(sequence, count)
        computed, sequence.computed = sequence.computed, sequence.computed + count
        self.publish(sequence)
        sequence.computed = computed


class WritesShared(KVMemory):
    """What has several owners is written without a copy."""

    def _copies(self, sequence: Sequence) -> int:
        return 0


class SkipsTheCopy(Moves):
    def launch(self) -> Launched:
        launched = super().launch()
        return Launched(launched.offloads, launched.restores, (), launched.requests)


class SkipsTheRestore(Moves):
    def launch(self) -> Launched:
        launched = super().launch()
        return Launched(launched.offloads, (), launched.copies, launched.requests)


class SkipsTheOffload(Moves):
    def launch(self) -> Launched:
        launched = super().launch()
        return Launched((), launched.restores, launched.copies, launched.requests)


class GivesTheHostBlockTooEarly(Moves):
    """A host block can be offloaded to in the step that restores from it."""

    def restore(self, host: int, destination: int, request: Request) -> None:
        self._restores[destination] = host
        self._requests[request] = None

    def give(self, block: int) -> None:
        if self._pool.references(block) == 1:
            self._restores.pop(block, None)
        super().give(block)

    def launch(self) -> Launched:
        restores, self._restores = self._restores, {}
        launched = super().launch()
        pairs = tuple((host, block) for block, host in restores.items())
        return Launched(launched.offloads, pairs, launched.copies, launched.requests)

    def held_host(self) -> list[int]:
        return []


class GivesTheSourceTooEarly(Moves):
    """A block can be taken in the step that copies it."""

    def copy(self, source: int, destination: int, request: Request) -> None:
        self._copies[destination] = self._copies.get(source, source)
        self._requests[request] = None

    def owners(self, block: int) -> int:
        return self._pool.references(block)

    def give(self, block: int) -> None:
        if self._pool.references(block) == 1:
            self._copies.pop(block, None)
        super().give(block)

    def launch(self) -> Launched:
        copies, self._copies = self._copies, {}
        launched = super().launch()
        pairs = tuple((source, block) for block, source in copies.items())
        return Launched(launched.offloads, launched.restores, pairs, launched.requests)

    def held(self) -> list[int]:
        return []


class OffloadsWhatIsNotThereYet(Moves):
    """A block that is to be copied or restored counts as if it had been."""

    def content(self, block: int) -> int:
        return block


class MovesForNobody(Moves):
    """A block given back is moved to all the same."""

    def give(self, block: int) -> None:
        copies, restores = dict(self._copies), dict(self._restores)
        super().give(block)
        for source in set(copies.values()) - set(self._copies.values()):
            self._pool.share(source)
        self._copies, self._restores = copies, restores


class ForgetsWhoMoved(Moves):
    """After a fault nobody starts again."""

    def launch(self) -> Launched:
        launched = super().launch()
        return Launched(launched.offloads, launched.restores, launched.copies, ())


FOREIGN = "a sequence reads foreign KV"


@pytest.mark.parametrize(
    ("bug", "says"),
    [
        ({"pool_type": NoReference}, "reference counts differ from owners"),
        ({"memory_type": PublishesUnwritten}, "what can be found must not change"),
        ({"memory_type": WritesShared}, "what another has computed is written over"),
        ({"moves_type": SkipsTheCopy}, FOREIGN),
        ({"moves_type": SkipsTheRestore}, FOREIGN),
        ({"moves_type": SkipsTheOffload}, FOREIGN),
        ({"moves_type": GivesTheHostBlockTooEarly}, FOREIGN),
        ({"moves_type": OffloadsWhatIsNotThereYet}, FOREIGN),
        ({"moves_type": MovesForNobody}, "reference counts differ from owners"),
        ({"moves_type": ForgetsWhoMoved}, FOREIGN),
    ],
)
def test_a_bug_is_caught(bug: dict[str, type], says: str) -> None:
    with pytest.raises(AssertionError, match=says):
        walk(World(**bug), 20_000, seed=1)


def restore_beside_a_copy(world: World) -> None:
    """A request is to be restored while the last owner of a block that is copied has left."""
    world.arrive(b"", [7] * 17, 1)
    (stored,) = world.waiting
    world.admit(stored)
    world.grow(stored.sequences[0], 17)
    world.step()
    world.preempt(stored, offload=True)
    world.arrive(b"", [8] * 32, 2)
    group = world.waiting[-1]
    world.admit(group)
    first, second = group.sequences
    world.grow(first, 32)
    world.step()
    world.grow(second, 1)
    world.end(first)
    world.admit(stored)
    world.step()
    world.check()


def test_a_source_that_can_be_taken_before_it_is_copied_is_caught() -> None:
    restore_beside_a_copy(World(4, 12))
    with pytest.raises(AssertionError, match=FOREIGN):
        restore_beside_a_copy(World(4, 12, moves_type=GivesTheSourceTooEarly))


def test_keys_without_their_salt_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = prefix.root
    monkeypatch.setattr(prefix, "root", lambda salt: honest(b""))
    with pytest.raises(AssertionError, match=FOREIGN):
        walk(World(), 4_000, seed=1)
