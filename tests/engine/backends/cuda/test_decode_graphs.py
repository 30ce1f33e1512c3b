"""Graphs of decodes: which steps go through them, and that they say what the same steps say
without."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from support.cpu_device import CPUDevice
from support.cuda_parts import kernels, on_stand_in

from engine.backends.cuda.backend import CUDABackend
from engine.backends.cuda.graphs import DecodeGraphs, Progress, decode_buckets
from engine.backends.cuda.model import Decoder
from engine.backends.cuda.pool import KVPool
from engine.backends.cuda.split import split
from engine.batch import BLOCK, Batch
from engine.controls import Sampled, ScoredRow
from tests.engine.backends.batches import Work, greedy_rows, make_batch
from tests.engine.models.tiny_llama import CONFIG

PROMPTS = [np.random.default_rng(i).integers(0, CONFIG.vocab, 12 + i).tolist() for i in range(3)]
TABLES = [[0, 1, 2, 3], [9, 4, 5, 6], [7, 8, 10, 11]]


def step(backend: CUDABackend, batch: Batch) -> Sampled:
    ticket = backend.submit(batch)
    backend.sample(ticket, greedy_rows(len(batch.sample_rows)))
    return backend.collect(ticket)


def decode(tokens: Sequence[int], length: int) -> Batch:
    """The next token of each sequence, all of which have this many."""
    return make_batch([Work(t, length, [x]) for t, x in zip(TABLES, tokens, strict=False)])


def test_buckets_are_1_2_4_and_steps_of_8() -> None:
    assert decode_buckets(1) == [1]
    assert decode_buckets(3) == [1, 2, 4]
    assert decode_buckets(5) == decode_buckets(8) == [1, 2, 4, 8]
    assert decode_buckets(17) == [1, 2, 4, 8, 16, 24]
    assert decode_buckets(1000)[-1] == 256
    assert len(decode_buckets(256)) == 3 + 32


def captured(tiny: tuple, *buckets: int, progress: Progress | None = None) -> DecodeGraphs:
    """Graphs of a pool of 12 blocks."""
    weights, config = tiny
    device = CPUDevice()
    parts = kernels(device, config)
    decoder = Decoder(weights, config, parts.ops, torch.device("cpu"))
    pool = KVPool(device, parts.ops, config, 12, "float32")
    return DecodeGraphs(device, decoder, pool, parts.attention(pool), buckets, progress)


@pytest.fixture
def graphs(tiny: tuple) -> DecodeGraphs:
    return captured(tiny, 2, 4)


def bucket_of(graphs: DecodeGraphs, batch: Batch) -> int | None:
    return graphs.bucket_of(batch, split(batch).decodes)


def test_the_smallest_bucket_that_holds_the_rows_is_taken(graphs: DecodeGraphs) -> None:
    work = [Work([block], 3, [1]) for block in range(5)]
    buckets = [bucket_of(graphs, make_batch(work[:rows])) for rows in range(1, 6)]
    assert buckets == [2, 2, 4, 4, None]


def test_only_steps_of_decodes_that_all_sample_go_through_a_graph(graphs: DecodeGraphs) -> None:
    first, second = Work([0], 3, [1]), Work([1], 3, [1])
    assert bucket_of(graphs, make_batch([first, second])) == 2
    assert bucket_of(graphs, make_batch([first, Work([1], 3, [1, 2])])) is None
    assert bucket_of(graphs, make_batch([Work([1], 3, [1, 2])])) is None
    silent = make_batch([first, Work([1], 3, [1], samples=False)])
    assert bucket_of(graphs, silent) is None
    silent.scored = (ScoredRow(1, 0, [4], 0),)
    silent.logit_rows = np.array([0, 1], np.int32)
    assert bucket_of(graphs, silent) is None


def test_rows_that_see_more_blocks_than_a_graph_has_room_for_go_without(tiny, monkeypatch):
    monkeypatch.setattr("engine.backends.cuda.graphs.MOST_TABLE", 9)
    graphs = captured(tiny, 4)
    fits = [Work([0, 1, 2, 3], 60, [1]), Work([4, 5, 6], 40, [1])]
    assert bucket_of(graphs, make_batch(fits)) == 4  # seven, and two of the dummy
    assert bucket_of(graphs, make_batch([*fits, Work([7, 8], 17, [1])])) is None


def test_each_capture_is_told(tiny: tuple) -> None:
    told: list[tuple[int, int]] = []
    captured(tiny, 4, 1, 2, progress=lambda *each: told.append(each))
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_replays_over_growing_kv_say_what_steps_without_graphs_say(tiny: tuple) -> None:
    replaying, device = CPUDevice(), CPUDevice()
    with_graphs = on_stand_in(*tiny, 12, device=replaying, graphs=[1, 4])
    without = on_stand_in(*tiny, 12, device=device, graphs=False)
    answers = []
    for backend in (with_graphs, without):
        work = [Work(t, 0, p[:12]) for t, p in zip(TABLES, PROMPTS, strict=True)]
        tokens = step(backend, make_batch(work)).tokens
        said = [tokens]
        for length in range(12, 12 + 2 * BLOCK):  # into the third block
            tokens = step(backend, decode(tokens, length)).tokens
            said.append(tokens)
        answers.append(said)
    assert answers[0] == answers[1]
    assert replaying.trace.count("replay") == 2 * BLOCK
    assert device.trace.count("replay") == 0


def test_padding_writes_to_no_block_of_anybody(tiny: tuple) -> None:
    backend = on_stand_in(*tiny, 12, graphs=[4])
    pool = backend._parts.pool
    pool.keys.fill_(torch.nan)
    pool.keys[:, pool.dummy] = 0
    step(backend, make_batch([Work([3], 0, [5, 6])]))
    step(backend, make_batch([Work([3], 2, [7])]))
    written = ~pool.keys.isnan().all(dim=(-2, -1))  # [layers, blocks, BLOCK]
    expected = torch.zeros_like(written)
    expected[:, 3, :3] = True
    expected[:, pool.dummy] = True
    assert torch.equal(written, expected)
    assert pool.keys[0, pool.dummy].any(), "padding rows are computed"


def test_rows_of_one_step_are_looked_up_by_the_graph_of_the_next(tiny: tuple) -> None:
    """At depth 1 the host does not know the tokens that a graph decodes."""
    device = CPUDevice()
    flying, landed = on_stand_in(*tiny, 12, device=device), on_stand_in(*tiny, 12)
    work = [Work(t, 0, p[:12]) for t, p in zip(TABLES, PROMPTS, strict=True)]
    first = step(landed, make_batch(work)).tokens
    second = step(landed, decode(first, 12)).tokens
    third = step(landed, decode(second[::-1], 13))

    tickets = []
    for batch in (make_batch(work), decode([-1, -2, -3], 12), decode([-3, -2, -1], 13)):
        tickets.append(flying.submit(batch))
        flying.sample(tickets[-1], greedy_rows(3))
    assert device.trace.count("replay") == 2
    assert [flying.collect(ticket).tokens for ticket in tickets] == [first, second, third.tokens]
