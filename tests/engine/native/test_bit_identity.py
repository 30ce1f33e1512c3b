"""The native path gives the same logits to the last bit, whatever the batch and the threads."""

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from engine.backends.runners import TorchRunner
from engine.blocks import blocks_for
from engine.models.rope import rope_table
from engine.native.model import NativeModel
from tests.engine.backends.batches import Work, make_batch
from tests.engine.native.tiny import ISAS, int8_weights, library, native_model, poisoned, shaped

CONFIG = shaped(6, 2, 32, context_length=1024)
BLOCKS = 160


@pytest.fixture(params=ISAS)
def model(request):
    made = native_model(CONFIG, request.param)
    yield made
    made.close()


def prompts(seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    lengths = [1, 2, 7, 16, 17, 40, 64, 65, 150, 300, 3, 31]
    return [rng.integers(0, CONFIG.vocab, n).tolist() for n in lengths]


def tables(seed: int) -> list[list[int]]:
    ids = np.random.default_rng(seed).permutation(BLOCKS).tolist()
    return [[ids.pop() for _ in range(blocks_for(len(p)))] for p in prompts()]


def alone(model, kv_dtype: str) -> list[torch.Tensor]:
    found = []
    for prompt, table in zip(prompts(), tables(1), strict=True):
        cache = poisoned(CONFIG, BLOCKS, kv_dtype)
        batch = make_batch([Work(table, 0, prompt)])
        found.append(model.step(batch, batch.token_ids, cache.struct, 1)[0][0])
    return found


@pytest.mark.parametrize("kv_dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("chunk", [1, 7, 64, 1000])
def test_chunks_batches_and_threads_change_no_bit(model, kv_dtype, threads, chunk) -> None:
    expected = alone(model, kv_dtype)
    cache = poisoned(CONFIG, BLOCKS, kv_dtype)
    order = np.random.default_rng(chunk).permutation(len(prompts())).tolist()
    done = dict.fromkeys(order, 0)
    said = {}
    while done:
        work = []
        for i in done:
            rest = prompts()[i][done[i] : done[i] + chunk]
            work.append(Work(tables(2)[i], done[i], rest))
        batch = make_batch(work)
        logits, best = model.step(batch, batch.token_ids, cache.struct, threads)
        assert logits.argmax(dim=1).tolist() == best.tolist()
        for row, i in enumerate(list(done)):
            done[i] += len(work[row].tokens)
            if done[i] == len(prompts()[i]):
                said[i] = logits[row]
                del done[i]
    for i, logits in said.items():
        assert torch.equal(logits, expected[i]), f"prompt {i} of {len(prompts()[i])} tokens"


@pytest.mark.parametrize("kv_dtype", ["float32", "int8"])
def test_it_computes_what_torch_computes_with_the_same_int8_weights(model, kv_dtype) -> None:
    runner = TorchRunner(int8_weights(CONFIG), CONFIG, BLOCKS, kv_dtype)
    errors = []
    for prompt, table, logits in zip(prompts(), tables(1), alone(model, kv_dtype), strict=True):
        batch = make_batch([Work(table, 0, prompt)])
        expected = runner.run(batch, batch.token_ids).values[0]
        errors.append(float(torch.linalg.norm(logits - expected) / torch.linalg.norm(expected)))
    assert np.median(errors) < 1e-5
    # Where a number is nearly half-way, activations are rounded one up instead of one down: in a
    # model of 64 dimensions that shows.
    assert max(errors) < (1e-3 if kv_dtype == "float32" else 5e-2)


def varied(change):
    """The random weights, with each layer changed."""
    weights = int8_weights(CONFIG)
    return replace(weights, layers=tuple(map(change, weights.layers)))


def steep(layer):
    """Gates far below zero and above, biases, and norms of heads."""
    scales = layer.gate_up.scales.clone()
    scales[: CONFIG.ffn] *= 300
    random = torch.Generator().manual_seed(0)
    return replace(
        layer,
        gate_up=replace(layer.gate_up, scales=scales),
        qkv_bias=torch.randn(len(layer.qkv.scales), generator=random),
        attn_out_bias=torch.randn(CONFIG.hidden, generator=random),
        q_norm=torch.rand(CONFIG.head_dim, generator=random) + 0.5,
        k_norm=torch.rand(CONFIG.head_dim, generator=random) + 0.5,
    )


@pytest.mark.parametrize("isa", ISAS)
def test_steep_gates_biases_and_norms_of_heads_are_as_in_torch_in_any_batch(isa) -> None:
    native_model(CONFIG, isa).close()  # built and usable here, or skipped
    weights = varied(steep)
    model = NativeModel(library(), weights, CONFIG, rope_table(CONFIG), isa=isa)
    runner = TorchRunner(weights, CONFIG, BLOCKS, "float32")
    found = alone(model, "float32")
    for prompt, table, logits in zip(prompts(), tables(1), found, strict=True):
        batch = make_batch([Work(table, 0, prompt)])
        expected = runner.run(batch, batch.token_ids).values[0]
        assert torch.linalg.norm(logits - expected) < 1e-3 * torch.linalg.norm(expected)
    batch = make_batch([Work(t, 0, p) for t, p in zip(tables(2), prompts(), strict=True)])
    cache = poisoned(CONFIG, BLOCKS, "float32")
    together = model.step(batch, batch.token_ids, cache.struct, 1)[0]
    assert torch.equal(together, torch.stack(found))


@pytest.mark.parametrize("place", [0, 37, CONFIG.hidden - 1])
def test_one_activation_that_is_not_a_number_is_noticed(model, place) -> None:
    def change(layer):
        layer.ffn_norm[place] = torch.nan
        return layer

    broken = NativeModel(library(), varied(change), CONFIG, rope_table(CONFIG), isa=model.isa)
    cache = poisoned(CONFIG, BLOCKS, "int8")
    batch = make_batch([Work(tables(1)[i], 0, prompts()[i]) for i in (0, 5, 8)])
    assert broken.step(batch, batch.token_ids, cache.struct, 1)[1].tolist() == [-1, -1, -1]


def test_logits_that_are_not_numbers_are_noticed(model) -> None:
    cache = poisoned(CONFIG, BLOCKS, "float32")
    batch = make_batch([Work([3, 4], 20, [1])])  # what is before it was never written
    _, best = model.step(batch, batch.token_ids, cache.struct, 1)
    assert best.tolist() == [-1]


LIMITED = """
import sys
sys.path.insert(0, "tests")
from tests.engine.native.test_bit_identity import CONFIG, Work, make_batch, native_model, poisoned
batch = make_batch([Work([1, 2], 0, list(range(20)))])
model, cache = native_model(CONFIG), poisoned(CONFIG, 4, "int8")
print(model.step(batch, batch.token_ids, cache.struct, 2)[1].tolist())
"""


@pytest.mark.parametrize("limit", [{}, {"OMP_THREAD_LIMIT": "1"}])
def test_a_step_ends_although_fewer_threads_came_than_were_asked_for(limit) -> None:
    native_model(CONFIG).close()  # built, or skipped
    done = subprocess.run(
        [sys.executable, "-c", LIMITED],
        env={**os.environ, **limit},
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    )
    batch = make_batch([Work([1, 2], 0, list(range(20)))])
    cache = poisoned(CONFIG, 4, "int8")
    expected = native_model(CONFIG).step(batch, batch.token_ids, cache.struct, 1)[1].tolist()
    assert done.stdout.split("\n")[0] == str(expected)
