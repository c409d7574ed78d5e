"""Sizes of samples that were declared, against the declaration."""

from tests.sampling.draws import contradiction
from tfdp.sampling import FixedSize, FullBatch, Poisson, Shuffled, Unknown


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
