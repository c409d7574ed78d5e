"""Sizes of samples that were declared, against the declaration."""

import dataclasses

import pytest

from tests.sampling.draws import contradiction
from tfdp.events import NeighboringRelation
from tfdp.sampling import FixedSize, FullBatch, Poisson, Shuffled, Unknown
from tfdp.sampling.sizes import Sizes


def test_sizes_that_are_no_samples_contradict():
    assert "64 units on average" in contradiction(Poisson(0.01, 640), [64] * 20)
    assert "where sizes are random" in contradiction(Poisson(0.1, 640), [64] * 20)
    assert "where sizes are random" in contradiction(Poisson(0.01), [64] * 20)
    assert "641" in contradiction(Poisson(0.9, 640), [641])
    assert "4 units" in contradiction(FixedSize(3, 10), [3, 4])
    assert "4 units" in contradiction(Shuffled(3, 10), [3, 3, 3, 1, 4])
    assert contradiction(Shuffled(3, 10), [3, 3, 3, 1]) is None
    assert "9 units" in contradiction(FullBatch(10), [10, 9])
    assert contradiction(FullBatch(), [10, 9]) is None
    assert contradiction(Unknown(), [10, 9]) is None


_ADD = NeighboringRelation.ADD_OR_REMOVE_ONE


@pytest.mark.parametrize(
    ("policy", "sizes"),
    [
        (Poisson(0.1, 1000, _ADD), [997]),
        (Poisson(0.1, neighboring_relation=_ADD), [997] * 99),
        (FullBatch(1000, _ADD), [997]),
        (Shuffled(100, 1000, _ADD), [997]),
    ],
)
def test_sizes_that_are_not_public_are_in_no_error(policy, sizes):
    seen = Sizes()
    for size in sizes:
        seen.add(size)
    assert policy.contradiction(seen) == "the sizes of these batches, which are not public"
    public = dataclasses.replace(policy, neighboring_relation=NeighboringRelation.ZERO_OUT)
    assert "997" in public.contradiction(seen)
