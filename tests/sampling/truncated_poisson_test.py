"""tfdp.sampling.truncated_poisson: Poisson samples, of which a uniform part is kept."""

import itertools

import numpy as np
import pytest

from tests.sampling.draws import contradiction, subset_p_value, take
from tfdp.events import NeighboringRelation, TruncatedPoissonSampling
from tfdp.sampling import TruncatedPoisson


def test_samples_are_those_of_poisson_of_which_a_uniform_part_is_kept():
    n, most, q = 4, 2, 0.5
    probabilities = {}
    for size in range(n + 1):
        for sample in itertools.combinations(range(n), size):
            parts = list(itertools.combinations(sample, min(size, most)))
            for part in parts:
                weight = q**size * (1 - q) ** (n - size) / len(parts)
                probabilities[part] = probabilities.get(part, 0.0) + weight
    policy = TruncatedPoisson(most).resolve(n, 2)
    assert subset_p_value(take(policy, 4000), probabilities) > 1e-9
    # The first of a sample that is too large, in place of a uniform part, is noticed.
    first = [np.sort(units)[:most] for units in take(TruncatedPoisson(n).resolve(n, 2), 4000)]
    assert subset_p_value(first, probabilities) < 1e-12


def test_sizes_follow_the_data():
    policy = TruncatedPoisson().resolve(1000, 100)
    assert policy.sampling_probability == 0.1 and policy.expected_batch_size == 100
    assert policy.max_sample_size == policy.padded_size == policy.size_step == 136
    assert policy.description(3) == TruncatedPoissonSampling(0.1, 1000, 136)
    assert policy.steps_per_epoch == 10
    sizes = [len(units) for units in take(TruncatedPoisson(105).resolve(1000, 100), 200)]
    assert max(sizes) == 105
    assert TruncatedPoisson(200).resolve(100, 50).padded_size == 100


def test_refuses_what_contradicts():
    add = NeighboringRelation.ADD_OR_REMOVE_ONE
    with pytest.raises(ValueError, match="number of units is not public"):
        TruncatedPoisson(neighboring_relation=add).resolve(10, 2)
    with pytest.raises(ValueError, match="Declare the sizes"):
        TruncatedPoisson(5, 0.1).description(0)
    with pytest.raises(ValueError, match="Leave sampling_probability out"):
        TruncatedPoisson(5, 0.1).resolve(10, 2)
    with pytest.raises(ValueError, match="max_sample_size must be at least 1"):
        TruncatedPoisson(0)
    with pytest.raises(ValueError, match="sampling_probability must be"):
        TruncatedPoisson(5, 1.5)
    policy = TruncatedPoisson(5, 0.1, 20)
    assert contradiction(policy, [5, 0, 5]) is None
    assert contradiction(policy, [5, 6]) == "a sample of 6 units"
