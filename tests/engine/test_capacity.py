"""The arithmetic of capacity against published figures, and against the engine's own."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.capacity import (
    KV_DTYPES,
    WEIGHT_BYTES,
    Device,
    ModelShape,
    Weights,
    capacity,
    decode,
    held,
    pool,
    reserved,
    together,
)
from engine.models.config import ModelConfig
from engine.models.shapes import expected_shapes
from engine.presets import GPUS, MODELS, DenseModel

MIB, GIB = 2**20, 2**30
LLAMA = ModelShape(None, layers=32, kv_heads=8, head_dim=128)

# Parameters in the safetensors of each model at huggingface.co; of Qwen3-0.6B, whose file has the
# tied head a second time, without that copy.
PUBLISHED = {
    "llama-2-7b": 6_738_415_616,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "mistral-7b": 7_248_023_552,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-32b": 32_763_876_352,
    "qwen3-0.6b": 596_049_920,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "smollm2-135m": 134_515_008,
    "smollm2-1.7b": 1_711_376_384,
}


def test_four_requests_of_a_llama_hold_what_paper_and_pencil_say() -> None:
    answer = capacity(LLAMA, KV_DTYPES["float16"], lengths=(3900, 420, 2100, 70), maximum=4096)
    assert answer.bytes_per_token == 131_072
    assert [request.blocks for request in answer.requests] == [244, 27, 132, 5]
    assert [request.allocated_bytes for request in answer.requests] == [
        488 * MIB,
        54 * MIB,
        264 * MIB,
        10 * MIB,
    ]
    assert answer.total is not None
    assert answer.total.blocks == 408
    assert answer.total.allocated_bytes == 816 * MIB
    assert answer.total.live_bytes == 811.25 * MIB
    assert answer.total.tail_bytes == 4.75 * MIB
    assert answer.reserved is not None
    assert answer.reserved.bytes == 2 * GIB
    assert answer.reserved.wasted_bytes == 2 * GIB - 811.25 * MIB


def test_a_llama_on_an_h200_decodes_no_faster_than_its_weights_are_read() -> None:
    llama = MODELS["llama-3.1-8b"].shape("llama-3.1-8b")
    weights = Weights.of(PUBLISHED["llama-3.1-8b"], "bfloat16")
    answer = capacity(llama, KV_DTYPES["bfloat16"], device=GPUS["h200"], weights=weights)
    assert weights.bytes / 1e9 == pytest.approx(16, rel=0.01)
    assert answer.decode is not None
    assert answer.decode.floor_s * 1000 == pytest.approx(3.3, abs=0.05)
    assert answer.decode.compute_bound_from == pytest.approx(200, rel=0.05)


def test_int8_has_a_scale_for_k_and_for_v_of_each_token_and_head() -> None:
    smollm = MODELS["smollm2-135m"].shape("smollm2-135m")
    assert smollm.kv_bytes_per_token(KV_DTYPES["int8"]) == 2 * 30 * 3 * (64 + 4)
    assert smollm.kv_bytes_per_token(KV_DTYPES["fp8"]) == 2 * 30 * 3 * 64


@given(
    tokens=st.lists(st.integers(1, 100_000), min_size=1, max_size=20),
    token_bytes=st.integers(1, 10**6),
)
def test_allocated_is_live_and_tail_and_no_tail_has_a_whole_block(
    tokens: list[int], token_bytes: int
) -> None:
    requests = [held(count, token_bytes) for count in tokens]
    for request in requests:
        assert request.allocated_bytes == request.live_bytes + request.tail_bytes
        assert 0 <= request.tail_bytes <= 15 * token_bytes
    total = together(requests)
    assert total.allocated_bytes == total.live_bytes + total.tail_bytes
    assert total.blocks == sum(math.ceil(count / 16) for count in tokens)
    kept = reserved(max(tokens), requests, token_bytes)
    assert kept.wasted_bytes >= total.tail_bytes


@given(size=st.integers(0, 10**12), length=st.integers(1, 200_000))
def test_one_more_request_than_fit_would_not_fit(size: int, length: int) -> None:
    token_bytes = 131_072
    fit = pool(size, token_bytes, [length], None).fits[0]
    each = held(length, token_bytes).allocated_bytes
    assert fit.requests * each <= size < (fit.requests + 1) * each + 16 * token_bytes


def test_reserving_the_maximum_fits_fewer_requests_than_paging() -> None:
    cache = pool(816 * MIB, 131_072, [420], 4096)
    assert (cache.blocks, cache.fits[0].requests, cache.reserving) == (408, 15, 1)


@pytest.mark.parametrize("dtype", WEIGHT_BYTES)
@pytest.mark.parametrize("params", [10**8, 10**10])
def test_where_a_step_turns_compute_bound_reading_and_arithmetic_take_equally_long(
    dtype: str, params: int
) -> None:
    device, weights = GPUS["l4"], Weights.of(params, dtype)
    floor = decode(device, weights, None)
    arithmetic_s = 2 * params * floor.compute_bound_from / device.flops_per_s
    assert arithmetic_s == pytest.approx(floor.floor_s)


def test_the_kv_of_live_requests_raises_the_floor() -> None:
    device = Device("a device", 10**9, 1e9, 1e12, False, "made up")
    floor = decode(device, Weights.of(10**8, "float32"), 10**8)
    assert (floor.floor_s, floor.live_floor_s) == (0.4, 0.5)


def test_what_is_not_known_is_none() -> None:
    answer = capacity(LLAMA, KV_DTYPES["bfloat16"], device=GPUS["h200"])
    assert answer.weights is answer.decode is answer.pool is answer.total is answer.reserved is None


@pytest.mark.parametrize(
    ("context_length", "lengths"),
    [(None, [512, 2048, 8192, 32_768]), (4096, [512, 2048, 4096]), (2048, [512, 2048])],
)
def test_without_lengths_usual_ones_up_to_the_context_are_shown(
    context_length: int | None, lengths: list[int]
) -> None:
    model = ModelShape(None, 1, 1, 1, context_length=context_length)
    answer = capacity(model, KV_DTYPES["int8"], pool_bytes=MIB)
    assert answer.pool is not None
    assert [fit.tokens for fit in answer.pool.fits] == lengths


def test_every_preset_has_as_many_parameters_as_are_published() -> None:
    assert {name: model.params for name, model in MODELS.items()} == PUBLISHED


@pytest.mark.parametrize("tied_head", [False, True])
@pytest.mark.parametrize("attention_bias", [False, True])
@pytest.mark.parametrize("qk_norm", [False, True])
def test_parameters_are_those_of_the_tensors_that_the_engine_expects(
    tied_head: bool, attention_bias: bool, qk_norm: bool
) -> None:
    numbers = {"layers": 3, "hidden": 64, "heads": 4, "kv_heads": 2, "head_dim": 24, "ffn": 96}
    flags = {"tied_head": tied_head, "attention_bias": attention_bias, "qk_norm": qk_norm}
    shared = {"vocab": 160, "context_length": 128} | numbers | flags
    config = ModelConfig(architecture="llama", rope_base=1e4, norm_eps=1e-5, **shared)
    expected = sum(math.prod(shape) for shape in expected_shapes(config).values())
    assert DenseModel(**shared).params == expected


def test_every_gpu_names_its_source() -> None:
    assert all(gpu.source.startswith("https://") for gpu in GPUS.values())
    assert all(gpu.name == name and not gpu.measured for name, gpu in GPUS.items())
