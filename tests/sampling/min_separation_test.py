"""tfdp.sampling.min_separation: what is drawn is what is described."""

import itertools

import numpy as np
import pytest
from scipy import stats

from tests.sampling.draws import contradiction, subset_p_value, take
from tfdp.events import MinSeparationSampling, NeighboringRelation
from tfdp.ledger import PrivacyLedger
from tfdp.sampling import MinSeparationPoisson
from tfdp.sampling.clock import PassClock

ADD = NeighboringRelation.ADD_OR_REMOVE_ONE


def _passes(policy, count):
    """Returns in which steps each unit is, bool [count, steps, units]."""
    found = np.zeros((count * policy.num_steps, policy.population_size), bool)
    for step, units in enumerate(take(policy, len(found))):
        assert units.dtype == np.int64 and len(np.unique(units)) == len(units)
        found[step, units] = True
    return found.reshape(count, policy.num_steps, -1)


def probability_of(pattern, p, separation):
    """Returns the probability of a unit's steps, bool [steps], summed over the first wait."""
    b, total = separation, 0.0
    for wait in range(b):
        found = (1.0 if wait == 0 else p) / (1 + (b - 1) * p)
        for here in pattern:
            if wait:
                found *= not here
            else:
                found *= p if here else 1 - p
            wait = b - 1 if here else max(0, wait - 1)
        total += found
    return total


@pytest.mark.parametrize(("b", "p"), [(1, 0.3), (2, 0.4), (3, 0.4), (3, 1.0), (6, 0.2)])
def test_patterns_have_the_probabilities_that_are_described(b, p):
    policy = MinSeparationPoisson(b, 4, p, 9000)
    (drawn,) = _passes(policy, 1)
    patterns = list(itertools.product([False, True], repeat=4))
    expected = {
        tuple(np.flatnonzero(pattern)): probability_of(pattern, p, b) for pattern in patterns
    }
    assert sum(expected.values()) == pytest.approx(1)
    possible = {key: value for key, value in expected.items() if value > 0}
    samples = [np.flatnonzero(column) for column in drawn.T]
    assert subset_p_value(samples, possible) > 1e-9
    # The test tells them from those of units that never wait.
    if b in (2, 3) and p < 1:
        free = MinSeparationPoisson(1, 4, p / (1 + (b - 1) * p), 9000)
        others = [np.flatnonzero(column) for column in _passes(free, 1)[0].T]
        assert subset_p_value(others, possible) < 1e-9


def test_units_are_apart_and_every_step_has_the_expected_size():
    policy = MinSeparationPoisson(5).resolve(4000, 200)
    assert policy == MinSeparationPoisson(5, 20, 200 / 3200, 4000)
    steps = _passes(policy, 20)
    for index in range(policy.num_steps - 4):
        assert steps[:, index : index + 5].sum(axis=1).max() == 1
    share = policy.expected_batch_size / 4000
    assert share == 0.05
    for size in steps.sum(axis=2).T:  # One step of all passes: they are drawn apart.
        assert stats.binomtest(int(size.sum()), 20 * 4000, share).pvalue > 1e-9


def test_units_and_passes_are_independent():
    steps = _passes(MinSeparationPoisson(3, 3, 0.5, 2), 4000)
    counts = np.zeros((4, 4), int)
    places = np.where(steps.any(axis=1), steps.argmax(axis=1), 3)
    np.add.at(counts, (places[:, 0], places[:, 1]), 1)
    assert stats.chi2_contingency(counts).pvalue > 1e-9
    one = places[:, 0]
    counts = np.zeros((4, 4), int)
    np.add.at(counts, (one[:-1:2], one[1::2]), 1)
    assert stats.chi2_contingency(counts).pvalue > 1e-9


def test_with_probability_one_units_come_in_turns():
    policy = MinSeparationPoisson(4, 12).resolve(40, 10)
    assert policy.sampling_probability == 1.0
    (steps,) = _passes(policy, 1)
    assert np.array_equal(steps[:8], steps[4:])
    assert np.all(steps[:4].sum(axis=0) == 1)


def test_sizes_follow_the_data():
    policy = MinSeparationPoisson(4).resolve(1000, 50)
    assert policy.description(3) == MinSeparationSampling(50 / 850, 4, 20, 1000, 3)
    assert policy.steps_per_pass == policy.steps_per_epoch == policy.num_steps == 20
    assert policy.draws_whole_passes and policy.expected_batch_size == 50
    assert policy.padded_size == 72
    assert MinSeparationPoisson(4, 7).resolve(1000, 50).num_steps == 7
    assert MinSeparationPoisson(4).default_batch_size(1000) == 32
    assert MinSeparationPoisson(2, 4, 0.5).expected_batch_size is None
    assert MinSeparationPoisson(2, 4, 0.5, 30).resolve(30, 10).population_size == 30


def test_under_add_or_remove_nothing_follows_the_population():
    policy = MinSeparationPoisson(3, 8, 0.25, neighboring_relation=ADD)
    described = {policy.resolve(n, None).description(0) for n in (100, 101)}
    assert described == {MinSeparationSampling(0.25, 3, 8)}
    assert policy.default_batch_size(100) is None
    for missing in ({"num_steps": 8}, {"sampling_probability": 0.5}):
        with pytest.raises(ValueError, match="number of units is not public.*ZERO_OUT"):
            MinSeparationPoisson(3, **missing, neighboring_relation=ADD).resolve(10, None)


def test_refuses_what_contradicts():
    with pytest.raises(ValueError, match="there must be batch_size left"):
        MinSeparationPoisson(5).resolve(49, 10)
    with pytest.raises(ValueError, match="made for sampling_probability=0.1, but batch_size=10"):
        MinSeparationPoisson(2, None, 0.1).resolve(50, 10)
    with pytest.raises(ValueError, match="Declare what is public"):
        MinSeparationPoisson(2, 5).description(0)
    for wrong in ((0,), (2, 0), (2, 5, 0.0), (2, 5, 1.5)):
        with pytest.raises(ValueError, match="must be"):
            MinSeparationPoisson(*wrong)


def test_a_pass_that_was_left_is_not_taken_up_again():
    policy = MinSeparationPoisson(3, 10, 0.5)
    assert policy.from_step(0) == policy.from_step(20) == policy
    with pytest.raises(ValueError, match="was left at its step 14.*Begin a new run"):
        policy.from_step(14)


def test_the_clock_begins_a_pass_after_the_last_step_of_one():
    ledger = PrivacyLedger()
    clock = PassClock(MinSeparationPoisson(2, 3, 0.5, 9), ledger)
    clock.advance(clock.peek())
    clock.begin_pass()
    assert clock._begins(None)
    assert MinSeparationPoisson(2, 3).is_over(3, None)
    assert not MinSeparationPoisson(2, 3).is_over(2, None)


def test_declared_sizes_that_cannot_be_contradict():
    policy = MinSeparationPoisson(3, 10, 0.1, 120)
    drawn = [len(units) for units in take(policy, 400)]
    assert contradiction(policy, drawn) is None
    assert "sizes are random" in contradiction(policy, [10] * 60)
    assert "sizes are random" in contradiction(MinSeparationPoisson(3, 100, 0.1), [10] * 60)
    # In the first b - 1 steps of a pass nobody knows how many wait.
    assert contradiction(MinSeparationPoisson(10, 10, 0.1, 190), [10] * 60) is None
    assert "a sample of 121 units" in contradiction(policy, [121])
    assert "on average, where 10 are expected" in contradiction(policy, [80] * 2)
    # Units in turns: no size is random.
    assert contradiction(MinSeparationPoisson(4, 100, 1.0, 40), [10] * 400) is None
