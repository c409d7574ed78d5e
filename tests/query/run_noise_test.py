"""tfdp.query.run_noise: compiled filters against eager ones, and against their matrices."""

import numpy as np
import pytest
import tensorflow as tf
from scipy import linalg

from tests.factorizations.trees import tree_matrices
from tfdp.factorizations import (
    BinaryTree,
    ToeplitzFactorization,
    banded_inverse_square_root,
    banded_square_root,
    independent,
)
from tfdp.query.run_noise import filtered, memory_shapes

N = 11
FACTORIZATIONS = {
    "series": ToeplitzFactorization((1.0, 0.4, 0.1), (1.0, -0.5)),
    "bands": banded_square_root(3),
    "bands of the inverse": banded_inverse_square_root(4),
    "independent": independent(),
    "tree": BinaryTree(),
    "plain tree": BinaryTree(False),
}
all_of_them = pytest.mark.parametrize("factorization", FACTORIZATIONS.values(), ids=FACTORIZATIONS)


def _responses(factorization, jit_compile=None):
    """Returns what the noise of every step has of the fresh numbers of every step, [N, N]."""

    def step(position, fresh, memory):
        return filtered(factorization, N, position, fresh, memory)

    if jit_compile is not None:
        step = tf.function(step, jit_compile=jit_compile)
    shapes = memory_shapes(factorization, N, [N])
    memory, rows = tuple(tf.zeros(shape, tf.float64) for shape in shapes), []
    assert sum(kept.shape.num_elements() for kept in memory) == factorization.memory(N) * N
    for position in range(N):
        fresh = tf.one_hot(position, N, dtype=tf.float64)
        noise, memory = step(tf.constant(position, tf.int64), fresh, memory)
        rows.append(noise.numpy())
    return np.array(rows)


@all_of_them
@pytest.mark.parametrize("jit_compile", [False, True])
def test_compiled_steps_are_those_of_eager_ones(factorization, jit_compile):
    eager = _responses(factorization)
    np.testing.assert_allclose(_responses(factorization, jit_compile), eager, atol=1e-12)


@pytest.mark.parametrize("name", ["series", "bands", "bands of the inverse", "independent"])
def test_series_are_solutions_of_their_matrix(name):
    c = linalg.toeplitz(FACTORIZATIONS[name].column(N), np.zeros(N))
    np.testing.assert_allclose(c @ _responses(FACTORIZATIONS[name]), np.eye(N), atol=1e-12)


@pytest.mark.parametrize("efficient", [False, True])
def test_trees_have_the_covariance_of_their_nodes(efficient):
    running = np.cumsum(_responses(BinaryTree(efficient)), axis=0)
    b, _ = tree_matrices(N, efficient)
    np.testing.assert_allclose(running @ running.T, b @ b.T, atol=1e-12)
