"""tfdp.query.run_noise: compiled filters against eager ones, and against their matrices."""

import numpy as np
import pytest
import tensorflow as tf
from scipy import linalg, signal

from tests.factorizations.trees import tree_matrices
from tfdp.factorizations import (
    BinaryTree,
    ToeplitzFactorization,
    banded_inverse_square_root,
    banded_square_root,
    independent,
    optimal_buffered,
)
from tfdp.factorizations.modes import modes, rounding_of
from tfdp.noise import staged
from tfdp.query.run_noise import filtered, memory_shapes

N = 11
FACTORIZATIONS = {
    "series": ToeplitzFactorization((1.0, 0.4, 0.1), (1.0, -0.5)),
    "modes": ToeplitzFactorization((1.0, -1.2, 0.35), (1.0, -1.5)),
    "buffers": optimal_buffered(N, 3),
    "bands": banded_square_root(3),
    "bands of the inverse": banded_inverse_square_root(4),
    "independent": independent(),
    "tree": BinaryTree(),
    "plain tree": BinaryTree(False),
}
all_of_them = pytest.mark.parametrize("factorization", FACTORIZATIONS.values(), ids=FACTORIZATIONS)


def _responses(factorization, jit_compile=None, n=N):
    """Returns what the noise of every step has of the fresh numbers of every step, [n, n]."""

    def step(position, fresh, memory):
        (noise,), (new,) = filtered(factorization, n, position, [fresh], [memory])
        return noise, new

    if jit_compile is not None:
        step = tf.function(step, jit_compile=jit_compile)
    shapes = memory_shapes(factorization, n, [n])
    memory, rows = tuple(tf.zeros(shape, tf.float64) for shape in shapes), []
    assert sum(kept.shape.num_elements() for kept in memory) == factorization.memory(n) * n
    for position in range(n):
        fresh = tf.one_hot(position, n, dtype=tf.float64)
        noise, memory = step(tf.constant(position, tf.int64), fresh, memory)
        rows.append(noise.numpy())
    assert all(np.all(kept.numpy() == 0) for kept in memory)  # A run's last step forgets.
    return np.array(rows)


@all_of_them
@pytest.mark.parametrize("jit_compile", [False, True])
def test_compiled_steps_are_those_of_eager_ones(factorization, jit_compile):
    eager = _responses(factorization)
    np.testing.assert_allclose(_responses(factorization, jit_compile), eager, atol=1e-12)


@pytest.mark.parametrize("name", [n for n in FACTORIZATIONS if "tree" not in n])
def test_series_are_solutions_of_their_matrix(name):
    c = linalg.toeplitz(FACTORIZATIONS[name].column(N), np.zeros(N))
    np.testing.assert_allclose(c @ _responses(FACTORIZATIONS[name]), np.eye(N), atol=1e-12)


# With 70 steps a tree has levels that have no branch of their own.
@pytest.mark.parametrize("n", [1, 2, N, 70])
@pytest.mark.parametrize("efficient", [False, True])
def test_trees_have_the_covariance_of_their_nodes(efficient, n):
    running = np.cumsum(_responses(BinaryTree(efficient), n=n), axis=0)
    b, _ = tree_matrices(n, efficient)
    np.testing.assert_allclose(running @ running.T, b @ b.T, atol=1e-12)


def test_a_high_node_is_compiled_as_it_is_computed_eagerly():
    eager = _responses(BinaryTree(), n=70)
    np.testing.assert_allclose(_responses(BinaryTree(), True, n=70), eager, atol=1e-12)


def test_a_tree_holds_nothing_of_the_nodes_below_one_that_has_ended():
    memory = tuple(tf.fill([2], 3.0 + row) for row in range(4))
    _, (new,) = filtered(BinaryTree(), N, tf.constant(3, tf.int64), [tf.ones([2])], [memory])
    # Step 4 ends a node of level 2.
    np.testing.assert_array_equal(new[:2], np.zeros([2, 2]))
    assert np.all(new[2].numpy() != memory[2].numpy())
    np.testing.assert_array_equal(new[3], memory[3])


def test_levels_that_a_compiled_step_leaves_alone_stay_where_they_are():
    leaf = tf.zeros([2**8, 2**8])
    memory = tuple(leaf for _ in range(4))

    @tf.function(autograph=False)
    def step(position, fresh, memory):
        def fn(position, fresh, memory):
            return filtered(BinaryTree(), N, position, [fresh], [memory])

        return staged(fn, position, fresh, memory, jit_compile=True)

    graph = step.get_concrete_function(tf.constant(0, tf.int64), leaf, memory).graph
    (compiled,) = [op for op in graph.get_operations() if op.type.endswith("PartitionedCall")]
    # The noise and the node, and no level of the tree.
    assert len([out for out in compiled.outputs if out.shape.num_elements() > 1]) == 2


# A factor that has no modes, since p has complex roots, some whose noise, or C, grows, and one with
# roots so close that their modes would all but cancel.
_WITHOUT_MODES = ToeplitzFactorization((1.0, -1.98, 0.981), tuple(np.poly([0.9999, 0.9995, 0.999])))
# What `optimal_buffered(100_000, 4)` finds in seconds.
_LONG_RUN = ToeplitzFactorization(
    (1.0, -3.3190929518320513, 3.993008948360702, -2.028626650716901, 0.354710673419762),
    (1.0, -3.7805255822951596, 5.344444763529092, -3.3473106591942625, 0.7833914780276782),
)
_GROWING = {
    "modes": ToeplitzFactorization((1.0, -1.02), (1.0, -0.5)),
    "series": ToeplitzFactorization((1.0, -2.04, 1.05), (1.0, -0.5)),
    "bands": ToeplitzFactorization((1.0, -1.02)),
    "bands of the inverse": ToeplitzFactorization(denominator=(1.0, -1.02)),
}
_CLOSE = ToeplitzFactorization(tuple(np.poly([0.5, 0.5 + 1e-6])), (1.0, -0.9))


def test_noise_that_rounding_would_change_is_refused():
    def first_step(factorization, n, dtype):
        memory = [tf.zeros(s, dtype) for s in memory_shapes(factorization, n, [2])]
        position = tf.constant(0, tf.int64)
        return filtered(factorization, n, position, [tf.ones([2], dtype)], [memory])[0][0]

    for refused in (_WITHOUT_MODES, *_GROWING.values()):
        with pytest.raises(
            ValueError, match=r"Use tfdp.factorizations.optimal_buffered\(1000, 4\)"
        ):
            first_step(refused, 1000, tf.float32)
    np.testing.assert_allclose(first_step(_WITHOUT_MODES, 1000, tf.float64), 1)
    np.testing.assert_allclose(first_step(_LONG_RUN, 100_000, tf.float32), 1)
    np.testing.assert_allclose(first_step(_CLOSE, 1000, tf.float32), 1)


def _compiled_run(factorization, fresh):
    """Returns the noise of all steps in float32, from one loop that XLA compiles."""
    n, width = fresh.shape
    shapes = memory_shapes(factorization, n, [width])

    @tf.function(jit_compile=True)
    def run(fresh):
        def step(i, memory, noises):
            (noise,), (new,) = filtered(
                factorization, n, tf.cast(i, tf.int64), [fresh[i]], [memory]
            )
            return i + 1, new, tf.tensor_scatter_nd_update(noises, [[i]], noise[None])

        start = (tf.constant(0), tuple(map(tf.zeros, shapes)), tf.zeros_like(fresh))
        return tf.while_loop(lambda i, *_: i < n, step, start)[2]

    return run(tf.constant(fresh)).numpy().astype(float)


@pytest.mark.parametrize(
    ("factorization", "n"),
    [
        (optimal_buffered(3000, 2), 3000),
        (_LONG_RUN, 20_000),
        (ToeplitzFactorization((1.0, -0.2, 0.1), tuple(np.poly([0.99, 0.95]))), 400),
        (_CLOSE, 400),
    ],
    ids=["two buffers", "a long run", "without modes", "close roots"],
)
def test_rounded_noise_is_within_the_estimate(factorization, n):
    """C times the noise in float32 is what was fresh, but for what the estimate allows."""
    fresh = np.random.default_rng(0).normal(size=(n, 16)).astype(np.float32)
    noises = _compiled_run(factorization, fresh)
    column = factorization.column(n)[:, None]
    off = np.std(signal.fftconvolve(column, noises, axes=0)[:n] - fresh)
    found = None if factorization is _CLOSE else modes(factorization)
    if found is None:
        series = ToeplitzFactorization(denominator=factorization.denominator).column(n)
        units = np.linalg.norm(series) * np.linalg.norm(factorization.inverse_column(n))
    else:
        units = rounding_of(factorization, found, n)
    assert units / 10 < off * 2**24 < 2 * units
    assert units * 2.0**-22 < 0.01
