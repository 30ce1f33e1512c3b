"""Operations, in torch and in Triton, equal the CPU decoder's in every type of numbers."""

from collections.abc import Iterator
from importlib import import_module

import pytest
import torch
from support.cpu_device import CPUDevice
from torch import Tensor
from torch.nn import functional

from engine.backends.cuda.ops import FP8, FP8_MAX, Heads, Ops, TorchOps
from engine.models.rope import RopeTable, rotate

ROUNDING = {torch.float32: 1e-6, torch.bfloat16: 2**-8, FP8: 2**-4}
"""How far off, in parts of itself, a number may be that is rounded to the type once."""

every_type = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
every_pool = pytest.mark.parametrize("kept", list(ROUNDING), ids=str)


@pytest.fixture(params=["torch", "triton"])
def ops(request: pytest.FixtureRequest) -> Iterator[Ops]:
    """Either; kernels are interpreted."""
    if request.param == "torch":
        yield TorchOps()
        return
    pytest.importorskip("triton")
    with import_module("support.interpreter").interpreted():
        yield import_module("engine.backends.cuda.triton_ops").TritonOps()


@pytest.fixture
def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(7)


def normal(seeded: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=seeded)


def rope(seeded: torch.Generator, head_dim: int) -> RopeTable:
    angles = 9 * torch.rand((20, head_dim // 2), generator=seeded)
    return RopeTable(angles.cos(), angles.sin())


def assert_near(found: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    rounding = ROUNDING[dtype]
    torch.testing.assert_close(found.float(), expected, rtol=rounding, atol=rounding * 0.05)


@every_type
@pytest.mark.parametrize("hidden", [64, 100, 1000])
def test_the_norm_is_torchs(ops: Ops, seeded: torch.Generator, dtype: torch.dtype, hidden: int):
    x, weight = normal(seeded, 3, hidden).to(dtype), normal(seeded, hidden).to(dtype)
    found = ops.rms_norm(x, weight, 1e-5)
    assert found.dtype == dtype
    assert_near(found, functional.rms_norm(x.float(), (hidden,), weight.float(), 1e-5), dtype)


@every_type
def test_the_residual_is_added_in_place_and_normalised(
    ops: Ops, seeded: torch.Generator, dtype: torch.dtype
):
    x, residual = normal(seeded, 2, 5, 64).to(dtype)
    weight = normal(seeded, 64).to(dtype)
    expected = x.float() + residual.float()
    found = ops.add_rms_norm(x, residual, weight, 1e-5)
    assert_near(residual, expected, dtype)
    assert torch.equal(found, ops.rms_norm(residual, weight, 1e-5))


@every_type
@pytest.mark.parametrize("ffn", [32, 50, 1500])
def test_the_gate_lets_the_other_half_through(
    ops: Ops, seeded: torch.Generator, dtype: torch.dtype, ffn: int
):
    gate_up = (4 * normal(seeded, 3, 2 * ffn)).to(dtype)
    gate, up = gate_up.float().chunk(2, dim=-1)
    found = ops.silu_mul(gate_up)
    assert found.dtype == dtype
    assert_near(found, functional.silu(gate) * up, dtype)


@every_type
@every_pool
@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize(("many", "few", "dim"), [(6, 2, 16), (18, 9, 24)])
def test_heads_are_turned_and_kept_in_their_slots(
    ops: Ops,
    seeded: torch.Generator,
    dtype: torch.dtype,
    kept: torch.dtype,
    normalised: bool,
    many: int,
    few: int,
    dim: int,
):
    norms = (normal(seeded, dim), normal(seeded, dim)) if normalised else (None, None)
    heads = Heads(many, few, dim, *norms, 1e-5)
    qkv = normal(seeded, 3, (many + 2 * few) * dim).to(dtype)
    positions, slots = torch.tensor([0, 19, 7]), torch.tensor([5, 30, 11])
    table = rope(seeded, dim)
    keys, values = (torch.zeros(32, few, dim).to(kept) for _ in range(2))
    queries = ops.rotate_and_write(qkv, positions, slots, table, keys, values, heads)

    q, k, v = qkv.float().unflatten(1, (-1, dim)).split([many, few, few], dim=1)
    if normalised:
        q, k = (functional.rms_norm(x, (dim,), w, 1e-5) for x, w in zip((q, k), norms, strict=True))
    cos, sin = table.cos[positions].unsqueeze(1), table.sin[positions].unsqueeze(1)
    assert queries.dtype == dtype
    assert_near(queries, rotate(q, cos, sin), dtype)
    assert_near(keys.float()[slots], rotate(k, cos, sin), kept)
    assert_near(values.float()[slots], v, kept)
    others = torch.ones(32, dtype=torch.bool).index_fill_(0, slots, False)
    assert not keys.float()[others].any()
    assert not values.float()[others].any()


@every_pool
@pytest.mark.parametrize("slots", [[-1, 2, -1], [-1, -1, -1], [2, -1, 0]])
def test_nothing_is_written_for_a_slot_of_minus_one(
    ops: Ops, seeded: torch.Generator, kept: torch.dtype, slots: list[int]
):
    heads = Heads(1, 1, 16, None, None, 1e-5)
    keys, values = (torch.full((4, 1, 16), 3.0).to(kept) for _ in range(2))
    qkv = normal(seeded, 3, 48)
    given = torch.tensor(slots, dtype=torch.int32)
    ops.rotate_and_write(qkv, torch.arange(3), given, rope(seeded, 16), keys, values, heads)
    for pool in (keys, values):
        written = (pool.float() != 3.0).all(-1).flatten()
        assert written.tolist() == [slot in slots for slot in range(4)]


def test_no_operation_waits_for_the_device(ops: Ops, seeded: torch.Generator):
    heads = Heads(1, 1, 16, None, None, 1e-5)
    qkv, x, weight = normal(seeded, 3, 48), normal(seeded, 3, 48), normal(seeded, 48)
    keys, values = normal(seeded, 2, 4, 1, 16)
    table, slots = rope(seeded, 16), torch.tensor([-1, 2, -1])

    def everything() -> None:
        ops.rotate_and_write(qkv, torch.arange(3), slots, table, keys, values, heads)
        ops.add_rms_norm(ops.rms_norm(x, weight, 1e-5), x, weight, 1e-5)
        ops.silu_mul(x)

    CPUDevice().capture(everything).replay()


def test_a_pool_of_eight_bits_is_scaled_and_saturates_and_keeps_nan(ops: Ops):
    heads = Heads(1, 1, 4, None, None, 1e-5, k_scale=0.5, v_scale=4.0)
    still = RopeTable(torch.ones(1, 2), torch.zeros(1, 2))
    kept = [[-300.0, 1.0, 225.0, float("nan")], [4000.0, -8.0, float("nan"), 36.0]]
    qkv = torch.tensor([[0.0] * 4 + kept[0] + kept[1]])
    keys, values = (torch.zeros(1, 1, 4).to(FP8) for _ in range(2))
    zero = torch.tensor([0])
    ops.rotate_and_write(qkv, zero, zero, still, keys, values, heads)
    nan = float("nan")  # which takes along what it turns with
    expected = torch.tensor([[-FP8_MAX, nan, FP8_MAX, nan], [FP8_MAX, -2.0, nan, 9.0]])
    found = torch.stack([keys.float().flatten(), values.float().flatten()])
    assert torch.equal(found.isnan(), expected.isnan())
    assert torch.equal(found.nan_to_num(), expected.nan_to_num())


@every_pool
def test_blocks_move_with_all_their_layers_and_bits(
    ops: Ops, seeded: torch.Generator, kept: torch.dtype
):
    here = [normal(seeded, 2, 5, 16, 2, 4).to(kept) for _ in range(2)]
    there = [torch.zeros(2, 3, 16, 2, 4).to(kept) for _ in range(2)]
    sources, destinations = torch.tensor([4, 0]), torch.tensor([1, 2])
    ops.move_blocks(here, there, sources, destinations)
    for part, moved in zip(here, there, strict=True):
        assert torch.equal(moved.float()[:, [1, 2]], part.float()[:, [4, 0]])
        assert not moved.float()[:, 0].any()


def test_one_block_is_copied_to_several(ops: Ops, seeded: torch.Generator):
    part = normal(seeded, 3, 4, 16, 1, 4)
    before = part.clone()
    ops.move_blocks([part], [part], torch.tensor([2, 2]), torch.tensor([0, 3]))
    assert torch.equal(part, before[:, [2, 1, 2, 2]])


def test_rows_of_activations_may_lie_apart(ops: Ops, seeded: torch.Generator):
    wide = normal(seeded, 3, 96)
    x, weight = wide[:, 32:80], normal(seeded, 48)
    residual = normal(seeded, 3, 64)[:, :48]
    alone = residual.clone()
    assert torch.equal(ops.silu_mul(x), ops.silu_mul(x.clone()))
    assert torch.equal(ops.rms_norm(x, weight, 1e-5), ops.rms_norm(x.clone(), weight, 1e-5))
    found = ops.add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(found, ops.add_rms_norm(x.clone(), alone, weight, 1e-5))
    assert torch.equal(residual, alone)


def test_a_step_without_tokens_or_moves_is_legal(ops: Ops, seeded: torch.Generator):
    nothing, weight = torch.empty(0, 48), normal(seeded, 48)
    none = torch.empty(0, dtype=torch.int64)
    assert ops.rms_norm(nothing, weight, 1e-5).shape == (0, 48)
    assert ops.silu_mul(nothing).shape == (0, 24)
    part = normal(seeded, 2, 3, 16)
    before = part.clone()
    ops.move_blocks([part], [part], none, none)
    assert torch.equal(part, before)


def test_parts_that_are_not_alike_share_no_launch(seeded: torch.Generator):
    pytest.importorskip("triton")
    from engine.backends.cuda.triton_ops import TritonOps

    parts = [normal(seeded, 2, 3, 16), normal(seeded, 2, 3, 8)]
    one = torch.tensor([0])
    with pytest.raises(ValueError, match="differ"):
        TritonOps().move_blocks(parts, parts, one, one + 1)
