"""Samples of a fixed size: every subset with the same probability."""

import itertools

import numpy as np
import pytest

from tests.sampling.draws import BATCH, subset_p_value, take, take_fixed_size
from tfdp.events import (
    FixedSizeSampling,
    NeighboringRelation,
)
from tfdp.sampling import FixedSize, Poisson


@pytest.fixture(scope="module")
def fixed_size_samples():
    return take_fixed_size()


def test_fixed_size_samples_have_the_size(fixed_size_samples):
    assert {len(units) for units in fixed_size_samples} == {BATCH}


def test_fixed_size_gives_every_subset_the_same_probability():
    subsets = {subset: 0.1 for subset in itertools.combinations(range(5), 2)}
    assert subset_p_value(take(FixedSize(2, 5), 2000), subsets) > 1e-9
    assert subset_p_value(take(Poisson(0.4, 5), 2000), subsets) < 1e-9
    consecutive = [np.array([i % 4, i % 4 + 1]) for i in range(2000)]
    assert subset_p_value(consecutive, subsets) < 1e-9


def test_fixed_size_event():
    policy = FixedSize().resolve(100, 10)
    assert policy.description(3) == FixedSizeSampling(10, 100)
    assert policy.neighboring_relation == NeighboringRelation.REPLACE_ONE
    assert policy.steps_per_pass is None
    assert (policy.steps_per_epoch, policy.padded_size) == (10, 10)
