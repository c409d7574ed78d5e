import itertools
import math

import numpy as np
import pytest
from scipy import stats

from tfdp.events import (
    FixedSizeSampling,
    FullBatchSampling,
    NeighboringRelation,
    PoissonSampling,
    ShuffledSampling,
    UnknownSampling,
)
from tfdp.noise import host_generator
from tfdp.sampling import FixedSize, FullBatch, Poisson, Shuffled, Unknown
from tfdp.sampling.sizes import Sizes

SIZED = [FixedSize, Shuffled]
DRAWN = [Poisson, FixedSize, Shuffled]


def _take(policy, steps):
    return list(itertools.islice(policy.draw(host_generator()), steps))


def _inclusions(samples, population):
    included = np.zeros((len(samples), population))
    for row, units in zip(included, samples, strict=True):
        row[units] = 1
    return included


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


def _poisson_subsets(population, q):
    return {
        subset: q**size * (1 - q) ** (population - size)
        for size in range(population + 1)
        for subset in itertools.combinations(range(population), size)
    }


STEPS, UNITS, BATCH = 4000, 50, 10


@pytest.fixture(scope="module")
def poisson_samples():
    return _take(Poisson().resolve(UNITS, BATCH), STEPS)


@pytest.fixture(scope="module")
def fixed_size_samples():
    return _take(FixedSize().resolve(UNITS, BATCH), STEPS)


def test_poisson_probability_is_batch_size_over_population():
    policy = Poisson().resolve(60000, 256)
    assert policy.sampling_probability == 256 / 60000
    assert policy.description(0) == PoissonSampling(256 / 60000, 60000)
    assert policy.expected_batch_size == 256  # And not int(q * N) = 255.


@pytest.mark.parametrize("population", [7, 999, 50_000, 60_000, 1_281_167])
@pytest.mark.parametrize("batch", [1, 3, 6])
def test_poisson_expected_batch_size_is_exact(population, batch):
    assert Poisson().resolve(population, batch).expected_batch_size == batch


def test_poisson_expected_batch_size_may_be_a_fraction():
    assert Poisson(0.25, 10).expected_batch_size == 2.5
    assert Poisson(0.25).expected_batch_size is None


def test_poisson_includes_every_unit_with_the_same_probability(poisson_samples):
    counts = _inclusions(poisson_samples, UNITS).sum(axis=0)
    low, high = stats.binom.interval(1 - 1e-10, STEPS, 0.2)
    assert np.all((low <= counts) & (counts <= high))
    for wrong in (0.25, 0.15):
        low, high = stats.binom.interval(1 - 1e-10, STEPS, wrong)
        assert not np.all((low <= counts) & (counts <= high))


def _size_variance_is_binomial(samples):
    # N q (1 - q) = 8. The variance of n nearly normal sizes is off by (2 / n)^1/2 = 2.2%.
    variance = np.var([len(units) for units in samples])
    return abs(variance / 8.0 - 1) < 6.5 * math.sqrt(2 / STEPS)


def test_poisson_sizes_are_binomial(poisson_samples, fixed_size_samples):
    sizes = [len(units) for units in poisson_samples]
    assert abs(np.mean(sizes) - 10) < 6.2 * math.sqrt(8 / STEPS)
    assert _size_variance_is_binomial(poisson_samples)
    assert not _size_variance_is_binomial(fixed_size_samples)
    half_step = [units[: len(units) // 2] for units in poisson_samples]
    assert not _size_variance_is_binomial(half_step)


def _units_are_independent(samples):
    correlations = np.corrcoef(_inclusions(samples, UNITS).T) - np.eye(UNITS)
    # 1225 pairs; 7.5 standard deviations, because counts are only nearly normal.
    return np.max(np.abs(correlations)) < 7.5 / math.sqrt(STEPS)


def test_poisson_units_are_independent_of_each_other(poisson_samples):
    assert _units_are_independent(poisson_samples)
    # Units 2k and 2k + 1 together: right probabilities, wrong samples.
    in_pairs = [np.unique(np.concatenate([u, u ^ 1])) for u in poisson_samples]
    assert not _units_are_independent(in_pairs)


def test_poisson_steps_are_independent_of_each_other(poisson_samples, check_independent):
    included = _inclusions(poisson_samples, UNITS)
    check_independent(included[:-1], included[1:])


def test_poisson_gives_every_subset_its_probability():
    subsets = _poisson_subsets(3, 1 / 3)
    assert _subset_p_value(_take(Poisson(1 / 3, 3), 3000), subsets) > 1e-9
    assert _subset_p_value(_take(FixedSize(1, 3), 3000), subsets) < 1e-9
    assert _subset_p_value(_take(Poisson(0.4, 3), 3000), subsets) < 1e-9


def test_poisson_yields_empty_samples():
    # (1 - 0.05)^10 = 0.6
    samples = _take(Poisson(0.05, 10), 200)
    empty = sum(len(units) == 0 for units in samples)
    low, high = stats.binom.interval(1 - 1e-9, 200, 0.95**10)
    assert low <= empty <= high
    assert low > 50


@pytest.mark.parametrize(
    "policy", [Poisson(0.5, 20), FixedSize(5, 20), Shuffled(6, 20), FullBatch(20)]
)
def test_units_of_a_sample_are_distinct_indices(policy):
    for units in _take(policy, 30):
        assert units.dtype == np.int64
        assert len(np.unique(units)) == len(units)
        assert np.all((units >= 0) & (units < 20))


def test_poisson_with_probability_one_takes_every_unit():
    for units in _take(Poisson(1.0, 5), 3):
        assert sorted(units) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "q, error",
    [(0, ValueError), (-0.1, ValueError), (1.1, ValueError), (math.nan, ValueError)]
    + [(True, TypeError), ("0.1", TypeError), ([0.1], TypeError)],
)
def test_poisson_refuses_a_bad_probability(q, error):
    with pytest.raises(error, match="sampling_probability must be"):
        Poisson(q)


@pytest.mark.parametrize("policy", [Poisson(), Poisson(0.1), FullBatch(), Shuffled(), Unknown()])
def test_relation_is_zero_out_by_default(policy):
    # In each, a unit whose contribution is zero leaves the samples and their sizes as they are.
    assert policy.neighboring_relation is NeighboringRelation.ZERO_OUT


def test_under_add_or_remove_nothing_is_described_by_the_population():
    add = NeighboringRelation.ADD_OR_REMOVE_ONE
    described = []
    for population in (1000, 1001):
        poisson = Poisson(0.1, None, add).resolve(population, None)
        full = FullBatch(None, add).resolve(population, population)
        described.append((poisson.description(0), poisson.steps_per_epoch, full.description(0)))
        assert len(next(full.draw(host_generator()))) == population
    assert described[0] == described[1]
    assert described[0] == (PoissonSampling(0.1), 10, FullBatchSampling())


@pytest.mark.parametrize("policy", DRAWN)
def test_what_follows_the_population_is_refused_under_add_or_remove(policy):
    policy = policy(neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE)
    with pytest.raises(ValueError, match="number of units is not public.*ZERO_OUT"):
        policy.resolve(10, 2)


def test_poisson_refuses_to_contradict_the_data():
    assert Poisson(0.1, 100).resolve(100, 10) == Poisson(0.1, 100)
    with pytest.raises(
        ValueError, match="made for sampling_probability=0.2, but batch_size=10 of 100"
    ):
        Poisson(0.2).resolve(100, 10)
    with pytest.raises(
        ValueError, match="population_size=50, but the data have population_size=100"
    ):
        Poisson(population_size=50).resolve(100, 10)


def test_poisson_batches_are_padded_for_three_standard_deviations():
    # 256 + 3 sqrt(256 (1 - q)) = 303.9, up to a multiple of 8; never more than the population.
    assert Poisson().resolve(60000, 256).padded_size == 304
    assert Poisson().resolve(100, 90).padded_size == 100  # 90 + 3 * 3 = 99.
    assert Poisson().resolve(10, 10).padded_size == 10


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


def _passes(policy, count):
    steps = _take(policy, count * policy.steps_per_pass)
    size = policy.steps_per_pass
    return [steps[i * size : (i + 1) * size] for i in range(count)]


def test_shuffled_pass_has_every_unit_once_and_keeps_the_ragged_last_batch():
    policy = Shuffled().resolve(10, 4)
    assert policy.steps_per_pass == policy.steps_per_epoch == 3
    for batches in _passes(policy, 5):
        assert [len(units) for units in batches] == [4, 4, 2]
        assert sorted(np.concatenate(batches)) == list(range(10))


def test_shuffled_passes_differ():
    # Two equal permutations of 30: once in 10^32.
    first, second = _passes(Shuffled(7, 30), 2)
    assert not np.array_equal(np.concatenate(first), np.concatenate(second))


def test_shuffled_order_is_uniform():
    # The first batch of one of a pass over three units, and the order as a whole.
    orders = [np.concatenate(batches) for batches in _passes(Shuffled(1, 3), 1200)]
    permutations = list(itertools.permutations(range(3)))
    counts = [sum(tuple(order) == p for order in orders) for p in permutations]
    assert sum(counts) == 1200
    assert stats.chisquare(counts).pvalue > 1e-9
    rotations = [counts[0] + counts[1], 0, 0, counts[2] + counts[3], counts[4] + counts[5], 0]
    assert stats.chisquare(rotations).pvalue < 1e-9


def test_shuffled_event_has_the_pass():
    policy = Shuffled().resolve(10, 4)
    assert policy.description(7) == ShuffledSampling(4, 10, 7)
    assert policy.neighboring_relation == NeighboringRelation.ZERO_OUT


def test_full_batch_takes_every_unit_in_every_step():
    policy = FullBatch().resolve(5, 5)
    for units in _take(policy, 3):
        np.testing.assert_array_equal(units, range(5))
    assert policy.description(0) == FullBatchSampling(5)
    assert (policy.steps_per_epoch, policy.padded_size, policy.expected_batch_size) == (1, 5, 5)


def test_full_batch_refuses_a_smaller_batch():
    with pytest.raises(ValueError, match="leave batch_size out.*batch_size=4, number of units=5"):
        FullBatch().resolve(5, 4)
    with pytest.raises(ValueError, match="made for population_size=6"):
        FullBatch(6).resolve(5, 5)


def test_unknown_grants_nothing_and_does_not_draw():
    assert Unknown().description(3) == UnknownSampling()
    assert Unknown().expected_batch_size is None
    with pytest.raises(ValueError, match="Choose another policy"):
        Unknown().resolve(10, 2)
    with pytest.raises(TypeError, match="Unknown says nothing about how to draw"):
        Unknown().draw(host_generator())


@pytest.mark.parametrize("policy", DRAWN)
def test_resolve_refuses_a_batch_larger_than_the_data(policy):
    with pytest.raises(ValueError, match="batch_size=11, number of units=10"):
        policy().resolve(10, 11)


@pytest.mark.parametrize("policy", DRAWN)
@pytest.mark.parametrize("batch", [2.0, 2.5, math.nan, True, "2", None])
def test_resolve_refuses_a_batch_size_that_is_not_an_integer(policy, batch):
    with pytest.raises(TypeError, match="batch_size must be an integer"):
        policy().resolve(10, batch)


@pytest.mark.parametrize("policy", DRAWN)
@pytest.mark.parametrize("batch", [0, -1])
def test_resolve_refuses_a_batch_size_below_one(policy, batch):
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        policy().resolve(10, batch)


@pytest.mark.parametrize("policy", SIZED)
def test_resolve_refuses_sizes_that_contradict(policy):
    assert policy(batch_size=2, population_size=10).resolve(10, 2) == policy(2, 10)
    with pytest.raises(ValueError, match="made for batch_size=3, but the data have batch_size=2"):
        policy(batch_size=3).resolve(10, 2)
    with pytest.raises(ValueError, match="made for population_size=11"):
        policy(population_size=11).resolve(10, 2)


@pytest.mark.parametrize("policy", SIZED)
@pytest.mark.parametrize("name", ["batch_size", "population_size"])
@pytest.mark.parametrize("value, error", [(0, ValueError), (2.0, TypeError), (True, TypeError)])
def test_refuses_bad_sizes(policy, name, value, error):
    with pytest.raises(error, match=f"{name} must be"):
        policy(**{name: value})


@pytest.mark.parametrize("policy", [Poisson(), FixedSize(4), FixedSize(None, 10), Shuffled(4)])
def test_event_needs_the_sizes(policy):
    with pytest.raises(ValueError, match="Declare the"):
        policy.description(0)


@pytest.mark.parametrize("policy", [Poisson, FixedSize, Shuffled, FullBatch, Unknown])
def test_neighboring_relation_is_kept_or_refused(policy):
    relation = NeighboringRelation.REPLACE_ONE
    assert policy(neighboring_relation=relation).neighboring_relation == relation
    with pytest.raises(TypeError, match="must be a tfdp.NeighboringRelation"):
        policy(neighboring_relation="replace_one")


@pytest.mark.parametrize("policy", DRAWN)
def test_resolve_keeps_the_relation_and_leaves_the_policy_alone(policy):
    declared = policy(neighboring_relation=NeighboringRelation.REPLACE_ONE)
    resolved = declared.resolve(10, 2)
    assert resolved.neighboring_relation == NeighboringRelation.REPLACE_ONE
    assert resolved.population_size == 10
    assert declared == policy(neighboring_relation=NeighboringRelation.REPLACE_ONE)
    assert declared.population_size is None


# Sizes of declared samples.


def _contradiction(policy, sizes):
    seen = Sizes()
    for size in sizes:
        seen.add(int(size))
        found = policy.contradiction(seen)
        if found is not None:
            return found
    return None


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize("population", [1, 5, 640, 60_000])
@pytest.mark.parametrize("q", [0.001, 0.1, 0.5, 0.97, 1.0])
def test_poisson_samples_do_not_contradict(population, q, declared):
    draws = np.random.default_rng(11).binomial(population, q, (20, 300))
    policy = Poisson(q, population if declared else None)
    assert [_contradiction(policy, sizes) for sizes in draws] == [None] * 20


def test_sizes_that_are_no_samples_contradict():
    assert "64 units on average" in _contradiction(Poisson(0.01, 640), [64] * 20)
    assert "where sizes are random" in _contradiction(Poisson(0.1, 640), [64] * 20)
    assert "where sizes are random" in _contradiction(Poisson(0.01), [64] * 20)
    assert "641" in _contradiction(Poisson(0.9, 640), [641])
    assert "4 units" in _contradiction(FixedSize(3, 10), [3, 4])
    assert "4 units" in _contradiction(Shuffled(3, 10), [3, 3, 3, 1, 4])
    assert _contradiction(Shuffled(3, 10), [3, 3, 3, 1]) is None
    assert "9 units" in _contradiction(FullBatch(10), [10, 9])
    assert _contradiction(FullBatch(), [10, 9]) is None
    assert _contradiction(Unknown(), [10, 9]) is None
