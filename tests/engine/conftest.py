"""What tests of the engine share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from engine.models.gguf import load_weights, read_config
from tests.engine.models.tiny_llama import random_tensors, write_gguf


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple]:
    """Weights and configuration of a small random Llama."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_gguf(path, random_tensors())
    config = read_config(path)
    yield load_weights(path, config), config
    torch.set_num_threads(before)
