"""tfdp.sampling.balls_in_bins: what is drawn is what is described, and stays."""

import dataclasses
import os
import pickle

import numpy as np
import pytest
from scipy import stats

from tests.sampling.draws import contradiction, take
from tfdp.events import BallsInBinsSampling, NeighboringRelation
from tfdp.ledger import PrivacyLedger
from tfdp.sampling import BallsInBins
from tfdp.sampling.clock import PassClock

ADD = NeighboringRelation.ADD_OR_REMOVE_ONE
KEY = bytes(range(32))
GOLDEN, NAME = [[3, 6, 7, 11], [0, 2], [4, 5, 9], [1, 8, 10]], 2229325339218106976


def _same(samples, others):
    return all(np.array_equal(a, b) for a, b in zip(samples, others, strict=True))


@pytest.mark.parametrize("bins", [1, 5, 40])
def test_every_unit_is_in_one_bin_and_bins_take_turns(bins):
    steps = take(BallsInBins(bins, 20), 3 * bins)
    assert all(units.dtype == np.int64 for units in steps)
    assert sorted(np.concatenate(steps[:bins])) == [*range(20)]
    assert _same(steps[:bins], steps[bins : 2 * bins]) and _same(steps[bins:], steps[:-bins])


def test_bins_of_two_units_are_uniform_and_independent():
    counts = np.zeros((3, 3), int)
    for _ in range(1800):
        steps = take(BallsInBins(3, 2), 3)
        places = [next(i for i, units in enumerate(steps) if unit in units) for unit in (0, 1)]
        counts[tuple(places)] += 1
    assert stats.chisquare(counts.ravel()).pvalue > 1e-9
    # Halves of a shuffled order are hardly ever together: the test tells.
    assert stats.chisquare(np.full(9, 300) - 90 * np.eye(3).ravel()).pvalue < 1e-3


def test_sizes_are_binomial():
    sizes = [len(take(BallsInBins(4, 40), 1)[0]) for _ in range(2000)]
    expected = stats.binom(40, 0.25)
    edges = [-1, 6, 8, 9, 10, 11, 12, 14, 40]
    observed = np.histogram(sizes, np.array(edges) + 0.5)[0]
    assert stats.chisquare(observed, 2000 * np.diff(expected.cdf(edges))).pvalue > 1e-9


def test_bins_follow_from_the_key_alone():
    one = BallsInBins(10, 50)
    assert _same(take(one, 10), take(one, 10))
    assert _same(take(one, 10), take(BallsInBins(10, 50, key=one.key), 10))
    assert not _same(take(one, 10), take(BallsInBins(10, 50), 10))
    assert _same(take(one.from_step(13), 10), take(one, 13)[3:])
    # A copy, as in another process, has the bins and says so.
    copy = pickle.loads(pickle.dumps(one))
    assert _same(take(copy, 10), take(one, 10)) and copy.description(3) == one.description(3)


def test_bins_of_a_key_are_the_same_in_all_versions():
    # Whoever changes them makes resumed runs mix two draws under one number.
    steps = take(BallsInBins(4, 12, key=KEY), 4)
    assert [units.tolist() for units in steps] == GOLDEN
    assert BallsInBins(4, 12, key=KEY).description(0).assignment == NAME


def test_the_number_of_the_draw_names_the_key_and_does_not_hold_it():
    one, other = BallsInBins(10, 50), BallsInBins(10, 50)
    assert one.description(0).assignment == one.description(7).assignment
    assert one.description(0).assignment != other.description(0).assignment
    assert repr(one.key) not in repr(one) and "key" not in repr(one)
    assert str(int.from_bytes(one.key, "big")) not in repr(one.description(0))


@pytest.mark.parametrize("relation", list(NeighboringRelation))
def test_with_other_sizes_a_key_has_other_bins_and_the_draw_another_name(relation):
    def make(bins, units):
        return BallsInBins(bins, units, neighboring_relation=relation, key=KEY)

    one = make(7, 500)
    for other in (make(7, 501), make(8, 500)):
        assert one._bins()[:50].tolist() != other._bins()[:50].tolist()
        assert one.description(0).assignment != other.description(0).assignment
    assert make(7, 500).description(0) == one.description(0)


@pytest.mark.parametrize("wrong", [b"short", "x" * 32, 7])
def test_refuses_what_is_no_key_and_does_not_show_it(wrong):
    with pytest.raises(ValueError, match="os.urandom") as error:
        BallsInBins(3, key=wrong)
    assert str(wrong) not in str(error.value)
    assert BallsInBins(3, key=os.urandom(32)).num_bins == 3


def test_sizes_follow_the_data():
    policy = BallsInBins().resolve(103, 10)
    assert policy.num_bins == policy.steps_per_epoch == 11
    assert policy.is_ordered and policy.steps_per_pass is None
    description = policy.description(14)
    assert description == BallsInBinsSampling(11, 3, description.assignment, 103)
    assert policy.from_step(14).description(1).bin_index == 4
    assert policy.expected_batch_size == pytest.approx(103 / 11)
    assert BallsInBins(4, 100).padded_size == 40 and BallsInBins(1, 100).padded_size == 100
    assert BallsInBins(7).default_batch_size(100) is None
    assert BallsInBins().default_batch_size(100) == 32
    assert BallsInBins(10, key=KEY).resolve(100, 10) == BallsInBins(key=KEY).resolve(100, 10)


def test_under_add_or_remove_nothing_follows_the_population():
    policy = BallsInBins(8, neighboring_relation=ADD, key=KEY)
    described = {
        # The name of the draw looks random, whatever the sizes are.
        (dataclasses.replace(found.description(0), assignment=0), found.steps_per_epoch, size)
        for n in (100, 101)
        for found in [policy.resolve(n, None)]
        for size in [found.default_batch_size(n)]
    }
    assert described == {(BallsInBinsSampling(8, 0, 0), 8, None)}
    with pytest.raises(ValueError, match="number of units is not public.*ZERO_OUT"):
        BallsInBins(neighboring_relation=ADD).resolve(10, 2)


def test_refuses_what_contradicts():
    with pytest.raises(ValueError, match="made for num_bins=9, but batch_size=10"):
        BallsInBins(9).resolve(100, 10)
    with pytest.raises(ValueError, match="Declare the number of bins"):
        BallsInBins().description(0)
    with pytest.raises(ValueError, match="num_bins must be"):
        BallsInBins(0)


def test_the_clock_counts_turns():
    policy, ledger = BallsInBins(3, 9), PrivacyLedger()
    clock, found = PassClock(policy.from_step(4), ledger), []
    for _ in range(7):
        found.append(clock.peek())
        clock.advance(found[-1])
    assert [sampling.bin_index for sampling in found] == [1, 2, 0, 1, 2, 0, 1]


def test_declared_sizes_that_cannot_be_contradict():
    policy = BallsInBins(100, 1000)
    drawn = [len(units) for units in take(policy, 400)]
    assert contradiction(policy, drawn) is None
    assert "a sample of 1001 units" in contradiction(policy, [1001])
    assert "sizes are random" in contradiction(policy, [10] * 100)
    assert "sizes are random" in contradiction(BallsInBins(100), [10] * 100)
    assert "on average, where 10 are expected" in contradiction(policy, [90] * 2)
    assert contradiction(BallsInBins(1), [10] * 100) is None
