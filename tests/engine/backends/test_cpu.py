"""The CPU backend as a Backend: tickets, block copies, results in flight, faults."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.backends.cpu import CPUBackend, create, on_torch
from engine.backends.kv_cache import FORMATS
from engine.batch import BLOCK, Batch
from engine.capacity import KV_DTYPES
from engine.controls import RowControls, Sampled, SampleRow
from engine.errors import ModelError, RowFault, TooLittleMemory, TooMuchMemory
from engine.models.config import ModelConfig
from engine.models.gguf import load_weights, read_config
from engine.models.weights import Weights
from tests.engine.backends.batches import Work, greedy_rows, make_batch
from tests.engine.backends.caches import poison
from tests.engine.models.tiny_llama import CONFIG, random_tensors, write_gguf

PROMPT = [int(t) for t in np.random.default_rng(0).integers(0, CONFIG.vocab, 40)]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_gguf(path, random_tensors())
    return path


@pytest.fixture(scope="module")
def model(path: Path) -> tuple[Weights, ModelConfig]:
    config = read_config(path)
    return load_weights(path, config), config


@pytest.fixture
def backend_of(model: tuple[Weights, ModelConfig]) -> Callable[[int], CPUBackend]:
    """Makes a backend of so many blocks, every slot of which is NaN until it is written."""

    def make(blocks: int) -> CPUBackend:
        backend = on_torch(*model, blocks)
        poison(backend.cache.parts)
        return backend

    return make


def step(backend: CPUBackend, batch: Batch, controls: RowControls | None = None) -> Sampled:
    ticket = backend.submit(batch)
    backend.sample(ticket, greedy_rows(len(batch.sample_rows), controls))
    return backend.collect(ticket)


def generate(backend: CPUBackend, table: list[int], count: int) -> list[int]:
    """`count` greedy tokens after PROMPT."""
    tokens = list(PROMPT)
    for _ in range(count):
        start = 0 if len(tokens) == len(PROMPT) else len(tokens) - 1
        tokens += step(backend, make_batch([Work(table, start, tokens[start:])])).tokens
    return tokens[len(PROMPT) :]


def test_tokens_do_not_depend_on_which_blocks_hold_them(backend_of):
    assert generate(backend_of(4), [0, 1, 2, 3], 8) == generate(backend_of(9), [8, 2, 5, 0], 8)


def test_a_row_without_a_sample_returns_nothing_and_fills_the_cache(backend_of):
    backend = backend_of(3)
    first = step(backend, make_batch([Work([0, 1, 2], 0, PROMPT[:30], samples=False)]))
    second = step(backend, make_batch([Work([0, 1, 2], 30, PROMPT[30:])]))
    whole = step(backend_of(3), make_batch([Work([0, 1, 2], 0, PROMPT)]))
    assert first == Sampled([], [])
    assert second.tokens == whole.tokens


def test_results_come_in_the_order_of_the_sampled_rows(backend_of):
    backend = backend_of(12)
    work = [
        Work([0, 1, 2], 0, PROMPT),
        Work([3, 4, 5], 0, PROMPT[:7], samples=False),
        Work([6, 7, 8], 0, PROMPT[:20]),
    ]
    alone = [step(backend_of(12), make_batch([w])).tokens[0] for w in (work[0], work[2])]
    assert step(backend, make_batch(work)).tokens == alone


def test_copied_blocks_are_copied_before_anything_is_written(backend_of):
    backend = backend_of(6)
    step(backend, make_batch([Work([0, 1, 2], 0, PROMPT)]))
    fork = Work([0, 1, 5], len(PROMPT), [7])  # block 2 holds positions 32 to 39
    batch = make_batch([fork, Work([0, 1, 2], len(PROMPT), [9])], copies=[(2, 5)])
    forked = step(backend, batch).tokens
    for token, expected in zip([7, 9], forked, strict=True):
        again = make_batch([Work([3, 4, 5], 0, [*PROMPT, token])])
        assert step(backend_of(6), again).tokens == [expected]


def test_a_copy_leaves_its_source_as_it_was(backend_of):
    backend = backend_of(6)
    step(backend, make_batch([Work([0, 1, 2], 0, PROMPT)]))
    (keys,) = backend.cache.keys
    before = keys[:, 2, :8].clone()
    step(backend, make_batch([Work([0, 1, 5], 38, [1, 2])], copies=[(2, 5)]))
    assert torch.equal(keys[:, 2, :8], before)
    assert torch.equal(keys[:, 5, :6], before[:, :6])
    assert not torch.equal(keys[:, 5, 6:8], before[:, 6:8])


def test_a_token_in_flight_is_the_result_of_the_step_before(backend_of):
    backend, table = backend_of(8), [0, 1, 2]
    other = Work([4, 5], 0, PROMPT[:20])
    first = backend.submit(make_batch([other, Work(table, 0, PROMPT)]))
    backend.sample(first, greedy_rows(2))
    second = backend.submit(make_batch([Work(table, len(PROMPT), [-2])]))  # sample row 1
    one = backend.collect(first).tokens[1]
    backend.sample(second, greedy_rows(1))
    assert [one, *backend.collect(second).tokens] == generate(backend_of(3), table, 2)


def test_each_row_is_sampled_under_its_own_controls(backend_of):
    backend = backend_of(6)
    ticket = backend.submit(make_batch([Work([0, 1, 2], 0, PROMPT), Work([3, 4, 5], 0, PROMPT)]))
    forced = RowControls(temperature=0, logit_bias={11: 100.0}, logprobs=1)
    rows = [SampleRow(controls, 0, 40, PROMPT, 40) for controls in (RowControls(), forced)]
    backend.sample(ticket, rows)
    result = backend.collect(ticket)
    assert result.tokens[1] == 11
    assert result.logprobs[0] is None
    assert result.logprobs[1] is not None


def test_a_fault_names_rows_of_the_batch_and_not_of_the_samples(backend_of):
    backend = backend_of(6)
    step(backend, make_batch([Work([3], 0, [5])]))
    backend.cache.values[0][0, 3, 0] = torch.nan
    batch = make_batch(
        [
            Work([0, 1, 2], 0, PROMPT[:9], samples=False),
            Work([4], 0, [1]),
            Work([3], 1, [6]),
        ]
    )
    with pytest.raises(RowFault, match="NaN") as caught:
        step(backend, batch)
    assert caught.value.rows == (2,)


@pytest.mark.parametrize("kv_dtype", FORMATS)
def test_blocks_that_were_put_away_and_brought_back_say_the_same(model, kv_dtype: str):
    def fresh() -> CPUBackend:
        backend = on_torch(*model, 6, kv_dtype=kv_dtype, host_blocks=4)
        poison(backend.cache.parts)
        return backend

    stayed, moved = fresh(), fresh()
    for backend in (stayed, moved):
        step(backend, make_batch([Work([0, 1, 2], 0, PROMPT)]))
    away = make_batch([Work([0], 0, PROMPT[:9])], offloads=[(0, 2), (1, 0), (2, 3)])
    step(moved, away)  # which takes block 0 at once
    controls = RowControls(temperature=0, logprobs=5)
    onward = make_batch([Work([0, 1, 2], 40, [7])])
    back = make_batch([Work([4, 5, 1], 40, [7])], restores=[(2, 4), (0, 5), (3, 1)])
    assert step(moved, back, controls) == step(stayed, onward, controls)


@pytest.mark.parametrize("kv_dtype", FORMATS)
def test_memory_is_cut_into_whole_blocks(path: Path, kv_dtype: str):
    block = BLOCK * read_config(path).kv_bytes_per_token(KV_DTYPES[kv_dtype])
    backend = create(
        path, kv_memory_bytes=3 * block + 1, kv_dtype=kv_dtype, offload_memory_bytes=3 * block - 1
    )
    assert (backend.total_blocks, backend.host_blocks) == (3, 2)


@pytest.mark.parametrize("kv_dtype", FORMATS)
def test_memory_for_less_than_one_block_is_refused(path: Path, kv_dtype: str):
    block = BLOCK * read_config(path).kv_bytes_per_token(KV_DTYPES[kv_dtype])
    says = f"{block - 1} bytes do not hold one block of this model, {block} bytes in {kv_dtype}"
    for sizes in ((block - 1, block), (block, block - 1)):
        with pytest.raises(TooLittleMemory, match=says) as caught:
            create(
                path,
                kv_memory_bytes=sizes[0],
                offload_memory_bytes=sizes[1],
                kv_dtype=kv_dtype,
            )
        assert caught.value.knob == ("kv_memory" if sizes[0] < block else "offload_memory")


@pytest.mark.parametrize("knob", ["kv_memory", "offload_memory"])
def test_more_memory_than_there_is_is_refused(path: Path, knob: str):
    sizes = {"kv_memory_bytes": 1 << 20, f"{knob}_bytes": 1 << 60}
    with pytest.raises(TooMuchMemory, match=r"^1152921504606846976 bytes are more than") as caught:
        create(path, **sizes)
    assert caught.value.knob == knob


def test_without_offload_memory_nothing_is_put_away(path: Path):
    backend = create(path, kv_memory_bytes=1 << 20)
    assert (backend.host_blocks, backend.move_seconds) == (0, 0)


def test_threads_are_set_for_torch(path: Path):
    before = torch.get_num_threads()
    try:
        create(path, kv_memory_bytes=1 << 20, threads=before + 1)
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)


def test_a_model_that_is_not_there_is_a_model_error(tmp_path: Path):
    with pytest.raises(ModelError, match=r"nowhere\.gguf"):
        create(tmp_path / "nowhere.gguf")


def test_a_closed_backend_holds_no_blocks(backend_of):
    backend = backend_of(3)
    backend.close()
    assert backend.total_blocks == 0
