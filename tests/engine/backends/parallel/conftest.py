"""A tiny model in a file, for ranks to load their shards from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.engine.models.tiny_llama import random_tensors, write_gguf


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_gguf(path, random_tensors())
    yield path
    torch.set_num_threads(before)
