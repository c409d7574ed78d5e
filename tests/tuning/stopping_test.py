"""Numbers of runs, against the distributions of the paper."""

import math

import numpy as np
import pytest
from scipy import stats

from tfdp.noise import HostGenerator
from tfdp.tuning import PoissonRuns, TruncatedNegativeBinomialRuns

DRAWS = 20_000


class Uniforms:
    """Stands in for the generator: the given numbers, in turn."""

    def __init__(self, numbers):
        self._numbers = iter(numbers)

    def random(self, size):
        return np.array([next(self._numbers) for _ in range(size)])


def _probabilities(shape, gamma, most):
    """P(K = k) for k = 1 .. most, by the formula of definition 1."""
    k = np.arange(1, most + 1)
    if shape == 0:
        return (1 - gamma) ** k / k / math.log(1 / gamma)
    products = np.cumprod((np.arange(most) + shape) / (np.arange(most) + 1))
    return (1 - gamma) ** k / (gamma**-shape - 1) * products


@pytest.mark.parametrize("shape", [1.0, 0.0, -0.5, 2.5])
def test_number_of_runs_inverts_the_distribution(shape):
    gamma = 0.05
    numbers = TruncatedNegativeBinomialRuns(gamma, shape)
    edges = np.cumsum(_probabilities(shape, gamma, 60))
    # Just below the end of what belongs to k it is k, and just above it is k + 1.
    drawn = [numbers.draw(Uniforms([edge - 1e-9])) for edge in edges]
    assert drawn == list(range(1, 61))
    assert [numbers.draw(Uniforms([edge + 1e-9])) for edge in edges] == list(range(2, 62))
    k = np.arange(1, 5001)
    assert numbers.mean == pytest.approx(float(k @ _probabilities(shape, gamma, 5000)), rel=1e-9)


def test_poisson_number_inverts_the_distribution():
    numbers = PoissonRuns(7.0)
    edges = stats.poisson.cdf(np.arange(30), 7.0)
    assert [numbers.draw(Uniforms([edge - 1e-12])) for edge in edges[:20]] == list(range(20))
    assert numbers.draw(Uniforms([1 - 2.0**-53])) < 60


def test_draws_are_random():
    numbers, generator = TruncatedNegativeBinomialRuns(0.1), HostGenerator()
    drawn = np.array([numbers.draw(generator) for _ in range(DRAWS)])
    # Geometric, of mean 10 and variance 90: six and a half deviations of the mean.
    assert drawn.min() == 1
    assert abs(drawn.mean() - 10) < 6.5 * math.sqrt(90 / DRAWS)


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: TruncatedNegativeBinomialRuns(0.0), ValueError),
        (lambda: TruncatedNegativeBinomialRuns(1.0), ValueError),
        (lambda: TruncatedNegativeBinomialRuns(0.5, -1.0), ValueError),
        (lambda: TruncatedNegativeBinomialRuns(0.4, 1000.0), ValueError),
        (lambda: TruncatedNegativeBinomialRuns("0.5"), TypeError),
        (lambda: PoissonRuns(0.5), ValueError),
        (lambda: PoissonRuns(math.nan), ValueError),
    ],
)
def test_bad_arguments(make, error):
    with pytest.raises(error):
        make()


def test_probabilities_that_a_float_just_holds():
    # Beyond them `draw` would end the search with an error, when it was charged already.
    numbers = TruncatedNegativeBinomialRuns(0.5, 1000.0)
    drawn = [numbers.draw(HostGenerator()) for _ in range(50)]
    assert abs(np.mean(drawn) - numbers.mean) < 6.5 * math.sqrt(2000 / 50)


@pytest.mark.parametrize("shape", [0.0, 1.0, -0.5])
def test_mean_of_runs_that_are_hardly_ever_two_is_one(shape):
    for gamma in (1 - 2.0**-53, 1 - 2.0**-40):
        assert TruncatedNegativeBinomialRuns(gamma, shape).mean == pytest.approx(1.0, rel=1e-9)
