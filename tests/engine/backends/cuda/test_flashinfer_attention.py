"""Attention through FlashInfer's wrappers, on their stand-in, equals the float64 reference."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.cpu_device import CPUDevice
from support.flashinfer_stub import Plan, flashinfer_stub

from engine.backends.cuda.attention import FlashInferAttention
from engine.backends.cuda.split import PagedRows, Split, split
from engine.backends.cuda.wrappers import WORKSPACE_BYTES, Scales, Shape, bytes_needed
from engine.batch import BLOCK
from tests.engine.backends.batches import Work, make_batch
from tests.engine.backends.cuda.attended import (
    BLOCKS,
    assert_close,
    attended,
    batch_of,
    random_batch,
)


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_random_batches(seed: int, mixed: bool):
    rng = np.random.default_rng(seed)
    window = int(rng.integers(1, 50)) if seed % 2 else None
    group = int(rng.choice([1, 2, 3, 4, 8]))
    house = attended(seed, group, windows=(window,), mixed=mixed)
    batch = random_batch(rng)
    queries = house.queries(batch.tokens, seed)
    house.poison(batch, window)
    expected = house.expected(batch, queries, window)
    assert_close(house.step(batch, queries, window), expected)


@pytest.mark.parametrize("kv_len", [1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK])
def test_rows_at_and_around_the_borders_of_blocks(kv_len: int):
    house = attended()
    batch = batch_of(np.random.default_rng(0), (kv_len, 1), (kv_len, kv_len), (kv_len, 1))
    queries = house.queries(batch.tokens)
    house.poison(batch)
    assert_close(house.step(batch, queries), house.expected(batch, queries))


@pytest.mark.parametrize("window", [1, 2, 15, 16, 17, 500])
def test_a_window_counts_the_query_itself(window: int):
    house = attended(windows=(window,))
    batch = batch_of(np.random.default_rng(1), (60, 1), (5, 1), (70, 30), (33, 33))
    queries = house.queries(batch.tokens)
    house.poison(batch, window)
    assert_close(house.step(batch, queries, window), house.expected(batch, queries, window))


def test_layers_of_different_windows_are_planned_once_a_step_each():
    windows = (None, 9)
    house = attended(layers=4, windows=windows)
    batch = batch_of(np.random.default_rng(2), (40, 1), (50, 20))
    queries = house.queries(batch.tokens)
    house.attention.plan(split(batch))
    for layer in range(4):
        window = windows[layer % 2]
        found = house.attention.run(layer, queries, window).numpy()
        assert_close(found, house.expected(batch, queries, window, layer))
    assert house.names("plan") == ["Decode"] * 2 + ["Prefill"] * 2
    assert house.names("run") == ["Decode", "Prefill"] * 4


def test_the_arrays_of_a_step_are_copied_once_for_all_windows():
    house = attended(windows=(None, 9, 20))
    batch = batch_of(np.random.default_rng(2), (40, 1), (50, 20))
    house.attention.plan(split(batch))
    assert house.device.trace.count("upload") == 2
    assert house.device.trace.count("pinned") == 6


@pytest.mark.parametrize(
    ("rows", "planned"),
    [
        ([(40, 1), (7, 1)], ["Decode"]),
        ([(40, 12)], ["Prefill"]),
        ([(40, 1), (40, 12)], ["Decode", "Prefill"]),
        ([], []),
    ],
)
def test_a_part_without_rows_is_neither_planned_nor_run(
    rows: list[tuple[int, int]], planned: list[str]
):
    house = attended()
    batch = batch_of(np.random.default_rng(3), *rows)
    found = house.step(batch, house.queries(batch.tokens))
    assert len(found) == batch.tokens
    assert house.names("plan") == house.names("run") == planned


def test_a_part_that_a_step_lacks_is_not_run_from_the_step_before():
    house = attended()
    rng = np.random.default_rng(4)
    for rows in ([(40, 1), (40, 12)], [(30, 1)], [(20, 9)], []):
        batch = batch_of(rng, *rows)
        queries = house.queries(batch.tokens)
        assert_close(house.step(batch, queries), house.expected(batch, queries))


def test_mixed_and_split_paths_say_the_same():
    batch = random_batch(np.random.default_rng(5))
    split_up, mixed = attended(5), attended(5, mixed=True)
    queries = split_up.queries(batch.tokens)
    assert_close(split_up.step(batch, queries), mixed.step(batch, queries))
    assert "Decode" in split_up.names("plan")
    assert set(mixed.names("plan")) == {"Prefill"}


def test_chunks_of_a_prompt_are_the_prompt_and_a_decode_is_one_token_more():
    house = attended()
    table, queries = [5, 9, 2, 40], house.queries(61)
    whole = house.step(make_batch([Work(table, 0, [0] * 61)]), queries)
    parts = [
        house.step(make_batch([Work(table, first, [0] * (after - first))]), queries[first:after])
        for first, after in ((0, 20), (20, 33), (33, 60), (60, 61))
    ]
    assert_close(np.concatenate(parts), whole)


def test_renumbered_blocks_change_nothing():
    rng = np.random.default_rng(6)
    house = attended()
    batch = random_batch(rng)
    queries = house.queries(batch.tokens)
    before = house.step(batch, queries)
    numbers = rng.permutation(BLOCKS)
    for pool in (house.keys, house.values):
        pool[:, numbers] = pool[:, :BLOCKS].clone()
    renumbered = replace(batch, kv_indices=numbers[batch.kv_indices].astype(np.int32))
    np.testing.assert_array_equal(house.step(renumbered, queries), before)


def test_the_order_of_rows_changes_nothing():
    house = attended()
    work = [Work([3, 8], 19, [0]), Work([4], 6, [0]), Work([7, 1, 2], 36, [0])]
    queries = house.queries(3)
    there = house.step(make_batch(work), queries)
    back = house.step(make_batch(work[::-1]), queries.flip(0))
    np.testing.assert_array_equal(back[::-1], there)


def test_rows_that_share_blocks():
    house = attended()
    batch = make_batch([Work([3, 8, 5], 40, [0]), Work([3, 8, 6], 33, [0] * 9)])
    queries = house.queries(batch.tokens)
    assert_close(house.step(batch, queries), house.expected(batch, queries))


def test_the_arrays_of_a_batch_may_change_once_it_is_planned():
    house = attended()
    batch = random_batch(np.random.default_rng(7))
    queries = house.queries(batch.tokens)
    expected = house.expected(batch, queries)
    house.attention.plan(split(batch))
    for array in (batch.qo_indptr, batch.kv_indptr, batch.kv_indices, batch.last_page_len):
        array[:] = 1
    assert_close(house.attention.run(0, queries, None).numpy(), expected)
    house.device.check()


def test_a_wrapper_awaits_the_copy_of_its_last_plan_and_of_nothing_later():
    house = attended()
    batch = batch_of(np.random.default_rng(8), (40, 1))
    house.step(batch, house.queries(1))
    house.device.upload(np.zeros(1))  # what the device is busy with while the next is planned
    house.attention.plan(split(batch))
    arrays = ["pinned", "pinned", "upload", "pinned"]
    planned = [*arrays, "await", "plan", "record"]
    assert house.device.trace == [*planned, "upload", *planned]
    assert house.device.reached == len(planned)


@pytest.mark.parametrize(("dtype", "scales"), [("float8", (0.5, 2.0)), ("bfloat16", None)])
def test_caches_of_less_precision(dtype: str, scales: tuple[float, float] | None):
    kept = {"float8": torch.float8_e4m3fn, "bfloat16": torch.bfloat16}[dtype]
    house = attended(group=4)
    pools = [(house.keys[0].to(kept), house.values[0].to(kept))]
    k_scale, v_scale = scales or (1.0, 1.0)
    house.keys[0] = pools[0][0].float() * k_scale
    house.values[0] = pools[0][1].float() * v_scale
    attention = FlashInferAttention(
        house.flashinfer, house.device, pools, 8, scales=scales and Scales(*scales)
    )
    batch = random_batch(np.random.default_rng(9))
    queries = house.queries(batch.tokens).bfloat16()
    attention.plan(split(batch))
    found = attention.run(0, queries, None)
    assert found.dtype == torch.bfloat16
    expected = house.expected(batch, queries.float())
    np.testing.assert_allclose(found.float().numpy(), expected, rtol=1e-2, atol=1e-2)


def test_a_row_of_more_queries_than_kv_is_refused():
    one = np.array([0, 1], np.int32)
    rows = PagedRows(np.array([0, 5], np.int32), one, one[:1], np.array([4], np.int32))
    with pytest.raises(ValueError, match="more queries than KV"):
        attended().attention.plan(Split(None, rows, 0))


def test_other_queries_than_were_planned_are_refused():
    house = attended()
    with pytest.raises(ValueError, match="2 queries, where 0 were planned"):
        house.attention.run(0, house.queries(2), None)


def test_heads_that_do_not_share_kv_heads_evenly_are_refused():
    device = CPUDevice()
    pool = torch.zeros(2, BLOCK, 2, 16)
    with pytest.raises(ValueError, match="5 heads do not share 2 KV heads"):
        FlashInferAttention(flashinfer_stub(device), device, [(pool, pool)], 5)


def test_the_workspace_is_as_large_as_flashinfer_recommends_and_zero():
    house = attended(workspace_bytes=WORKSPACE_BYTES)
    made = [call.kwargs for call in house.flashinfer.calls]
    (workspace,) = {id(kwargs["float_workspace_buffer"]): kwargs for kwargs in made}.values()
    assert workspace["float_workspace_buffer"].numel() == 128 << 20
    assert not workspace["float_workspace_buffer"].any()


SHAPES = {
    "SmolLM2-135M": (9, 3, 64),
    "Llama-3.2-1B": (32, 8, 64),
    "Llama-3.1-8B": (32, 8, 128),
    "Llama-3.1-70B, a rank of 8": (8, 1, 128),
    "Qwen3-32B": (64, 8, 128),
    "Qwen2.5-7B": (28, 4, 128),
    "multi-query": (32, 1, 128),
}


@pytest.mark.parametrize("model", SHAPES)
@pytest.mark.parametrize("most_rows", [256, 512])
def test_the_workspace_holds_whatever_is_planned(model: str, most_rows: int):
    shape = Shape(*SHAPES[model], torch.bfloat16, torch.bfloat16)
    room = bytes_needed(shape, most_rows, 132)
    for rows in (1, 7, 64, most_rows):
        for count in (1, 20, 300, 2048):
            for kv_len in (1, 16, 3000, 100_000):
                plan = _plan_of(shape, rows, count, max(count, kv_len))
                assert plan.float_bytes(graph=False) <= room
            if count == 1:
                assert plan.float_bytes(graph=True) <= room


def _plan_of(shape: Shape, rows: int, count: int, kv_len: int) -> Plan:
    counts, kv_lens = np.full(rows, count), np.full(rows, kv_len)
    heads = shape.heads, shape.kv_heads, shape.head_dim
    return Plan(counts, kv_lens, *heads, BLOCK, -1, shape.dtype, shape.kv_dtype)
