"""Passes over shuffled data: every unit once, in a uniform order."""

import itertools

import numpy as np
from scipy import stats

from tests.sampling.draws import take
from tfdp.events import (
    NeighboringRelation,
    ShuffledSampling,
)
from tfdp.sampling import Shuffled


def _passes(policy, count):
    steps = take(policy, count * policy.steps_per_pass)
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
