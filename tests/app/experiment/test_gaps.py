"""Means are exact, quantiles to within a bucket."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.experiment.gaps import GROWTH, Gaps

SECONDS = st.floats(2e-4, 10)


@given(st.lists(SECONDS, min_size=1, max_size=300), st.sampled_from([0.5, 0.9, 0.99, 1.0]))
def test_a_quantile_lies_within_a_bucket_of_the_real_one(seconds, share):
    gaps = Gaps()
    for each in seconds:
        gaps.add(each)
    ranked = sorted(seconds)
    real = ranked[max(0, -(-round(share * len(ranked) * 1000) // 1000) - 1)]
    assert real / GROWTH**1.01 <= gaps.quantile(share) <= real * GROWTH**1.01
    assert gaps.mean == pytest.approx(sum(seconds) / len(seconds))


def test_of_none_there_is_nothing_to_tell():
    assert Gaps().mean is None
    assert Gaps().quantile(0.99) is None


def test_tokens_that_came_together_count_each():
    gaps = Gaps()
    gaps.add(0.1, 3)
    gaps.add(0.5)
    assert (gaps.count, gaps.mean) == (4, pytest.approx(0.2))


@pytest.mark.parametrize("seconds", [0.0, 1e-9, 1e9])
def test_what_is_beyond_the_buckets_is_in_the_last(seconds):
    gaps = Gaps()
    gaps.add(seconds)
    assert gaps.quantile(0.5) is not None
    assert gaps.count == 1
