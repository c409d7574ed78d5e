"""Sizes of samples that were declared, against the declaration."""

from tfdp.sampling import FixedSize, FullBatch, Poisson, Shuffled, Unknown
from tfdp.sampling.sizes import Sizes


def _contradiction(policy, sizes):
    seen = Sizes()
    for size in sizes:
        seen.add(int(size))
        found = policy.contradiction(seen)
        if found is not None:
            return found
    return None


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
