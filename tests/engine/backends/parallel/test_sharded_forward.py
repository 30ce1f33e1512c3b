"""A model that is dealt to several ranks computes what one process computes."""

from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import torch
from support.ranks import together

from engine.backends.parallel.group import Group
from engine.backends.parallel.matrices import GatheredMatrix, ReducedMatrix, joined
from engine.backends.parallel.shards import Shard
from engine.backends.runners import TorchRunner
from engine.models.files import load_weights, read_config
from tests.engine.backends.batches import Work, make_batch
from tests.engine.models.tiny_models import KINDS, VOCAB, random_model, write_twin

PROMPT = np.random.default_rng(0).integers(0, VOCAB, 70).tolist()
OTHER = np.random.default_rng(1).integers(0, VOCAB, 5).tolist()
BLOCKS = 12

STEPS = [
    make_batch([Work([3, 9, 1], 0, PROMPT[:40]), Work([5], 0, OTHER[:4])]),
    make_batch([Work([3, 9, 1, 0, 7], 40, PROMPT[40:69]), Work([5], 4, OTHER[4:])]),
    make_batch([Work([3, 9, 1, 0, 7], 69, PROMPT[69:])]),
]
"""Chunks, and decodes beside them."""


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory):
    """The folder of a model of a kind, made once."""

    @lru_cache
    def save(kind: str) -> Path:
        folder = tmp_path_factory.mktemp("parallel") / "folder"
        random_model(kind).save_pretrained(folder)
        return folder

    return save


def logits(runner: TorchRunner) -> list[np.ndarray]:
    return [runner.run(step, step.token_ids).values.numpy() for step in STEPS]


def alone(path: Path) -> list[np.ndarray]:
    config = read_config(path)
    return logits(TorchRunner(load_weights(path, config), config, BLOCKS))


def runner(path: Path, rank: int, world: int, group: Group) -> TorchRunner:
    shard = Shard(read_config(path), rank, world)
    weights = joined(load_weights(path, shard.whole, cut=shard.cut), shard, group)
    return TorchRunner(weights, shard.config, BLOCKS)


def dealt(path: Path, world: int) -> list[list[np.ndarray]]:
    """The logits of each rank."""

    def work(rank: int, group: Group) -> list[np.ndarray]:
        return logits(runner(path, rank, world, group))

    return together(world, work)


# Two KV heads: four ranks share them in pairs.
IN_FOUR = ("llama", "qwen2", "qwen3 mixed windows")
CASES = [*((kind, 2) for kind in KINDS), *((kind, 4) for kind in IN_FOUR)]


@pytest.mark.parametrize(("kind", "world"), CASES)
def test_every_rank_has_the_logits_of_one_process(saved, kind: str, world: int):
    path = saved(kind)
    expected, ranks = alone(path), dealt(path, world)
    for found in ranks:
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)
    for found in ranks[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(found, ranks[0], strict=True))


def test_a_gguf_file_is_dealt_like_a_folder(tmp_path: Path):
    write_twin(tmp_path / "twin.gguf", random_model("llama"))
    expected, (found, _) = alone(tmp_path / "twin.gguf"), dealt(tmp_path / "twin.gguf", 2)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


def test_the_bias_of_a_reduced_product_is_added_once():
    x, matrix, bias = torch.randn(3, 8), torch.randn(5, 8), torch.randn(5)

    def work(rank: int, group: Group) -> torch.Tensor:
        mine = slice(4 * rank, 4 * rank + 4)
        return ReducedMatrix(matrix[:, mine], group).multiply(x[:, mine].contiguous(), bias)

    for found in together(2, work):
        torch.testing.assert_close(found, x @ matrix.T + bias)


def test_gathered_outputs_are_in_the_order_of_ranks_without_their_padding():
    x, matrix, bias = torch.randn(3, 8), torch.randn(5, 8), torch.randn(5)
    padded = torch.cat((matrix, torch.zeros(1, 8)))

    def work(rank: int, group: Group) -> torch.Tensor:
        return GatheredMatrix(padded[3 * rank : 3 * rank + 3], 5, group).multiply(x, bias)

    for found in together(2, work):
        torch.testing.assert_close(found, x @ matrix.T + bias)
        assert found.is_contiguous()


def test_a_step_that_asks_for_no_logits_gathers_none(saved):
    path = saved("llama")
    config = read_config(path)
    step = make_batch([Work([0, 1, 2], 0, PROMPT[:40], samples=False)])

    def work(rank: int, group: Group) -> torch.Size:
        return runner(path, rank, 2, group).run(step, step.token_ids).values.shape

    assert together(2, work) == [(0, config.vocab)] * 2


def test_a_rank_holds_its_part_of_the_layers_alone(saved):
    path = saved("qwen3")
    whole = load_weights(path, read_config(path)).layers[0]
    kept = [whole.qkv, whole.attn_out, whole.gate_up, whole.down]
    for rank in range(2):
        shard = Shard(read_config(path), rank, 2)
        layer = load_weights(path, shard.whole, cut=shard.cut).layers[0]
        held = [layer.qkv, layer.attn_out, layer.gate_up, layer.down]
        for part, all_of_it in zip(held, kept, strict=True):
            sizes = [matrix.untyped_storage().nbytes() for matrix in (part, all_of_it)]
            assert 2 * sizes[0] == sizes[1]
