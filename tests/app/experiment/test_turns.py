"""Every block has each arm once, in an order that the seed alone decides."""

from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from app.experiment.schedule import turns


@given(st.integers(2, 5), st.integers())
def test_each_block_has_each_arm_once(arms, seed):
    taken = list(islice(turns(arms, seed), 20 * arms))
    for block in range(20):
        mine = [turn.arm for turn in taken if turn.block == block]
        assert sorted(mine) == list(range(arms))
    assert taken == list(islice(turns(arms, seed), 20 * arms))


def test_orders_differ_from_block_to_block_and_from_seed_to_seed():
    firsts = [turn.arm for turn in islice(turns(2, 0), 200)][::2]
    assert 30 < sum(firsts) < 70
    assert firsts != [turn.arm for turn in islice(turns(2, 1), 200)][::2]
