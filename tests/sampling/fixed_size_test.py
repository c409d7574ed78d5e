"""Samples of a fixed size: every subset with the same probability."""

import itertools

import numpy as np
import pytest
from scipy import stats

from tfdp.events import (
    FixedSizeSampling,
    NeighboringRelation,
)
from tfdp.noise import host_generator
from tfdp.sampling import FixedSize, Poisson


def _take(policy, steps):
    return list(itertools.islice(policy.draw(host_generator()), steps))


def _subset_p_value(samples, probabilities):
    """Chi-square test of the distribution over whole samples, as sets."""
    counts = dict.fromkeys(probabilities, 0)
    for units in samples:
        key = tuple(sorted(units.tolist()))
        if key not in counts:
            return 0.0
        counts[key] += 1
    expected = [probability * len(samples) for probability in probabilities.values()]
    return stats.chisquare(list(counts.values()), expected).pvalue


STEPS, UNITS, BATCH = 4000, 50, 10


@pytest.fixture(scope="module")
def fixed_size_samples():
    return _take(FixedSize().resolve(UNITS, BATCH), STEPS)


def test_fixed_size_samples_have_the_size(fixed_size_samples):
    assert {len(units) for units in fixed_size_samples} == {BATCH}


def test_fixed_size_gives_every_subset_the_same_probability():
    subsets = {subset: 0.1 for subset in itertools.combinations(range(5), 2)}
    assert _subset_p_value(_take(FixedSize(2, 5), 2000), subsets) > 1e-9
    assert _subset_p_value(_take(Poisson(0.4, 5), 2000), subsets) < 1e-9
    consecutive = [np.array([i % 4, i % 4 + 1]) for i in range(2000)]
    assert _subset_p_value(consecutive, subsets) < 1e-9


def test_fixed_size_event():
    policy = FixedSize().resolve(100, 10)
    assert policy.description(3) == FixedSizeSampling(10, 100)
    assert policy.neighboring_relation == NeighboringRelation.REPLACE_ONE
    assert policy.steps_per_pass is None
    assert (policy.steps_per_epoch, policy.padded_size) == (10, 10)
