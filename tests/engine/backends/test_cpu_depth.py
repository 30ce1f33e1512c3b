"""The CPU backend says the same at depth 1 as at depth 0, whatever a row looks back on.

And the same from blocks that are reserved as from paged ones.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from support.engines import Harness

from engine.allocation import PAGED, RESERVE, Allocation
from engine.backends.cpu import on_torch
from engine.controls import RowControls
from engine.models.gguf import load_weights, read_config
from tests.engine.models.tiny_llama import CONFIG, random_tensors, write_gguf

PROMPTS = [np.random.default_rng(i).integers(0, CONFIG.vocab, 9 + 7 * i).tolist() for i in range(5)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_gguf(path, random_tensors())
    config = read_config(path)
    yield load_weights(path, config), config
    torch.set_num_threads(before)


def texts(
    model: tuple,
    controls: RowControls,
    depth: int,
    blocks: int = 64,
    n: int = 1,
    allocation: Allocation = PAGED,
) -> list[list[int]]:
    harness = Harness(
        backend=on_torch(*model, blocks),
        blocks=blocks,
        budget=24,
        depth=depth,
        model_len=128,
        allocation=allocation,
    )
    requests = [harness.submit(prompt, 20, controls, n=n) for prompt in PROMPTS]
    harness.run()
    return [harness.tokens(request, index) for request in requests for index in range(n)]


@pytest.mark.parametrize(
    "controls",
    [
        RowControls(temperature=0.0),
        RowControls(temperature=0.0, repetition_penalty=1.5),
        RowControls(seed=1, temperature=0.7, frequency_penalty=1.0, presence_penalty=1.0),
        RowControls(seed=2, temperature=2.0, bad_words=tuple((a, a) for a in range(160))),
        RowControls(seed=3, temperature=2.0, min_tokens=9, eos_ids=frozenset(range(0, 160, 3))),
    ],
)
def test_a_row_knows_the_token_that_is_still_in_flight(model, controls: RowControls) -> None:
    expected = texts(model, controls, depth=0)
    assert texts(model, controls, depth=1) == expected
    assert texts(model, controls, depth=1, blocks=9) == expected


@pytest.mark.parametrize("depth", [0, 1])
def test_reserved_blocks_and_prompts_copied_to_siblings_change_no_token(model, depth) -> None:
    controls = RowControls(seed=4, temperature=1.0)
    expected = texts(model, controls, depth=0, n=3)
    assert len(set(map(tuple, expected))) == 15
    assert texts(model, controls, depth, n=3, allocation=RESERVE) == expected
    assert texts(model, controls, depth, blocks=12, n=3, allocation=RESERVE) == expected


def test_the_controls_above_make_a_difference(model) -> None:
    """Else the comparison would show nothing."""
    greedy = texts(model, RowControls(temperature=0.0), depth=0)
    assert texts(model, RowControls(temperature=0.0, repetition_penalty=1.5), depth=0) != greedy
    stopped = RowControls(
        seed=3, temperature=2.0, min_tokens=9, eos_ids=frozenset(range(0, 160, 3))
    )
    lengths = {len(text) for text in texts(model, stopped, depth=1)}
    assert min(lengths) >= 10
    assert min(lengths) < 20
