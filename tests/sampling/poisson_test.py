"""Poisson samples: every unit independently, with the same probability."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from tests.sampling.draws import (
    BATCH,
    STEPS,
    UNITS,
    contradiction,
    subset_p_value,
    take,
    take_fixed_size,
)
from tfdp.events import NeighboringRelation, PoissonSampling
from tfdp.sampling import FixedSize, Poisson


def _inclusions(samples, population):
    included = np.zeros((len(samples), population))
    for row, units in zip(included, samples, strict=True):
        row[units] = 1
    return included


def _poisson_subsets(population, q):
    return {
        subset: q**size * (1 - q) ** (population - size)
        for size in range(population + 1)
        for subset in itertools.combinations(range(population), size)
    }


@pytest.fixture(scope="module")
def poisson_samples():
    return take(Poisson().resolve(UNITS, BATCH), STEPS)


@pytest.fixture(scope="module")
def fixed_size_samples():
    return take_fixed_size()


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


def _total_variance_is_binomial(sizes):
    # Of 125 sums of 32 sizes each, of variance 256; that variance is off by 13%.
    totals = np.reshape(sizes[: len(sizes) // 32 * 32], [-1, 32]).sum(1)
    return abs(np.var(totals) / 256 - 1) < 6.5 * math.sqrt(2 / len(totals))


@pytest.fixture(scope="module")
def rare_samples():
    """Samples of as many units as `poisson_samples`, of more: some are drawn together."""
    return take(Poisson(1 / 256, 2560), STEPS)


def test_poisson_samples_that_are_drawn_together_have_no_common_size(rare_samples):
    # Samples are drawn some at a time: nothing about such a number of them is fixed.
    sizes = [len(units) for units in rare_samples]
    assert abs(np.mean(sizes) - 10) < 6.2 * math.sqrt(10 / STEPS)
    assert _total_variance_is_binomial(sizes)
    together = np.reshape(sizes[: len(sizes) // 32 * 32], [-1, 32])
    of_one_total = together - together.mean(1, keepdims=True) + 10
    assert not _total_variance_is_binomial(of_one_total.ravel())


def test_poisson_samples_that_are_drawn_together_are_independent(rare_samples, check_independent):
    # Whether the first, the second, ... tenth part of the units has more than its share.
    included = np.stack([np.bincount(units // 256, minlength=10) for units in rare_samples]).astype(
        float
    )
    check_independent(included[:-1], included[1:])
    counts = np.bincount(np.concatenate(rare_samples), minlength=2560)
    low, high = stats.binom.interval(1 - 1e-10, STEPS, 1 / 256)
    assert np.all((low <= counts) & (counts <= high))
    # The first and the last of those that are drawn together are as large as all.
    first, last = (np.array([len(rare_samples[i]) for i in range(k, STEPS, 32)]) for k in (0, 31))
    for sizes in (first, last):
        assert abs(np.mean(sizes) - 10) < 6.2 * math.sqrt(10 / len(sizes))


@pytest.mark.parametrize("population, q", [(2**15 + 1, 2.0**-12), (2**12, 2.0**-4), (9, 0.75)])
def test_poisson_samples_of_any_population_are_distinct_units_of_it(population, q):
    # Of 32, of 16, and of 1 sample at a time.
    samples = take(Poisson(q, population), 70)
    for units in samples:
        assert units.dtype == np.int64
        assert len(np.unique(units)) == len(units)
        assert np.all((units >= 0) & (units < population))
    sizes, mean = [len(units) for units in samples], population * q
    low, high = stats.binom.interval(1 - 1e-10, 70 * population, q)
    assert low <= sum(sizes) <= high
    assert np.mean(np.concatenate(samples)) == pytest.approx(
        (population - 1) / 2, abs=7 * population / math.sqrt(12 * 70 * mean)
    )


class _Asked:
    """Notes what is drawn."""

    def __init__(self):
        self.trials = []

    def binomial(self, n, p):
        self.trials.append(n)
        return 0

    def choice(self, a, size, replace, shuffle):
        return np.zeros(0, np.int64)


@pytest.mark.parametrize("q", [0.9, 0.1, 2.0**-5, 2.0**-12])
def test_poisson_steps_that_are_drawn_together_do_not_tell_the_number_of_units(q):
    relation = NeighboringRelation.ADD_OR_REMOVE_ONE
    together = set()
    for population in [*range(1, 200), 2**15, 2**15 + 1, 2**20, 10**9]:
        asked = _Asked()
        next(Poisson(q, population, relation).draw(asked))
        together.add(asked.trials[0] / population)
    assert len(together) == 1


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
    assert subset_p_value(take(Poisson(1 / 3, 3), 3000), subsets) > 1e-9
    assert subset_p_value(take(FixedSize(1, 3), 3000), subsets) < 1e-9
    assert subset_p_value(take(Poisson(0.4, 3), 3000), subsets) < 1e-9


def test_poisson_yields_empty_samples():
    # (1 - 0.05)^10 = 0.6
    samples = take(Poisson(0.05, 10), 200)
    empty = sum(len(units) == 0 for units in samples)
    low, high = stats.binom.interval(1 - 1e-9, 200, 0.95**10)
    assert low <= empty <= high
    assert low > 50


def test_poisson_with_probability_one_takes_every_unit():
    for units in take(Poisson(1.0, 5), 3):
        assert sorted(units) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "q, error",
    [(0, ValueError), (-0.1, ValueError), (1.1, ValueError), (math.nan, ValueError)]
    + [(True, TypeError), ("0.1", TypeError), ([0.1], TypeError)],
)
def test_poisson_refuses_a_bad_probability(q, error):
    with pytest.raises(error, match="sampling_probability must be"):
        Poisson(q)


def test_poisson_refuses_to_contradict_the_data():
    assert Poisson(0.1, 100).resolve(100, 10) == Poisson(0.1, 100)
    with pytest.raises(
        ValueError, match="made for sampling_probability=0.2, but batch_size=10 of 100"
    ):
        Poisson(0.2).resolve(100, 10)
    with pytest.raises(
        ValueError, match="batch_size is 32 where it is left out, and batch_size / "
    ):
        Poisson(0.25).resolve(100, 32)
    with pytest.raises(
        ValueError, match="population_size=50, but the data have population_size=100"
    ):
        Poisson(population_size=50).resolve(100, 10)


def test_a_contradiction_does_not_tell_a_number_that_is_not_public():
    hidden = Poisson(0.2, 50, neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE)
    with pytest.raises(ValueError, match="was made for") as caught:
        hidden.resolve(4321, 10)
    assert "4321" not in str(caught.value)


def test_poisson_batches_are_padded_for_three_standard_deviations():
    # 256 + 3 sqrt(256 (1 - q)) = 303.9, up to a multiple of 8; never more than the population.
    assert Poisson().resolve(60000, 256).padded_size == 304
    assert Poisson().resolve(100, 90).padded_size == 100  # 90 + 3 * 3 = 99.
    assert Poisson().resolve(10, 10).padded_size == 10
    assert Poisson().resolve(60000, 256).size_step == 8  # Half of a standard deviation of 16.
    assert Poisson().resolve(60000, 8).size_step == 2 and Poisson().resolve(10, 10).size_step == 1


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize("population", [1, 5, 640, 60_000])
@pytest.mark.parametrize("q", [0.001, 0.1, 0.5, 0.97, 1.0])
def test_poisson_samples_do_not_contradict(population, q, declared):
    draws = np.random.default_rng(11).binomial(population, q, (20, 300))
    policy = Poisson(q, population if declared else None)
    assert [contradiction(policy, sizes) for sizes in draws] == [None] * 20


def test_descriptions_are_equal_objects_only_where_the_steps_are():
    policy = Poisson(sampling_probability=0.1, population_size=50)
    before = policy.description(0)
    assert policy.description(7) is before
    assert Poisson(sampling_probability=0.1).description(0).population_size is None
    # As in a subclass whose probability is not that of its start.
    object.__setattr__(policy, "sampling_probability", 0.2)
    assert policy.description(0).sampling_probability == 0.2
    assert before.sampling_probability == 0.1
