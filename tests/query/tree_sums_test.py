"""tfdp.query.tree_sums: noise of running sums against the nodes of the tree."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp.keras
from tests.factorizations.trees import tree_matrices
from tfdp.factorizations import BinaryTree, independent
from tfdp.noise import SeededRandomSource
from tfdp.query import (
    CorrelatedGaussianSumQuery,
    TreeCumulativeSumQuery,
    TreeResidualSumQuery,
)

SPECS = [tf.TensorSpec([40, 50], tf.float32), tf.TensorSpec([3], tf.float64)]
SIZE, N = 2003, 11
# Entries of a covariance of 2003 draws have deviations of at most sqrt(2 / 2003); seven of them.
CLOSE = 7 * math.sqrt(2 / SIZE)
kinds = pytest.mark.parametrize("efficient", [False, True])


class Ones(SeededRandomSource):
    """Whose normal numbers are all one, which makes noise a count of nodes."""

    def __init__(self):
        super().__init__(0)

    def normal(self, shape, dtype):
        return tf.ones(shape, dtype)


def _residual(efficient, num_steps=N, stddev=2.0, specs=SPECS, source=None):
    return TreeResidualSumQuery(
        1.0, stddev, BinaryTree(efficient), num_steps, 3, specs, random_source=source
    )


def _run(query, steps, sums=None):
    """Returns what so many steps release, [steps, size], their events and the state after them."""
    state = query.initial_global_state()
    sums = query.initial_sample_state(SPECS) if sums is None else sums
    step = tf.function(lambda state: query.get_noised_result(sums, state)[:2])
    rows, events = [], []
    for _ in range(steps):
        events.append(query.derive_event(state))
        result, state = step(state)
        rows.append(np.concatenate([np.ravel(leaf) for leaf in tf.nest.flatten(result)]))
    return np.array(rows, np.float64), events, state


def _covariance(rows):
    return rows @ rows.T / rows.shape[1]


@kinds
def test_running_sums_have_the_noise_of_the_tree(efficient):
    residuals, events, state = _run(_residual(efficient), N)
    b, _ = tree_matrices(N, efficient)
    scale = b @ b.T
    found = _covariance(np.cumsum(residuals, axis=0)) / 4
    np.testing.assert_allclose(found, scale, atol=CLOSE * scale.max())
    other, _ = tree_matrices(N, not efficient)
    # The power of the test above: another tree is found out.
    assert np.abs(found - other @ other.T).max() > CLOSE * scale.max()
    assert [event.position for event in events] == list(range(N))
    assert all(
        np.all(leaf.numpy() == 0) for leaf in tf.nest.flatten(state.memory)
    )  # A new tree begins.


@kinds
def test_running_sums_are_what_residuals_add_up_to(efficient):
    released, events, state = _run(TreeCumulativeSumQuery(_residual(efficient)), 2 * N)
    b, _ = tree_matrices(N, efficient)
    found = _covariance(released[:N]) / 4
    np.testing.assert_allclose(found, b @ b.T, atol=CLOSE * (b @ b.T).max())
    # The second tree begins on what the first one released.
    second = _covariance(released[N:] - released[N - 1]) / 4
    np.testing.assert_allclose(second, b @ b.T, atol=CLOSE * (b @ b.T).max())
    assert [event.position for event in events] == [*range(N), *range(N)]
    assert events[N].run_id == events[0].run_id + 1
    np.testing.assert_array_equal(state.released[1], released[-1][-3:])


@kinds
def test_sums_come_out_as_they_went_in(efficient):
    sums = [tf.fill([40, 50], 2.0), tf.fill([3], tf.constant(2.0, tf.float64))]
    residuals, _, _ = _run(_residual(efficient, stddev=0.0), 4, sums)
    np.testing.assert_array_equal(residuals, np.full([4, SIZE], 2.0))
    running, _, _ = _run(TreeCumulativeSumQuery(_residual(efficient, stddev=0.0)), 4, sums)
    np.testing.assert_array_equal(running, np.outer([2.0, 4.0, 6.0, 8.0], np.ones(SIZE)))


@pytest.mark.parametrize(("value", "node"), [(0.0, 1.0), (1.0, 1.0), (1.0, 2.0)])
def test_values_of_tensorflow_privacy(value, node):
    # Nodes of one number each: running sums then count the ones of a step's binary number.
    spec = tf.TensorSpec([], tf.float32)
    query = TreeCumulativeSumQuery(_residual(False, 32, node, spec, Ones()))
    released, _, _ = _run(query, 20, tf.constant(value))
    expected = [value * t + node * t.bit_count() for t in range(1, 21)]
    # Noise is rounded up, in its seventh digit.
    np.testing.assert_allclose(released[:, 0], expected, rtol=1e-6)
    residuals, _, _ = _run(query.residual_query, 20, tf.constant(value))
    np.testing.assert_allclose(residuals[:, 0], np.diff([0.0, *expected]), atol=2e-5)


@pytest.mark.parametrize(
    ("clip", "expected"),
    [
        (10.0, np.cumsum(range(7))),
        (0.5, [0.0, *(0.5 * np.arange(1, 7))]),
        (5.0, [0, 1, 3, 6, 10, 15, 20]),
    ],
)
def test_clipped_running_sums_of_tensorflow_privacy(clip, expected):
    query = TreeCumulativeSumQuery.build_l2_gaussian_query(
        clip, 0.0, tf.TensorSpec([], tf.float32), num_steps=8, period=8
    )
    state, released = query.initial_global_state(), []
    for number in range(7):
        sample = query.initial_sample_state(tf.constant(0.0))
        params = query.derive_sample_params(state)
        sample = query.accumulate_record(params, sample, tf.constant(float(number)))
        result, state, _ = query.get_noised_result(sample, state)
        released.append(float(result))
    np.testing.assert_allclose(released, expected, rtol=1e-5)


def test_arguments_of_tensorflow_privacy():
    spec = tf.TensorSpec([10], tf.float32)
    query = TreeResidualSumQuery.build_l2_gaussian_query(
        clip_norm=10.0,
        noise_multiplier=1.0,
        record_specs=spec,
        noise_seed=2,
        use_efficient=False,
        num_steps=16,
        period=4,
    )
    event = query.derive_event(query.initial_global_state())
    assert (event.noise_stddev, event.efficient, event.seeded) == (10.0, False, True)
    usual = TreeResidualSumQuery.build_l2_gaussian_query(10.0, 1.0, spec, num_steps=16, period=4)
    assert usual.factorization == BinaryTree(efficient=True)
    with pytest.raises(TypeError, match="num_steps"):
        TreeResidualSumQuery.build_l2_gaussian_query(1.0, 1.0, spec)
    with pytest.raises(ValueError, match="clip_norm"):
        TreeCumulativeSumQuery.build_l2_gaussian_query(0.0, 1.0, spec, num_steps=1, period=1)


@pytest.mark.parametrize(
    "make",
    [
        lambda: TreeResidualSumQuery(1.0, 2.0, independent(), 9, 3, SPECS),
        lambda: CorrelatedGaussianSumQuery(1.0, 2.0, "tree", 9, 3, SPECS),
        lambda: TreeCumulativeSumQuery(tfdp.GaussianSumQuery(1.0, 1.0)),
    ],
)
def test_refuses_what_is_no_tree(make):
    with pytest.raises(TypeError, match="factorization|residual_query"):
        make()


@kinds
@pytest.mark.parametrize("running", [False, True])
def test_configuration_comes_back(efficient, running):
    assert tfdp.keras.DPOptimizer  # Which registers the classes of queries.
    query = TreeCumulativeSumQuery(_residual(efficient)) if running else _residual(efficient)
    config = keras.saving.serialize_keras_object(query)
    assert keras.saving.deserialize_keras_object(config) == query
