"""Rotary frequencies and magnitudes equal transformers', for every scaling."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from engine.models.config import (
    FrequencyDivisors,
    LinearScaling,
    Llama3Scaling,
    RopeScaling,
    YarnScaling,
    yarn_magnitude,
)
from engine.models.rope import frequencies, rope_table
from tests.engine.models.tiny_llama import CONFIG

Parameters = dict[str, Any]
"""What transformers calls `rope_parameters`."""

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0}


@pytest.mark.parametrize("base", [10_000.0, 1_000_000.0])
@pytest.mark.parametrize("head_dim", [16, 64, 128])
@pytest.mark.parametrize("original", [32, 4096, 32_768])
@pytest.mark.parametrize(
    ("parameters", "scaling"),
    [
        ({"rope_type": "linear", "factor": 3.0}, lambda original: LinearScaling(3.0)),
        (LLAMA3, lambda original: Llama3Scaling(8.0, 1.0, 4.0, original)),
        (YARN, lambda original: YarnScaling(4.0, original, yarn_magnitude(4.0))),
        (
            YARN | {"beta_fast": 16.0, "beta_slow": 2.0, "attention_factor": 0.7},
            lambda original: YarnScaling(4.0, original, 0.7, 16.0, 2.0),
        ),
        (
            YARN | {"truncate": False},
            lambda original: YarnScaling(4.0, original, yarn_magnitude(4.0), truncate=False),
        ),
        (
            YARN | {"mscale": 0.7, "mscale_all_dim": 1.3},
            lambda original: YarnScaling(
                4.0, original, yarn_magnitude(4.0, 0.7) / yarn_magnitude(4.0, 1.3)
            ),
        ),
    ],
)
def test_frequencies_equal_transformers(
    parameters: Parameters, scaling: Any, original: int, head_dim: int, base: float
):
    kind = parameters["rope_type"]
    more = {} if kind == "linear" else {"original_max_position_embeddings": original}
    theirs = LlamaConfig(
        head_dim=head_dim, rope_parameters={"rope_theta": base, **parameters, **more}
    )
    expected, magnitude = ROPE_INIT_FUNCTIONS[kind](theirs)
    ours: RopeScaling = scaling(original)
    config = dataclasses.replace(CONFIG, head_dim=head_dim, rope_base=base, rope_scaling=ours)
    np.testing.assert_allclose(frequencies(config).numpy(), expected.numpy(), rtol=1e-6)
    assert getattr(ours, "attention_factor", 1.0) == pytest.approx(magnitude)


def test_the_table_holds_an_angle_for_every_position_and_pair_of_dimensions():
    table = rope_table(CONFIG)
    assert table.cos.shape == table.sin.shape == (CONFIG.context_length, CONFIG.head_dim // 2)
    angle = 100 * 10_000 ** (-6 / 16)
    assert table.cos[100, 3] == pytest.approx(np.cos(angle), abs=1e-5)
    assert table.sin[100, 3] == pytest.approx(np.sin(angle), abs=1e-5)


def test_divisors_slow_each_pair_of_dimensions():
    divisors = (1.0, 1.0, 1.5, 2.0, 4.0, 8.0, 8.0, 8.0)
    config = dataclasses.replace(CONFIG, rope_scaling=FrequencyDivisors(divisors))
    assert torch.equal(frequencies(config), frequencies(CONFIG) / torch.tensor(divisors))


def test_yarn_scales_cosines_and_sines():
    scaling = YarnScaling(factor=1.0, original_context=64, attention_factor=0.5)
    scaled, plain = (
        rope_table(dataclasses.replace(CONFIG, rope_scaling=scaling)),
        rope_table(CONFIG),
    )
    torch.testing.assert_close(scaled.cos, plain.cos / 2)
    torch.testing.assert_close(scaled.sin, plain.sin / 2)
