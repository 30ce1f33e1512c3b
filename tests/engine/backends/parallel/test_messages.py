"""A step is the same on the other end of the wire, as far as computing it goes."""

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.backends.parallel.messages import pack, unpack
from engine.batch import BLOCK, Batch, Rows
from tests.engine.backends.batches import Work, make_batch

UNSAID = {"rows", "scored", "shape"}

pairs = st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), max_size=3)


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    """Rows of any lengths, and moves of any blocks."""
    work = []
    for row in range(draw(st.integers(1, 5))):
        start, count = draw(st.integers(0, 50)), draw(st.integers(1, 20))
        table = [10 * row + i for i in range(-(-(start + count) // BLOCK))]
        work.append(Work(table, start, [7] * count, draw(st.booleans())))
    return make_batch(work, draw(pairs), draw(pairs), draw(pairs))


@given(batches())
def test_every_array_and_move_comes_as_it_was(batch: Batch):
    found = unpack(pack(batch, batch.token_ids))
    for field in fields(Batch):
        if field.name not in UNSAID:
            np.testing.assert_array_equal(getattr(found, field.name), getattr(batch, field.name))
    assert found.shape == batch.shape
    rows = [(row.start, row.count, row.samples) for row in found.rows]
    assert rows == [(row.start, row.count, row.samples) for row in batch.rows]


def test_arrays_are_contiguous_int32_and_may_be_written_to():
    batch = make_batch([Work([0, 1], 0, [1] * 20)], copies=[(1, 2)])
    found = unpack(np.frombuffer(bytearray(pack(batch, batch.token_ids).tobytes()), np.int32))
    for field in fields(Batch):
        value = getattr(found, field.name)
        if isinstance(value, np.ndarray):
            assert (value.dtype, value.flags.c_contiguous) == (np.int32, True)
            assert value.flags.writeable  # torch warns of what is not


def test_tokens_in_flight_go_as_what_they_turned_out_to_be():
    batch = make_batch([Work([0], 3, [-1])])
    assert unpack(pack(batch, np.array([42], np.int32))).token_ids.tolist() == [42]


@pytest.mark.parametrize("step", [0, 7, 2**31 + 7])
def test_guesses_are_known_as_such(step: int):
    batch = make_batch([Work([0], 3, [4, 5, 6]), Work([1], 0, [1])])
    batch.step = step
    batch.rows = Rows(batch.rows.keys, [3, 0], [3, 1], [True, True], verified=(0,))
    found = unpack(pack(batch, batch.token_ids))
    assert tuple(found.rows.verified) == (0,)
    assert found.step == step % 2**31
