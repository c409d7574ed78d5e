"""tfdp.factorizations.toeplitz against dense matrices, all participations and closed forms."""

import decimal
import fractions
import itertools
import math

import numpy as np
import pytest
from scipy import linalg, signal

from tests.factorizations.many_digits import series
from tfdp.factorizations import (
    ToeplitzFactorization,
    banded_inverse_square_root,
    banded_square_root,
    independent,
    one_step_back,
)
from tfdp.factorizations.toeplitz import periodic_sum

KINDS = {
    "independent": independent(),
    "square_root": banded_square_root(5),
    "inverse": banded_inverse_square_root(4),
    "one_step_back": one_step_back(0.7),
    "rational": ToeplitzFactorization((1.0, 0.4, 0.1), (1.0, -0.5)),
    "signed": ToeplitzFactorization((1.0, -0.6, 0.2)),
}
kinds = pytest.mark.parametrize("factorization", KINDS.values(), ids=KINDS)


def _dense(column):
    return linalg.toeplitz(column, np.zeros(len(column)))


def _matrix(factorization, n):
    """Returns C from its two banded factors, without a series."""
    p, r = (np.zeros(n), np.zeros(n))
    p[: len(factorization.numerator)] = factorization.numerator[:n]
    r[: len(factorization.denominator)] = factorization.denominator[:n]
    return _dense(p) @ np.linalg.inv(_dense(r))


@kinds
@pytest.mark.parametrize("n", [7, 12])
def test_columns_and_errors_are_those_of_dense_matrices(factorization, n):
    c = _matrix(factorization, n)
    np.testing.assert_allclose(factorization.column(n), c[:, 0], atol=1e-12)
    np.testing.assert_allclose(factorization.inverse_column(n), np.linalg.inv(c)[:, 0], atol=1e-12)
    b = np.tril(np.ones((n, n))) @ np.linalg.inv(c)
    sensitivity = factorization.sensitivity(n)
    assert factorization.max_error(n) == pytest.approx(
        sensitivity * np.linalg.norm(b, axis=1).max(), rel=1e-9
    )
    assert factorization.root_mean_squared_error(n) == pytest.approx(
        sensitivity * np.linalg.norm(b) / math.sqrt(n), rel=1e-9
    )


@kinds
@pytest.mark.parametrize("period", [1, 2, 3, 5, 8, None])
def test_sensitivity_is_the_worst_of_all_participations_and_signs(factorization, period):
    n = 8
    c, spacing = _matrix(factorization, n), n if period is None else period
    worst = 0.0
    for first in range(min(spacing, n)):
        steps = list(range(first, n, spacing))
        # Vectors of norm 1 on a line: signs are the extreme points.
        for signs in itertools.product([-1, 1], repeat=len(steps)):
            worst = max(worst, np.linalg.norm(c[:, steps] @ np.array(signs)))
    found = factorization.sensitivity(n, period)
    assert found >= worst
    if np.all(c >= 0):
        assert found == pytest.approx(worst, rel=1e-10)


def test_vectors_in_any_direction_move_no_further():
    rng = np.random.default_rng(0)
    for factorization in KINDS.values():
        c = _matrix(factorization, 9)
        for period in (1, 2, 4):
            bound = factorization.sensitivity(9, period)
            for _ in range(50):
                g = np.zeros((9, 3))
                rows = np.arange(rng.integers(period), 9, period)
                g[rows] = rng.normal(size=(len(rows), 3))
                g[rows] /= np.linalg.norm(g[rows], axis=1, keepdims=True)
                assert np.linalg.norm(c @ g) <= bound


def test_closed_forms():
    # C(x) = 1 / (1 - x / 2) over 40 steps: squares add up to 4/3, periods do as they should.
    half = one_step_back(0.5)
    assert half.sensitivity(60) == pytest.approx(math.sqrt(4 / 3), rel=1e-9)
    assert independent().sensitivity(12, 3) == pytest.approx(2.0)
    assert independent().max_error(16) == pytest.approx(4.0)
    # Of n running sums of independent noise the mean variance is (n + 1) / 2.
    assert independent().root_mean_squared_error(15) == pytest.approx(math.sqrt(8))
    # The square root of A, squared, is A.
    root = banded_square_root(20).column(20)
    np.testing.assert_allclose(np.convolve(root, root)[:20], np.ones(20))
    inverse = banded_inverse_square_root(20).inverse_column(20)
    np.testing.assert_allclose(np.convolve(inverse, root)[:20], np.eye(20)[0], atol=1e-14)


def test_error_of_the_square_root_is_logarithmic():
    # Both factors are the same matrix, and the square of its k-th coefficient is below 1 / (pi k).
    for n in (64, 1024):
        harmonic = math.fsum(1 / k for k in range(1, n))
        assert 0.9 * harmonic / math.pi < banded_square_root(n).max_error(n)
        assert banded_square_root(n).max_error(n) <= 1 + harmonic / math.pi


def test_noise_follows_the_recurrence():
    rng = np.random.default_rng(1)
    for factorization in KINDS.values():
        p, r = factorization.numerator, factorization.denominator
        z, y = rng.normal(size=10), []
        for t in range(10):
            past = sum(r[j] * z[t - j] for j in range(1, min(t + 1, len(r))))
            past -= sum(p[j] * y[t - j] for j in range(1, min(t + 1, len(p))))
            y.append(z[t] + past)
        np.testing.assert_allclose(_matrix(factorization, 10) @ y, z, atol=1e-12)


def test_bands_and_memory():
    assert [f.bands for f in KINDS.values()] == [1, 5, None, None, None, 3]
    assert [f.memory(9) for f in KINDS.values()] == [0, 4, 3, 1, 2, 2]


def test_periodic_sum():
    np.testing.assert_array_equal(periodic_sum(np.array([1.0, 2, 3, 4, 5]), 2), [1, 2, 4, 6, 9])
    np.testing.assert_array_equal(periodic_sum(np.array([1.0, 2, 3]), 7), [1, 2, 3])


@pytest.mark.parametrize(
    "make",
    [
        lambda: ToeplitzFactorization(()),
        lambda: ToeplitzFactorization((2.0,)),
        lambda: ToeplitzFactorization((1.0, math.nan)),
        lambda: ToeplitzFactorization((1.0,), (1.0, 0.0)),
        lambda: one_step_back(1.0),
        lambda: banded_square_root(0),
        lambda: independent().column(0),
        lambda: independent().column(2**20 + 1),
        lambda: independent().sensitivity(4, 0),
        lambda: ToeplitzFactorization((1.0,), (1.0, -1e300)).column(5),
        lambda: ToeplitzFactorization((1.0,), (1.0, -1e60)).sensitivity(5),
        lambda: ToeplitzFactorization((1.0, 1e308)).sensitivity(9, 1),
        lambda: ToeplitzFactorization((1.0, 1e60), (1.0,)).max_error(5),
        lambda: ToeplitzFactorization((1.0, 1e60), (1.0,)).root_mean_squared_error(5),
    ],
)
def test_refuses_what_is_no_factorization(make):
    with pytest.raises(ValueError, match="Received|outside the unit circle"):
        make()
    with pytest.raises(TypeError, match="must be an integer"):
        independent().column(2.0)


def of_roots(values):
    """Returns the coefficients of prod (1 - v x)."""
    return tuple(np.poly(values).tolist())


def exact_column(numerator, denominator, n):
    """Returns the series in rational numbers."""
    p, r = ([fractions.Fraction(v) for v in c] for c in (numerator, denominator))
    column = []
    for i in range(n):
        value = p[i] if i < len(p) else fractions.Fraction(0)
        value -= sum(r[k] * column[i - k] for k in range(1, min(len(r), i + 1)))
        column.append(value)
    return [float(value) for value in column]


def test_columns_of_close_roots_keep_all_digits():
    """In float64 the recursion loses them, and the sensitivity could come out too small."""
    denominator = of_roots([0.9999, 0.9997, 0.9991, 0.997, 0.99, 0.96])
    numerator = of_roots([0.9998, 0.9994, 0.998, 0.995, 0.98, 0.9])
    factorization = ToeplitzFactorization(numerator, denominator)
    expected = exact_column(numerator, denominator, 300)
    np.testing.assert_allclose(factorization.column(300), expected, rtol=1e-15)
    impulse = np.zeros(300)
    impulse[0] = 1
    lost = signal.lfilter(numerator, denominator, impulse)
    assert np.abs(lost / expected - 1).max() > 1e-8


def test_columns_that_would_lose_digits_are_refused_where_they_are_too_long():
    factorization = ToeplitzFactorization(denominator=of_roots([0.9] * 10))
    with pytest.raises(ValueError, match="cannot be computed safely for 1048576 steps"):
        factorization.sensitivity(2**20)
    assert len(factorization.inverse_column(2**20)) == 2**20


def _exact_sensitivity(factorization, n, period):
    """The sensitivity in 60 digits, of a column without negative numbers."""
    with decimal.localcontext(decimal.Context(prec=60)):
        column = series(factorization.numerator, factorization.denominator, n, 60)
        moved = [sum(column[i::-period]) for i in range(n)] if period else column
        return sum(v * v for v in moved).sqrt()


@pytest.mark.parametrize("period", [None, 97, 1])
def test_rounding_takes_nothing_off_a_sensitivity(period):
    bare = []
    for bands in (2, 5, 8):
        for n in (50, 300, 777):
            factorization = banded_inverse_square_root(bands)
            exact = _exact_sensitivity(factorization, n, period)
            found = factorization.sensitivity(n, period)
            assert exact <= decimal.Decimal(found) <= exact * (1 + decimal.Decimal(1e-11))
            slack = decimal.Decimal(1 + (n * (bands + 2) + 8) * 2.0**-52)
            bare.append(decimal.Decimal(found) / slack < exact)
    assert any(bare)  # Power: without a slack it would.


@kinds
@pytest.mark.parametrize("n", [1, 7, 12])
@pytest.mark.parametrize("period", [1, 3, 5, 12, 15])
def test_products_of_turns_are_those_of_dense_matrices(factorization, n, period):
    c = np.abs(_matrix(factorization, n))
    moved = np.stack([c[:, j::period].sum(axis=1) for j in range(period)], axis=1)
    found = factorization.products_of_turns(n, period)
    np.testing.assert_allclose(found, moved.T @ moved, rtol=1e-12, atol=1e-13)
    largest = math.sqrt(found.max())
    assert factorization.sensitivity(n, period) == pytest.approx(largest, rel=1e-9)


def test_products_that_overflow_are_refused():
    with pytest.raises(ValueError, match="overflows within"):
        ToeplitzFactorization((1.0, 1e160)).products_of_turns(8, 2)


@pytest.mark.parametrize("kind", [np.uint8, np.uint32, np.int8])
def test_numbers_of_steps_of_numpy_do_not_wrap_around(kind):
    made = banded_square_root(3)
    for arguments in ((100,), (100, 5)):
        given = [kind(number) for number in arguments]
        assert made.sensitivity(*given) == made.sensitivity(*arguments)
        assert made.max_error(*given) == made.max_error(*arguments)
        assert made.root_mean_squared_error(*given) == made.root_mean_squared_error(*arguments)
