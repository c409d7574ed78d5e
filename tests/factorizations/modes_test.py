"""tfdp.factorizations.modes: the form is that of C^-1, in many digits, or there is none."""

import decimal

import numpy as np
import pytest
from scipy import signal

from tests.factorizations.many_digits import series
from tfdp.factorizations import ToeplitzFactorization, optimal_buffered
from tfdp.factorizations.modes import modes, rounding_of


def spread(count):
    """Returns a factorization as of buffers, with 1 - root falling by equal factors to 1e-3."""
    powers = 1 - 10.0 ** -np.linspace(0.05, 3, 2 * count)
    return ToeplitzFactorization(tuple(np.poly(powers[::2])), tuple(np.poly(powers[1::2])))


@pytest.mark.parametrize("buffers", [1, 2, 3, 6])
def test_modes_add_up_to_the_inverse(buffers):
    n, factorization = 300, spread(buffers)
    found = modes(factorization)
    assert len(found.decays) == len(found.weights) == buffers
    with decimal.localcontext(decimal.Context(prec=60)):
        powers = [decimal.Decimal(1)] * buffers
        column = [1.0]
        for _ in range(n - 1):
            parts = zip(found.weights, powers, strict=True)
            column.append(float(sum(decimal.Decimal(w) * power for w, power in parts)))
            powers = [
                power * (1 - decimal.Decimal(decay))
                for power, decay in zip(powers, found.decays, strict=True)
            ]
    inverse = series(factorization.denominator, factorization.numerator, n, 120)
    exact = np.array([float(value) for value in inverse])
    np.testing.assert_allclose(column, exact, rtol=1e-11, atol=1e-18)


@pytest.mark.parametrize(
    "roots", [[0.5], [-0.3, 0.9], [0.2, 0.5, 0.99999], [0.1, 0.4, 0.9, 0.999, 0.99999]]
)
def test_roots_are_found_to_the_last_digit(roots):
    # Coefficients are doubles; the exact roots of these are those that are looked for.
    numerator = tuple(np.poly(roots))
    found = modes(ToeplitzFactorization(numerator, (1.0, -0.7)))
    with decimal.localcontext(decimal.Context(prec=60)):
        for decay in found.decays:
            near = 1 - decimal.Decimal(decay)
            value = sum(
                decimal.Decimal(c) * near ** (len(roots) - k) for k, c in enumerate(numerator)
            )
            slope = sum(
                (len(roots) - k) * decimal.Decimal(c) * near ** (len(roots) - k - 1)
                for k, c in enumerate(numerator[:-1])
            )
            assert abs(value / slope) <= abs(decimal.Decimal(decay)) * decimal.Decimal(2) ** -52


@pytest.mark.parametrize(
    ("numerator", "denominator"),
    [
        ((1.0, 0.0, 0.25), (1.0,)),
        ((1.0, -1.0, 0.25), (1.0, -0.5)),
        ((1.0, -1.5, 0.75, -0.125), (1.0,)),
        ((1.0, -0.5), (1.0, -0.5, 0.01)),
        ((1.0,), (1.0, -0.5)),
        (tuple(np.poly(np.linspace(0.1, 0.9, 17))), (1.0, -0.5)),
    ],
    ids=["complex", "double", "triple", "longer denominator", "no numerator", "many"],
)
def test_what_has_no_such_form_has_no_modes(numerator, denominator):
    assert modes(ToeplitzFactorization(numerator, denominator)) is None


@pytest.mark.parametrize(("n", "buffers"), [(2000, 2), (2000, 4), (2000, 6)])
def test_rounding_is_about_what_is_estimated(n, buffers):
    """In float32, against the same recursion in double precision."""
    factorization = spread(6) if buffers == 6 else optimal_buffered(n, buffers)
    found = modes(factorization)
    decays, weights = (np.array(part)[:, None] for part in found)
    narrow = [part.astype(np.float32) for part in (decays, weights)]
    rng = np.random.default_rng(1)
    exact, rounded = np.zeros((buffers, 8)), np.zeros((buffers, 8), np.float32)
    off = np.zeros((n, 8))
    for i in range(n):
        z = rng.standard_normal(8).astype(np.float32)
        noise, of_rounded = z + np.sum(weights * exact, 0), z
        for weight, state in zip(narrow[1], rounded, strict=True):
            of_rounded = of_rounded + weight * state
        exact += z - decays * exact
        rounded += z - narrow[0] * rounded
        off[i] = of_rounded - noise
    column = factorization.column(n)[:, None]
    moved = np.std(signal.fftconvolve(column, off, axes=0)[n // 2 : n])
    estimate = rounding_of(factorization, found, n) * 2.0**-24
    assert estimate / 4 < moved < estimate
