"""The real model, loaded once for a module that compares what it says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from support.float_parity import MODEL

from engine.models.config import ModelConfig
from engine.models.files import load_weights, read_config
from engine.models.weights import Weights


@pytest.fixture(scope="module")
def model() -> Iterator[tuple[Weights, ModelConfig]]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # threads that wait for each other cost more on a busy machine
    config = read_config(MODEL)
    yield load_weights(MODEL, config), config
    torch.set_num_threads(before)
