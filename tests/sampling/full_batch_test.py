"""Every unit in every step, and no other size."""

import numpy as np
import pytest

from tests.sampling.draws import take
from tfdp.events import (
    FullBatchSampling,
)
from tfdp.sampling import FullBatch


def test_full_batch_takes_every_unit_in_every_step():
    policy = FullBatch().resolve(5, 5)
    for units in take(policy, 3):
        np.testing.assert_array_equal(units, range(5))
    assert policy.description(0) == FullBatchSampling(5)
    assert (policy.steps_per_epoch, policy.padded_size, policy.expected_batch_size) == (1, 5, 5)


def test_full_batch_refuses_a_smaller_batch():
    with pytest.raises(ValueError, match="leave batch_size out.*batch_size=4, number of units=5"):
        FullBatch().resolve(5, 4)
    with pytest.raises(ValueError, match="made for population_size=6"):
        FullBatch(6).resolve(5, 5)
