"""What tests of every folder share."""

import hypothesis
import numpy as np
import pytest
from scipy import stats

# The first call of a TensorFlow function traces it, which no deadline should count; and the same
# examples every time, so that a failure is somebody's change.
hypothesis.settings.register_profile("tfdp", deadline=None, derandomize=True)
hypothesis.settings.load_profile("tfdp")


def _accepts_stddev(samples: np.ndarray, stddev: float) -> bool:
    samples = np.ravel(samples).astype(np.float64)
    low, high = stats.chi2.interval(1 - 1e-9, samples.size)
    return low < np.sum((samples / stddev) ** 2) < high


@pytest.fixture(scope="session")
def check_stddev():
    """Accepts N(0, stddev^2) samples, all but one time in 10^9, and rejects them if 1.5 times off.

    With 600 samples the interval for the variance ends well before 1.5^2 and 1.5^-2.
    """

    def check(samples, stddev):
        assert np.size(samples) >= 600
        assert _accepts_stddev(samples, stddev)
        assert not _accepts_stddev(samples, stddev * 3 / 2)
        assert not _accepts_stddev(samples, stddev * 2 / 3)

    return check


def _correlated(left: np.ndarray, right: np.ndarray) -> bool:
    # Correlations of n independent pairs have standard deviation n^-1/2; 6.2 of them: once in 10^9.
    left, right = np.ravel(left), np.ravel(right)
    return abs(np.corrcoef(left, right)[0, 1]) > 6.2 / np.sqrt(left.size)


@pytest.fixture(scope="session")
def check_independent():
    """Accepts two independent arrays of draws, and shows that equal ones are rejected."""

    def check(left, right):
        assert _correlated(left, left)
        assert not _correlated(left, right)

    return check
