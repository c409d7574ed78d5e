"""Errors of factorizations against published ones, closed forms and the least of all."""

import math
import pathlib
import sys

import numpy as np
import pytest

from tfdp.factorizations import BinaryTree, banded_square_root, optimal_buffered

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "benchmarks"))

import published_errors  # noqa: E402


@pytest.mark.parametrize(("n", "buffers"), published_errors.OF_JAX_PRIVACY)
def test_buffers_are_as_close_to_the_bound_as_jax_privacy_says_of_its_own(n, buffers):
    most = published_errors.OF_JAX_PRIVACY[n, buffers]
    assert published_errors.ratio_to_mathias(n, buffers) <= most


def test_golden_buffers_of_jax_privacy_are_no_better():
    n = 100_000
    published = published_errors.golden()
    (a, b), (s, t) = published_errors.GOLDEN["decay"], published_errors.GOLDEN["scale"]
    powers = np.arange(9)
    np.testing.assert_allclose(published.column(10)[1:], s * a**powers + t * b**powers)
    found = optimal_buffered(n, 2, error="max").max_error(n)
    assert found <= published.max_error(n) * (1 + 1e-9)


@pytest.mark.parametrize(("n", "space"), published_errors.BINNED)
def test_buffers_have_less_error_than_binned_square_roots_of_as_many_numbers(n, space):
    buffers = min(space, published_errors.MOST_BUFFERS)
    mean, last = published_errors.BINNED[n, space]
    found = published_errors.ratios_to_square_root(n, buffers)
    assert found[0] < mean
    assert found[1] < last


@pytest.mark.parametrize("n", [1, 2, 50, 1024])
def test_all_bands_of_the_square_root_have_the_errors_of_its_closed_form(n):
    squares = [(math.comb(2 * k, k) / 4**k) ** 2 for k in range(min(n, 500))]
    mean, last = published_errors.errors_of_square_root(n)
    if n <= 500:
        assert last == pytest.approx(math.fsum(squares), rel=1e-12)
    assert banded_square_root(n).max_error(n) == pytest.approx(last, rel=1e-9)
    assert banded_square_root(n).root_mean_squared_error(n) == pytest.approx(mean, rel=1e-9)


@pytest.mark.parametrize("n", [1024, 4096])
def test_buffers_for_the_last_sum_come_close_to_the_best_toeplitz_and_never_below(n):
    # The square root has the smallest largest error of all Toeplitz factors (arXiv:2404.16706).
    _, last = published_errors.errors_of_square_root(n)
    found = optimal_buffered(n, 4, error="max").max_error(n)
    assert last * (1 - 1e-9) <= found <= last * 1.001


@pytest.mark.parametrize("level", [1, 4, 10, 12])
def test_trees_have_the_errors_of_their_closed_form(level):
    # A node for every 1 in t, of at most `level`, and level + 1 nodes above a leaf.
    n, tree = 2**level, BinaryTree(efficient=False)
    assert tree.max_error(n) == pytest.approx(math.sqrt((level + 1) * level), rel=1e-9)
    mean = (level + 1) * (level / 2 + 1 / n)
    assert tree.root_mean_squared_error(n) == pytest.approx(math.sqrt(mean), rel=1e-9)


@pytest.mark.parametrize("n", [1, 7, 64])
def test_least_of_all_is_the_nuclear_norm_of_running_sums(n):
    values = np.linalg.svd(np.tril(np.ones((n, n))), compute_uv=False)
    assert published_errors.least_of_all(n) == pytest.approx(values.sum() / n, rel=1e-12)


@pytest.mark.parametrize("n", [1024, 4096])
def test_no_error_lies_below_what_is_possible(n):
    least = published_errors.least_of_all(n)
    # Matousek, Nikolov and Talwar's bound lies below, and Mathias's above.
    assert (2 + math.log((2 * n + 1) / 3)) / math.pi <= least
    assert least <= published_errors.bound_of_mathias(n)
    found = published_errors.closest_to_least(n)
    assert all(1 <= mean <= last for mean, last in found.values())
    assert found["optimal, 4 buffers"][0] < 1.06
