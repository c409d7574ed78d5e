"""tfdp.events.sampling: sizes that cannot be are refused."""

import pytest

from tfdp.events import (
    FixedSizeSampling,
    FullBatchSampling,
    PoissonSampling,
    ShuffledSampling,
    TruncatedPoissonSampling,
)


@pytest.mark.parametrize("q", [0, 1.0000001])
@pytest.mark.parametrize("kind", [PoissonSampling, lambda q: TruncatedPoissonSampling(q, 10, 5)])
def test_probability_is_above_zero_and_at_most_one(kind, q):
    assert kind(1).sampling_probability == 1.0
    with pytest.raises(ValueError, match="greater than 0 and at most 1"):
        kind(q)


def test_a_sample_is_no_larger_than_its_population():
    assert FixedSizeSampling(10, 10).sample_size == 10
    with pytest.raises(ValueError, match="at most population_size"):
        FixedSizeSampling(11, 10)


@pytest.mark.parametrize("make", [PoissonSampling, lambda _, n: FullBatchSampling(n)])
def test_population_may_be_unknown(make):
    assert make(0.5, None).population_size is None
    with pytest.raises(ValueError, match="population_size must be at least 1"):
        make(0.5, 0)


@pytest.mark.parametrize("n", range(1, 13))
@pytest.mark.parametrize("b", range(1, 13))
def test_a_pass_has_the_batches_that_hold_everybody(n, b):
    assert ShuffledSampling(b, n).steps_per_pass == len(range(0, n, b))


@pytest.mark.parametrize(
    ("index", "error"), [(-1, ValueError), (1.0, TypeError), (True, TypeError)]
)
def test_passes_are_counted_from_zero(index, error):
    assert ShuffledSampling(2, 10) == ShuffledSampling(2, 10, 0) != ShuffledSampling(2, 10, 1)
    with pytest.raises(error, match="pass_index must"):
        ShuffledSampling(2, 10, index)
