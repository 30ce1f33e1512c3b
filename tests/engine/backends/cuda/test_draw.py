"""Where the filters of a draw end, found by digits instead of a sort."""

from __future__ import annotations

import math

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.backends.cuda.draw import unit
from engine.backends.cuda.torch_draw import last_of, logit_orders

FLOATS = st.floats(width=32, allow_nan=False)


@given(st.lists(FLOATS, min_size=1))
def test_orders_are_those_of_the_logits(values: list[float]):
    (orders,) = logit_orders(torch.tensor([values])).tolist()
    assert all(0 <= order < 1 << 32 for order in orders)
    for one, its in zip(values, orders, strict=True):
        for other, others in zip(values, orders, strict=True):
            assert (one < other) == (its < others)


@given(st.lists(st.tuples(FLOATS, st.integers(0, 1 << 40)), min_size=1), st.floats(0, 1))
def test_the_last_of_what_is_needed_is_that_of_a_sort(entries, share: float):
    total = sum(amount for _, amount in entries)
    needed = min(max(math.ceil(share * total), 1), total)
    if not total:
        return
    orders = logit_orders(torch.tensor([[value for value, _ in entries]] * 2))
    amounts = torch.tensor([[amount for _, amount in entries]] * 2)
    found = last_of(orders, amounts, torch.tensor([[needed], [1]]))
    ranked = sorted(zip(orders[0].tolist(), amounts[0].tolist(), strict=True), reverse=True)
    reached = np.cumsum([amount for _, amount in ranked])
    expected = [ranked[int((reached < need).sum())][0] for need in (needed, 1)]
    assert found.tolist() == [[each] for each in expected]


@given(st.integers(1, 1 << 20))
def test_the_weights_of_a_whole_vocabulary_fit_62_bits(vocab: int):
    assert vocab * int(unit(vocab)) <= 1 << 62
    assert 4 * vocab * int(unit(vocab)) > 1 << 62
