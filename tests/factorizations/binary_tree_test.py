"""tfdp.factorizations.binary_tree: trees built node by node, and TensorFlow Privacy's values."""

import itertools
import math

import numpy as np
import pytest

from tests.factorizations.trees import tree_matrices
from tfdp.factorizations import BinaryTree, binary_tree

SIZES = [1, 2, 3, 4, 7, 8, 11, 16, 19, 33]


def _used(b, c):
    """Returns the rows of C that have a part in any result."""
    return c[np.abs(b).max(axis=0) > 0]


@pytest.mark.parametrize("efficient", [False, True])
@pytest.mark.parametrize("n", SIZES)
def test_running_sums_and_errors_are_those_of_the_nodes(n, efficient):
    b, c = tree_matrices(n, efficient)
    np.testing.assert_allclose(b @ c, np.tril(np.ones([n, n])), atol=1e-9)
    tree, variances = BinaryTree(efficient), (b * b).sum(axis=1)
    for period in {None, 1, 2, 3, 5, n}:
        sensitivity = tree.sensitivity(n, period)
        moved = [
            _used(b, c)[:, i :: n if period is None else period].sum(axis=1)
            for i in range(min(n, n if period is None else period))
        ]
        assert sensitivity == pytest.approx(max(map(np.linalg.norm, moved)), rel=1e-9)
        assert tree.max_error(n, period) == pytest.approx(sensitivity * math.sqrt(variances.max()))
        mean = math.sqrt(variances.mean())
        assert tree.root_mean_squared_error(n, period) == pytest.approx(sensitivity * mean)


@pytest.mark.parametrize("n", [1, 3, 6, 8])
@pytest.mark.parametrize("period", [1, 2, 3, 4])
def test_no_signs_of_a_units_vectors_move_the_nodes_more(n, period):
    _, c = tree_matrices(n, True)
    found = 0.0
    for i in range(min(n, period)):
        steps = range(i, n, period)
        for signs in itertools.product([-1, 1], repeat=len(steps)):
            found = max(found, np.linalg.norm(c[:, list(steps)] @ np.array(signs)))
    assert BinaryTree().sensitivity(n, period) == pytest.approx(found, rel=1e-9)


@pytest.mark.parametrize("efficient", [False, True])
@pytest.mark.parametrize("n", SIZES)
def test_what_is_kept_of_the_levels_gives_the_noise_of_the_nodes(n, efficient):
    tree, (b, _) = BinaryTree(efficient), tree_matrices(n, efficient)
    scales, gains, weights = tree.scales(n), tree.gains(n), tree.weights(n)
    kept, rows = np.zeros([tree.memory(n), n]), []
    for t in range(n):
        level = (t + 1 & -(t + 1)).bit_length() - 1
        kept[level] = gains[level] @ kept
        kept[level, t] += scales[level]
        kept[:level] = 0
        rows.append(weights @ kept)
    covariance = np.array(rows) @ np.array(rows).T
    np.testing.assert_allclose(covariance, b @ b.T, atol=1e-9)


@pytest.mark.parametrize(
    ("steps", "value"),
    [
        (1, 1.0),
        (2, 4 / 3),
        (3, 4 / 3 + 1),
        (4, 12 / 7),
        (6, 12 / 7 + 4 / 3),
        (7, 12 / 7 + 4 / 3 + 1),
        (8, 32 / 15),
    ],
)
def test_nodes_of_one_give_what_they_give_in_tensorflow_privacy(steps, value):
    b, _ = tree_matrices(steps, True)
    assert b[-1].sum() == pytest.approx(value)
    plain, _ = tree_matrices(steps, False)
    assert plain[-1].sum() == steps.bit_count()


@pytest.mark.parametrize("n", [3, 8, 11, 19])
def test_sensitivities_are_those_of_tensorflow_privacy(n):
    levels = [level for level in range(n.bit_length()) if n >> level & 1]
    every = sum(2**d * (2 ** (d + 1) - 1) for d in levels)
    assert BinaryTree().sensitivity(n, 1) ** 2 == pytest.approx(every)
    # One participation: one node of every level, as in dp-accounting.
    assert BinaryTree().sensitivity(n) ** 2 == pytest.approx(math.ceil(math.log2(n + 1)))


def test_a_large_tree_is_quick():
    tree = BinaryTree()
    assert tree.sensitivity(2**20) ** 2 == pytest.approx(21)
    assert tree.sensitivity(2**20, 1000) > tree.sensitivity(2**20, 2**19)


@pytest.mark.parametrize("efficient", [1, "yes", None])
def test_refuses_what_is_no_kind_of_tree(efficient):
    with pytest.raises(TypeError, match="efficient must be a bool"):
        BinaryTree(efficient)


@pytest.mark.parametrize(
    ("n", "error"), [(0, ValueError), (2**20 + 1, ValueError), (1.0, TypeError)]
)
def test_refuses_sizes_out_of_range(n, error):
    with pytest.raises(error, match="num_steps"):
        BinaryTree().sensitivity(n)


@pytest.mark.parametrize("efficient", [False, True])
@pytest.mark.parametrize("period", [1, 3, 4, 20])
@pytest.mark.parametrize("n", SIZES)
def test_products_of_turns_are_those_of_the_nodes(n, period, efficient, monkeypatch):
    used = _used(*tree_matrices(n, efficient))
    moved = np.stack([used[:, j::period].sum(axis=1) for j in range(period)], axis=1)
    tree = BinaryTree(efficient)
    np.testing.assert_allclose(tree.products_of_turns(n, period), moved.T @ moved, atol=1e-9)
    monkeypatch.setattr(binary_tree, "_AT_ONCE", 2)  # A few nodes at a time.
    np.testing.assert_allclose(tree.products_of_turns(n, period), moved.T @ moved, atol=1e-9)
    largest = tree.products_of_turns(n, period).max()
    assert tree.sensitivity(n, period) == pytest.approx(math.sqrt(largest), rel=1e-9)
