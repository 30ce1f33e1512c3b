"""Ways to serve the same requests, all of which must say the same to the last bit."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from engine.backends.cpu import CPUBackend
from engine.backends.native_cache import NativeKVCache
from engine.backends.runners import NativeRunner
from engine.inbox import Reconfigure
from engine.models.config import ModelConfig
from engine.native.model import NativeModel
from engine.speculation import Drafter
from policies.base import Policy, RequestView, StepView
from policies.fcfs import FCFS
from support.built_in import BUILT_IN
from support.draft_models import draft_model
from support.drafts import Guesser, telling
from support.engines import Harness, services
from support.float_parity import Ask, Said, controls, said
from support.grammars import VOCAB, Stepwise

ROOM = 400
"""Blocks in which nobody gives way."""


class Chunked(FCFS):
    """First come, first served, `size` prompt tokens at a time."""

    def __init__(self, *, services: object, size: int) -> None:
        super().__init__(services=services)  # type: ignore[arg-type]
        self.size = size

    def chunk(self, request: RequestView, start: int, most: int, step: StepView) -> int:
        return min(most, self.size)


@dataclass(frozen=True)
class Way:
    """How requests are served together. blocks: of the pool; host_blocks: to offload to. twice:
    again when all have ended, with what is cached. swapping: another policy every five steps.
    guessing: what follows is guessed, one time in four wrongly. drafting: by the model itself,
    with its own KV in float32 and so not always rightly."""

    threads: int = 1
    budget: int = 96
    rows: int = 8
    blocks: int = ROOM
    host_blocks: int = 0
    depth: int = 0
    policy: Callable[..., Policy] = FCFS
    twice: bool = False
    swapping: bool = False
    guessing: bool = False
    drafting: bool = False


def ways(tight: int) -> dict[str, Way]:
    """By name. tight: blocks of a pool in which the requests get in each other's way."""
    return {
        "batched": Way(),
        "batched, two threads": Way(threads=2),
        "batched, depth one": Way(depth=1, rows=16),
        **{f"chunks of {size}": Way(policy=partial(Chunked, size=size)) for size in (1, 7, 64)},
        "preempted": Way(blocks=tight),
        "preempted, two threads, depth one": Way(blocks=tight, threads=2, depth=1),
        "offloaded": Way(blocks=tight, host_blocks=ROOM),
        "cached": Way(twice=True),
        "guessed": Way(guessing=True, twice=True, threads=2),
        "guessed, preempted, depth one": Way(guessing=True, blocks=tight, depth=1),
        "drafted": Way(drafting=True, twice=True, threads=2),
        "drafted, preempted, depth one": Way(drafting=True, blocks=tight, depth=1),
        **{f"under {name}": Way(policy=made, blocks=2 * tight) for name, made in BUILT_IN.items()},
        "swapping policies": Way(swapping=True, blocks=tight),
    }


WAYS = list(ways(1))


def random_asks(count: int, config: ModelConfig) -> list[Ask]:
    """Prompts of 1 to 300 random tokens, some of which begin alike."""
    rng = np.random.default_rng(count)
    lengths = [1, 300, 17, 90, 2, 33, 64, 150, 16, 48, 5, 120]
    common = rng.integers(0, config.vocab, 48).tolist()
    prompts = [rng.integers(0, config.vocab, lengths[i % len(lengths)]) for i in range(count)]
    for prompt in prompts[1::3]:
        prompt[:48] = common[: len(prompt)]
    return [Ask(p.tolist(), 16 + i % 9, controls(i)) for i, p in enumerate(prompts)]


def under_grammars(asks: list[Ask], *, forces: bool) -> list[Ask]:
    """The same, with longer answers, under grammars that leave a choice at some places.

    Nobody asks for logprobs: there are none of tokens that are forced.
    """
    return [
        Ask(
            ask.prompt,
            ask.max_tokens + 20,
            replace(ask.controls, logprobs=None, grammar=_grammar(number, forces)),
        )
        for number, ask in enumerate(asks)
    ]


def _grammar(number: int, forces: bool) -> Stepwise:
    """Runs of one to 24 places without a choice between some with."""
    draw = random.Random(number)
    places: list[list[int]] = []
    while len(places) < 50:
        choices = [draw.sample(range(VOCAB), 20) for _ in range(draw.randint(1, 3))]
        forced = [[draw.randrange(VOCAB)] for _ in range(draw.choice([1, 2, 3, 24]))]
        places += [*choices, *forced]
    return Stepwise(*places, forces=forces)


class Restaurant:
    """One packed model, and a cache whose unwritten slots would show for each way of serving."""

    def __init__(
        self, model: NativeModel, config: ModelConfig, asks: list[Ask], tight: int, kv_dtype: str
    ) -> None:
        self.model = model
        self.config = config
        self.asks = asks
        self.ways = ways(tight)
        self.kv_dtype = kv_dtype
        self.alone = self._each_alone()
        """What each request is answered that is served on its own."""

    def serve(self, name: str) -> Iterator[list[Said]]:
        """What the requests are answered, in each round; checks that the way was what it says."""
        way = self.ways[name]
        with self._house(way) as house:
            for _ in range(1 + way.twice):
                yield self._round(house, way.swapping, random.Random(name))
            counters = house.scheduler.counters
            assert house.scheduler.guard.saves.total() == 0
            if name.startswith(("preempted", "offloaded", "swapping")):
                assert counters.preemptions > 0
            assert counters.draft_faults == 0
            if way.drafting:
                assert 0 < counters.accepted_tokens <= counters.draft_tokens
            if way.guessing:
                assert 0 < counters.accepted_tokens < counters.draft_tokens
            if way.host_blocks:
                assert counters.restored_blocks > 0
            assert (counters.cached_tokens > 0) >= way.twice

    def _answers(self) -> dict[tuple[int, ...], list[int]]:
        pairs = zip(self.asks, self.alone, strict=True)
        return {tuple(ask.prompt): said.tokens for ask, said in pairs}

    def _each_alone(self) -> list[Said]:
        with self._house(Way(rows=1, budget=1000), cached=False) as house:
            return [_answered(house, [ask])[0] for ask in self.asks]

    def _round(self, house: Harness, swapping: bool, order: random.Random) -> list[Said]:
        shuffled = order.sample(range(len(self.asks)), len(self.asks))
        found = _answered(house, [self.asks[i] for i in shuffled], swapping=swapping)
        return [each for _, each in sorted(zip(shuffled, found, strict=True), key=lambda it: it[0])]

    @contextmanager
    def _house(self, way: Way, *, cached: bool = True) -> Iterator[Harness]:
        cache = NativeKVCache(self.config, way.blocks, self.kv_dtype, way.host_blocks)
        for part in cache.parts:
            part.fill_(torch.nan if part.is_floating_point() else -128)
        before = torch.get_num_threads()
        torch.set_num_threads(way.threads)
        house = Harness(
            backend=CPUBackend(_Runner(self.model, cache, way.threads)),
            blocks=way.blocks,
            budget=way.budget,
            rows=way.rows,
            depth=way.depth,
            policy=way.policy,
            prefix_cache=cached,
            drafter=self._drafter(way),
        )
        yield house
        assert house.pool.free == way.blocks
        torch.set_num_threads(before)

    def _drafter(self, way: Way) -> Drafter | None:
        if way.guessing:
            return Guesser(telling(self._answers()))
        if way.drafting:
            cache = NativeKVCache(self.config, way.blocks, "float32")
            backend = CPUBackend(_Runner(self.model, cache, way.threads))
            return draft_model(backend=backend, piece=40)
        return None


def _answered(house: Harness, asks: list[Ask], *, swapping: bool = False) -> list[Said]:
    """What they are answered that come at once, of three tenants and four priorities."""
    requests = [
        house.submit(ask.prompt, ask.max_tokens, ask.controls, tenant="abc"[i % 3], priority=i % 4)
        for i, ask in enumerate(asks)
    ]
    policies = itertools.cycle(BUILT_IN.values())
    for step in itertools.count():
        if swapping and step % 5 == 0:
            house.mail.append(Reconfigure(next(policies)(services=services())))
        house.step()
        if not house.scheduler.live and not house.scheduler.in_flight:
            return [said(house, request) for request in requests]
    raise AssertionError


class _Runner(NativeRunner):
    """A model that others use too, over a cache of its own."""

    def __init__(self, model: NativeModel, cache: NativeKVCache, threads: int) -> None:
        self.model, self.cache, self.threads = model, cache, threads
        self.native = model.isa

    def close(self) -> None:
        pass
