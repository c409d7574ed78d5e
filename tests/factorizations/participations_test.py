"""Participations that are some steps apart, against all of them in small cases."""

import itertools
import math

import numpy as np
import pytest

from tests.factorizations.trees import tree_matrices
from tfdp.factorizations import (
    BinaryTree,
    ToeplitzFactorization,
    banded_inverse_square_root,
    banded_square_root,
    independent,
    one_step_back,
    optimal_banded,
    optimal_buffered,
    participations,
)

N = 9
FALLING = {
    "independent": independent(),
    "square_root": banded_square_root(4),
    "optimal": optimal_banded(N, 4),
    "inverse": banded_inverse_square_root(4),
    "buffered": optimal_buffered(N, 2),
    "one_step_back": one_step_back(0.7),
}
OTHERS = {
    "rising": ToeplitzFactorization((1.0, 0.2, 0.9)),
    "signed": ToeplitzFactorization((1.0, -0.6, 0.2)),
}
KINDS = FALLING | OTHERS
TREES = {"tree": BinaryTree(), "plain_tree": BinaryTree(efficient=False)}


def patterns(n, separation, most):
    """Yields all sets of at most `most` steps that are so far apart."""
    for k in range(1, min(n, most) + 1):
        for steps in itertools.combinations(range(n), k):
            if all(b - a >= separation for a, b in itertools.pairwise(steps)):
                yield list(steps)


def worst(c, separation, most):
    """Returns the largest norm over all patterns and signs; the slow, obvious twin."""
    found = 0.0
    for steps in patterns(c.shape[1], separation, most):
        signs = [steps[:0]] if np.all(c >= 0) else itertools.product([-1, 1], repeat=len(steps))
        for sign in signs:
            total = c[:, steps] @ (np.array(sign) if len(sign) else np.ones(len(steps)))
            found = max(found, float(np.linalg.norm(total)))
    return found


def toeplitz(factorization, n):
    column = factorization.column(n)
    return np.array([[column[i - j] if i >= j else 0.0 for j in range(n)] for i in range(n)])


@pytest.mark.parametrize("most", [1, 2, 3, None])
@pytest.mark.parametrize("separation", [1, 2, 3, 5, 9, 12])
@pytest.mark.parametrize("name", KINDS)
def test_columns_against_all_participations_and_signs(name, separation, most):
    factorization = KINDS[name]
    expected = worst(toeplitz(factorization, N), separation, most or N)
    found = factorization.sensitivity_to_participations(N, separation, most)
    assert found >= expected
    if name in FALLING:
        assert found == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("efficient", [True, False])
@pytest.mark.parametrize("n", [1, 2, 3, 5, 7, 8, 11, 13])
def test_trees_against_all_participations(n, efficient):
    _, c = tree_matrices(n, efficient)
    if not efficient:  # Sums that end with a right node are made up of the node above it.
        levels = [(level, k) for level in range(n.bit_length()) for k in range(n >> level)]
        c = c[[k % 2 == 0 for _, k in levels]]
    tree = BinaryTree(efficient)
    for separation in (1, 2, 3, 4, 6, n):
        for most in (1, 2, 3, None):
            found = tree.sensitivity_to_participations(n, separation, most)
            expected = worst(c, separation, most or n)
            assert found == pytest.approx(expected, rel=1e-9), (separation, most)
            b = min(separation, n)
            count = min(-(-n // b), most or n)
            assert math.sqrt(participations._bound_of_tree(n, b, count)) >= expected - 1e-9


@pytest.mark.parametrize("name", [*KINDS, *TREES])
def test_what_may_happen_more_costs_more(name):
    factorization = (KINDS | TREES)[name]
    # Every period-th step is one of the patterns, and one step alone is another.
    for n, period in ((24, 5), (40, 8), (33, 1)):
        found = factorization.sensitivity_to_participations(n, period)
        assert found >= factorization.sensitivity(n, period) - 1e-12
        if name in FALLING:  # Turns are the worst that can happen.
            assert found == pytest.approx(factorization.sensitivity(n, period), rel=1e-10)
        once = factorization.sensitivity_to_participations(n, period, 1)
        assert once >= factorization.column_norm(n) * (1 - 1e-9)
        values = [factorization.sensitivity_to_participations(n, b, 3) for b in (1, 2, 5, 9)]
        assert values == sorted(values, reverse=True)


def test_bands_that_fit_between_participations_do_not_meet():
    found = banded_square_root(4).sensitivity_to_participations(100, 4, 5)
    assert found == pytest.approx(math.sqrt(5) * banded_square_root(4).column_norm(100))


# By jax_privacy 2.0.0, matrix_factorization.toeplitz.minsep_sensitivity_squared of the column.
OF_JAX_PRIVACY = [
    ("root", 64, 10, 3, 2.759340742),
    ("root", 64, 16, None, 2.788461115),
    ("root", 200, 7, 5, 3.993744841),
    ("root", 200, 40, 2, 1.971739763),
    ("root", 100, 1, 4, 4.660713079),
    ("inverse", 64, 10, 3, 2.734833603),
    ("inverse", 64, 16, None, 2.964334249),
    ("inverse", 200, 7, 5, 4.006260182),
    ("inverse", 200, 40, 2, 1.942766698),
    ("inverse", 100, 1, 4, 4.56087739),
]


@pytest.mark.parametrize(("name", "n", "separation", "most", "value"), OF_JAX_PRIVACY)
def test_sensitivities_are_those_of_jax_privacy(name, n, separation, most, value):
    made = {"root": banded_square_root(16), "inverse": banded_inverse_square_root(8)}[name]
    assert made.sensitivity_to_participations(n, separation, most) == pytest.approx(value, rel=1e-9)


def test_a_large_tree_has_an_upper_bound_at_once():
    tree = BinaryTree()
    assert tree.sensitivity_to_participations(2**20, 1000) >= tree.sensitivity(2**20, 1000)
    assert tree.sensitivity_to_participations(2**20, 1000, 1) ** 2 == pytest.approx(21)


@pytest.mark.parametrize("factorization", [banded_square_root(3), BinaryTree()])
@pytest.mark.parametrize(
    ("arguments", "error"),
    [((0, 1), ValueError), ((4, 0), ValueError), ((4, 1, 0), ValueError), ((4, 1.0), TypeError)],
)
def test_bad_arguments_are_refused(factorization, arguments, error):
    with pytest.raises(error, match="must be"):
        factorization.sensitivity_to_participations(*arguments)
