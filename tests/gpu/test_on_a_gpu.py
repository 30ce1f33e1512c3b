"""What the script finds on a GPU is right, part by part; skipped where there is none."""

from __future__ import annotations

import pytest
import torch

from tests.gpu.bed import bed
from tests.gpu.parts import parity, replay, sampling

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]


@pytest.mark.parametrize("part", [parity, replay, sampling], ids=lambda part: part.__name__)
def test_everything_that_is_promised_is_kept(part) -> None:
    pytest.importorskip("flashinfer")
    broken = [each for each in part.run(bed(rehearse=False)) if each.passed is False]
    assert broken == []
