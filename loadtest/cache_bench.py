"""The block layer alone: how much of a trace's prompts a prefix cache of some size saves, how fast.

Traffic is given as hash ids, one a block, as the Mooncake traces have them: equal ids in the same
leading positions are the same prefix. Requests are replayed one after another without a model.
"""

from __future__ import annotations

import gzip
import itertools
import json
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.blocks import BlockPool
from engine.prefix import KEY_BYTES
from loadtest.host_bench import interleaved

BLOCKS = 5_000
"""Blocks of the pool whose rate is measured."""

REQUESTS = 2_000
"""Requests that are replayed to measure it."""

Prompt = Sequence[bytes]
"""The keys of a prompt's blocks; a partial last block counts as one."""


@dataclass(frozen=True, slots=True)
class Reuse:
    """Prompt blocks asked for, and how many of them were found: leading ones only."""

    asked: int
    found: int

    @property
    def fraction(self) -> float:
        return self.found / self.asked


def replay(prompts: Iterable[Prompt], blocks: int) -> Reuse:
    """Let requests come and go, one at a time, over an empty pool of so many blocks.

    Each shares the longest cached prefix, takes the blocks that it lacks, publishes them and gives
    all back. The longest prompt must fit in the pool.
    """
    pool = BlockPool(blocks)
    asked = found = 0
    for keys in prompts:
        table = pool.match(keys)
        asked += len(keys)
        found += len(table)
        for block in table:
            pool.share(block)
        taken = pool.take_all(len(keys) - len(table))
        for block, key in zip(taken, keys[len(table) :], strict=True):
            pool.publish(block, key)
        pool.give_all(reversed(table + taken))
    return Reuse(asked, found)


def measure_block_layer(
    prompts: Sequence[Prompt], rounds: int, tick: Callable[[], None] = lambda: None
) -> dict[str, float]:
    """`requests_per_s` and `blocks_per_s` of a replay over BLOCKS blocks, the median of the rounds
    in CPU seconds; `tick` is called after each round."""

    def seconds() -> float:
        started = time.thread_time()
        replay(prompts, BLOCKS)
        return time.thread_time() - started

    median = interleaved({"replay": seconds}, rounds, tick)["replay"]
    asked = sum(len(keys) for keys in prompts)
    return {"requests_per_s": len(prompts) / median, "blocks_per_s": asked / median}


def read_trace(path: Path, rows: int) -> list[Prompt]:
    """The first rows of a Mooncake trace: JSON lines with `hash_ids`, plain or gzipped.

    Raises ValueError, naming the line, where there is no list of ids, and for an empty file.
    """
    opener = gzip.open if path.suffix == ".gz" else open
    prompts: list[Prompt] = []
    with opener(path, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(itertools.islice(lines, rows), 1):
            try:
                prompts.append([_key(identity) for identity in json.loads(line)["hash_ids"]])
            except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
                raise ValueError(f"line {number} has no list of hash_ids") from error
    if not any(prompts):
        raise ValueError("there are no hash_ids in it")
    return prompts


def conversations(requests: int, seed: int = 0) -> list[Prompt]:
    """Made-up traffic like Mooncake's conversations: some 27 blocks a prompt, the first of which
    all share; a third of the requests go on with one of the last hundred conversations."""
    chance = random.Random(seed)
    fresh = itertools.count(1)
    system = _key(0)
    prompts: list[Prompt] = []
    for _ in range(requests):
        goes_on = bool(prompts) and chance.random() < 1 / 3
        history = chance.choice(prompts[-100:]) if goes_on else [system]
        grows = 1 + int(chance.expovariate(1 / 18))
        prompts.append([*history, *(_key(next(fresh)) for _ in range(grows))])
    return prompts


def _key(identity: int) -> bytes:
    return identity.to_bytes(KEY_BYTES, "little")
