"""tfdp.sampling.random_allocation: what is drawn is what is described."""

import itertools

import numpy as np
import pytest
from scipy import stats

from tests.sampling.draws import contradiction, take
from tfdp.events import NeighboringRelation, RandomAllocationSampling
from tfdp.ledger import PrivacyLedger
from tfdp.sampling import RandomAllocation
from tfdp.sampling.clock import PassClock

ADD = NeighboringRelation.ADD_OR_REMOVE_ONE


def _passes(policy, count):
    t = policy.num_steps
    steps = take(policy, count * t)
    return [steps[i * t : (i + 1) * t] for i in range(count)]


@pytest.mark.parametrize(("t", "k"), [(1, 1), (5, 1), (5, 2), (5, 5), (40, 3)])
def test_every_unit_is_in_as_many_steps_of_every_pass(t, k):
    for steps in _passes(RandomAllocation(t, k, 20), 8):
        assert all(len(np.unique(units)) == len(units) for units in steps)
        assert all(units.dtype == np.int64 for units in steps)
        assert sorted(np.concatenate(steps)) == sorted(np.repeat(np.arange(20), k))


def test_steps_of_two_units_are_uniform_and_independent():
    counts = np.zeros((3, 3), int)
    for steps in _passes(RandomAllocation(3, population_size=2), 1800):
        places = [next(i for i, units in enumerate(steps) if unit in units) for unit in (0, 1)]
        counts[tuple(places)] += 1
    assert stats.chisquare(counts.ravel()).pvalue > 1e-9
    # Units of a shuffled pass of two per batch are hardly ever together: the test tells.
    assert stats.chisquare(np.full((3, 3), 300).ravel() - 90 * np.eye(3).ravel()).pvalue < 1e-3


def test_sets_of_steps_are_uniform():
    sets = list(itertools.combinations(range(4), 2))
    counts = dict.fromkeys(sets, 0)
    for steps in _passes(RandomAllocation(4, 2, 1), 1800):
        counts[tuple(i for i, units in enumerate(steps) if len(units))] += 1
    assert stats.chisquare(list(counts.values())).pvalue > 1e-9


def test_passes_are_drawn_anew():
    first, second = _passes(RandomAllocation(10, population_size=50), 2)
    assert any(not np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def test_sizes_follow_the_data():
    policy = RandomAllocation().resolve(103, 10)
    assert policy.num_steps == policy.steps_per_pass == policy.steps_per_epoch == 11
    assert policy.description(4) == RandomAllocationSampling(11, 1, 103, 4)
    assert policy.expected_batch_size == pytest.approx(103 / 11)
    assert RandomAllocation(participations=3).resolve(100, 10).num_steps == 30
    assert RandomAllocation(participations=3).resolve(100, 10).expected_batch_size == 10
    assert RandomAllocation(7).default_batch_size(100) is None
    assert RandomAllocation().default_batch_size(100) == 32
    assert RandomAllocation(10).resolve(100, 10) == RandomAllocation().resolve(100, 10)
    assert RandomAllocation(4, population_size=100).padded_size == 40
    assert RandomAllocation(1, population_size=100).padded_size == 100


def test_under_add_or_remove_nothing_follows_the_population():
    policy = RandomAllocation(8, neighboring_relation=ADD)
    described = set()
    for population in (100, 101):
        resolved = policy.resolve(population, None)
        described.add((resolved.description(0), resolved.steps_per_epoch))
        assert sum(map(len, _passes(resolved, 1)[0])) == population
    assert described == {(RandomAllocationSampling(8), 8)}
    with pytest.raises(ValueError, match="number of units is not public.*ZERO_OUT"):
        RandomAllocation(neighboring_relation=ADD).resolve(10, 2)


def test_refuses_what_contradicts():
    with pytest.raises(ValueError, match="made for num_steps=9, but batch_size=10 of 100"):
        RandomAllocation(9).resolve(100, 10)
    with pytest.raises(ValueError, match="participations must be at most num_steps"):
        RandomAllocation(3, 4)
    with pytest.raises(ValueError, match="at most the number of units"):
        RandomAllocation().resolve(10, 11)
    with pytest.raises(ValueError, match="Declare the number of steps"):
        RandomAllocation().description(0)
    with pytest.raises(ValueError, match="num_steps must be at least 1"):
        RandomAllocation(0)


def test_the_clock_begins_a_pass_after_the_last_step_of_one():
    clock, ledger = PassClock(RandomAllocation(3, population_size=9), PrivacyLedger()), []
    for step in range(8):
        if step == 6:
            clock.begin_pass()
        sampling = clock.peek()
        clock.advance(sampling)
        ledger.append(sampling.pass_index)
    # The ledger of this clock is empty, so that every pass would begin at its next number.
    assert ledger == [0] * 8
    assert RandomAllocation(3).is_over(3, None) and not RandomAllocation(3).is_over(2, None)


def test_declared_sizes_that_cannot_be_contradict():
    policy = RandomAllocation(10, population_size=100)
    drawn = [len(units) for steps in _passes(policy, 30) for units in steps]
    assert contradiction(policy, drawn) is None
    assert "sizes are random" in contradiction(policy, [10] * 100)
    assert "sizes are random" in contradiction(RandomAllocation(10), [10] * 100)
    assert "a sample of 101 units" in contradiction(policy, [101])
    assert "on average, where 10 are expected" in contradiction(policy, [20] * 40)
    assert contradiction(RandomAllocation(1), [10] * 100) is None
