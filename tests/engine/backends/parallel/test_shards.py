"""What is kept of each tensor, and which models can be dealt to how many."""

from dataclasses import replace

import pytest
import torch

from engine.backends.parallel.shards import Fingerprint, Shard
from engine.errors import UnfitShards
from engine.models.shapes import expected_shapes
from tests.engine.models.tiny_llama import CONFIG

BIASED = replace(CONFIG, attention_bias=True, output_bias=True, qk_norm=True, tied_head=False)


def tensor(name: str) -> torch.Tensor:
    return torch.arange(torch.Size(expected_shapes(BIASED)[name]).numel()).reshape(
        expected_shapes(BIASED)[name]
    )


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("name", [name for name in expected_shapes(BIASED) if "blk.1" not in name])
def test_what_a_rank_keeps_has_the_shape_of_its_own_decoder(name: str, world: int):
    for rank in range(world):
        shard = Shard(BIASED, rank, world)
        expected = expected_shapes(shard.config)[name]
        if name == "output.weight":
            expected = (BIASED.vocab // world, BIASED.hidden)
        assert tuple(shard.cut(name, tensor(name)).shape) == expected


@pytest.mark.parametrize(
    ("name", "dim"),
    [
        ("blk.0.attn_q.weight", 0),
        ("blk.0.attn_k.bias", 0),
        ("blk.0.attn_output.weight", 1),
        ("blk.0.ffn_up.weight", 0),
        ("blk.0.ffn_down.weight", 1),
        ("output.weight", 0),
    ],
)
def test_all_parts_together_are_the_tensor(name: str, dim: int):
    parts = [Shard(BIASED, rank, 2).cut(name, tensor(name)) for rank in range(2)]
    assert torch.equal(torch.cat(parts, dim), tensor(name))


def test_a_part_keeps_no_memory_of_the_whole():
    whole = torch.zeros(expected_shapes(BIASED)["blk.0.ffn_down.weight"])
    part = Shard(BIASED, 1, 2).cut("blk.0.ffn_down.weight", whole)
    assert part.untyped_storage().nbytes() == whole.untyped_storage().nbytes() // 2


def test_ranks_that_share_a_kv_head_have_the_same_one_and_the_heads_that_read_it():
    def kept(name: str) -> list[torch.Tensor]:
        return [Shard(BIASED, rank, 4).cut(name, tensor(name)) for rank in range(4)]

    k = kept("blk.0.attn_k.weight")
    assert torch.equal(k[0], k[1])
    assert torch.equal(k[2], k[3])
    assert torch.equal(torch.cat(k[::2]), tensor("blk.0.attn_k.weight"))
    assert torch.equal(torch.cat(kept("blk.0.attn_q.weight")), tensor("blk.0.attn_q.weight"))


def test_a_vocabulary_that_cannot_be_divided_ends_in_zeros():
    config = replace(CONFIG, vocab=7)
    head = torch.ones(7, CONFIG.hidden)
    parts = [Shard(config, rank, 2).vocabulary(head) for rank in range(2)]
    assert [len(part) for part in parts] == [4, 4]
    assert torch.equal(torch.cat(parts)[:7], head)
    assert not parts[1][3].any()


def test_a_vocabulary_smaller_than_the_padding_of_all_ranks_is_dealt_too():
    config = replace(CONFIG, vocab=5)
    head = torch.ones(5, CONFIG.hidden)
    parts = [Shard(config, rank, 4).vocabulary(head) for rank in range(4)]
    assert [int(part[:, 0].sum()) for part in parts] == [2, 2, 1, 0]


@pytest.mark.parametrize(
    ("changes", "world", "why"),
    [
        ({}, 3, "4 attention heads cannot be dealt evenly to each of 3 ranks"),
        ({"heads": 6, "kv_heads": 6}, 4, "6 attention heads cannot be dealt evenly"),
        ({"heads": 12, "kv_heads": 6, "ffn": 96}, 4, "6 KV heads can neither be dealt nor"),
        ({"ffn": 98}, 4, "an MLP of width 98 cannot be cut evenly for each of 4 ranks"),
    ],
)
def test_a_model_that_cannot_be_dealt_is_refused_with_its_numbers(changes, world, why):
    with pytest.raises(UnfitShards, match=why):
        Shard(replace(CONFIG, **changes), 0, world)


def test_the_refusal_says_how_many_ranks_there_may_be():
    with pytest.raises(UnfitShards, match=r"it may be 1, 2, 4$"):
        Shard(CONFIG, 0, 3)


def test_models_of_one_shape_have_other_fingerprints():
    def of(*tensors: torch.Tensor) -> str:
        fingerprint = Fingerprint()
        for each in tensors:
            fingerprint.add("output_norm.weight", each)
        return str(fingerprint)

    one = torch.arange(1000.0).reshape(10, 100)
    assert of(one, one) == of(one.clone(), one)
    assert of(one) != of(one * 1.01)
    assert of(one) != of(one.T)
