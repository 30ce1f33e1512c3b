"""The CPU backend says the same at depth 1 as at depth 0, whatever a row looks back on.

And the same from blocks that are reserved as from paged ones.
"""

from __future__ import annotations

import numpy as np
import pytest
from support.engines import Harness

from engine.allocation import PAGED, RESERVE, Allocation
from engine.backends.cpu import on_torch
from engine.controls import RowControls
from tests.engine.models.tiny_llama import CONFIG

PROMPTS = [np.random.default_rng(i).integers(0, CONFIG.vocab, 9 + 7 * i).tolist() for i in range(5)]


def texts(
    tiny: tuple,
    controls: RowControls,
    depth: int,
    blocks: int = 64,
    n: int = 1,
    allocation: Allocation = PAGED,
) -> list[list[int]]:
    harness = Harness(
        backend=on_torch(*tiny, blocks),
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
def test_a_row_knows_the_token_that_is_still_in_flight(tiny, controls: RowControls) -> None:
    expected = texts(tiny, controls, depth=0)
    assert texts(tiny, controls, depth=1) == expected
    assert texts(tiny, controls, depth=1, blocks=9) == expected


@pytest.mark.parametrize("depth", [0, 1])
def test_reserved_blocks_and_prompts_copied_to_siblings_change_no_token(tiny, depth) -> None:
    controls = RowControls(seed=4, temperature=1.0)
    expected = texts(tiny, controls, depth=0, n=3)
    assert len(set(map(tuple, expected))) == 15
    assert texts(tiny, controls, depth, n=3, allocation=RESERVE) == expected
    assert texts(tiny, controls, depth, blocks=12, n=3, allocation=RESERVE) == expected


def test_the_controls_above_make_a_difference(tiny) -> None:
    """Else the comparison would show nothing."""
    greedy = texts(tiny, RowControls(temperature=0.0), depth=0)
    assert texts(tiny, RowControls(temperature=0.0, repetition_penalty=1.5), depth=0) != greedy
    stopped = RowControls(
        seed=3, temperature=2.0, min_tokens=9, eos_ids=frozenset(range(0, 160, 3))
    )
    lengths = {len(text) for text in texts(tiny, stopped, depth=1)}
    assert min(lengths) >= 10
    assert min(lengths) < 20
