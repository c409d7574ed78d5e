"""tfdp.query.correlated: noise of runs against the matrices, and runs against their states."""

import collections
import math

import keras
import numpy as np
import pytest
import tensorflow as tf
from scipy import linalg

import tfdp.keras
from tfdp.factorizations import (
    BinaryTree,
    ToeplitzFactorization,
    banded_inverse_square_root,
    banded_square_root,
    independent,
    one_step_back,
)
from tfdp.noise import SeededRandomSource
from tfdp.query import CorrelatedGaussianSumQuery

KINDS = {
    "independent": independent(),
    "banded": banded_square_root(4),
    "inverse": banded_inverse_square_root(3),
    "one_step_back": one_step_back(0.8),
    "rational": ToeplitzFactorization((1.0, 0.4, 0.1), (1.0, -0.5)),
}
SPECS = [tf.TensorSpec([40, 50], tf.float32), tf.TensorSpec([3], tf.float64)]
kinds = pytest.mark.parametrize("factorization", KINDS.values(), ids=KINDS)


def _query(factorization, num_steps=6, specs=SPECS, stddev=2.0, **kwargs):
    return CorrelatedGaussianSumQuery(1.0, stddev, factorization, num_steps, 3, specs, **kwargs)


def _run(query, steps, state=None):
    """Returns the noise of so many steps, [steps, 2003], their events and the state after them."""
    state = query.initial_global_state() if state is None else state
    zeros = query.initial_sample_state(query.record_specs)
    step = tf.function(lambda state: query.get_noised_result(zeros, state)[:2])
    rows, events = [], []
    for _ in range(steps):
        events.append(query.derive_event(state))
        result, state = step(state)
        rows.append(np.concatenate([np.ravel(leaf) for leaf in tf.nest.flatten(result)]))
    return np.array(rows, np.float64), events, state


def _matrix(factorization, n):
    return linalg.toeplitz(factorization.column(n), np.zeros(n))


@kinds
def test_c_times_the_noise_of_a_run_is_white(factorization):
    noise, events, _ = _run(_query(factorization), 6)
    white = _matrix(factorization, 6) @ noise / 2.0
    covariance = white @ white.T / white.shape[1]
    # Entries have standard deviations of at most sqrt(2 / 2003); seven of them.
    np.testing.assert_allclose(covariance, np.eye(6), atol=7 * math.sqrt(2 / white.shape[1]))
    assert [event.position for event in events] == list(range(6))
    assert len({event.run_id for event in events}) == 1


@kinds
def test_white_noise_is_found_to_be_wrong_where_it_is_not(factorization):
    # The power of the test above: with another matrix it fails.
    if factorization == independent():
        return
    noise, _, _ = _run(_query(factorization), 6)
    covariance = noise @ noise.T / 4 / noise.shape[1]
    assert np.abs(covariance - np.eye(6)).max() > 7 * math.sqrt(2 / noise.shape[1])


@kinds
def test_sums_that_were_hidden_by_the_noise_come_out_as_they_went_in(factorization):
    query = _query(factorization, stddev=0.0)
    state = query.initial_global_state()
    for step in range(8):
        sums = [tf.fill([40, 50], float(step)), tf.fill([3], tf.cast(step, tf.float64))]
        result, state, _ = query.get_noised_result(sums, state)
        for leaf in result:
            np.testing.assert_array_equal(leaf, np.full(leaf.shape, step))


@kinds
def test_a_new_run_begins_after_the_last_step_and_remembers_nothing(factorization):
    query = _query(factorization, num_steps=3)
    noise, events, state = _run(query, 9)
    assert [event.position for event in events] == [0, 1, 2] * 3
    first = events[0].run_id
    assert [event.run_id - first for event in events] == [0] * 3 + [1] * 3 + [2] * 3
    block = linalg.block_diag(*[_matrix(factorization, 3)] * 3)
    white = block @ noise / 2.0
    covariance = white @ white.T / white.shape[1]
    np.testing.assert_allclose(covariance, np.eye(9), atol=7 * math.sqrt(2 / white.shape[1]))
    assert all(np.all(leaf.numpy() == 0) for leaf in tf.nest.flatten(state.memory))


def test_two_continuations_of_one_state_have_fresh_noise_and_the_same_places():
    query = _query(banded_square_root(4))
    _, _, state = _run(query, 2)
    first, events, _ = _run(query, 3, state)
    second, again, _ = _run(query, 3, state)
    # What both remember cancels in the difference. What is left is twice as much fresh noise.
    white = _matrix(banded_square_root(4), 3) @ (first - second) / (2.0 * math.sqrt(2))
    covariance = white @ white.T / white.shape[1]
    np.testing.assert_allclose(covariance, np.eye(3), atol=7 * math.sqrt(2 / white.shape[1]))
    assert events == again  # The ledger sees the places twice, and charges two runs.


def test_every_first_state_is_another_run():
    query = _query(independent())
    ids = {int(query.initial_global_state().run_id) for _ in range(20)}
    assert len(ids) == 20


def test_running_sums_have_the_error_that_the_factorization_says():
    factorization, n = banded_square_root(6), 24
    noise, _, _ = _run(_query(factorization, num_steps=n, stddev=1.0), n)
    last = np.cumsum(noise, axis=0)[-1]
    expected = factorization.max_error(n) / factorization.sensitivity(n)
    # The deviation of a deviation of 2003 draws is 1 / sqrt(4006); seven of them.
    assert np.sqrt(np.mean(last**2)) == pytest.approx(expected, rel=7 / math.sqrt(4006))


def test_seeded_noise_says_so():
    query = _query(independent(), random_source=SeededRandomSource(3))
    assert query.derive_event(query.initial_global_state()).seeded


@kinds
def test_configuration_comes_back(factorization):
    assert tfdp.keras.DPOptimizer  # Which registers the classes of queries.
    specs = {"kernel": tf.TensorSpec([2, 2], tf.float32), "bias": [tf.TensorSpec([], tf.float64)]}
    query = _query(factorization, specs=specs)
    config = keras.saving.serialize_keras_object(query)
    assert keras.saving.deserialize_keras_object(config) == query
    with pytest.raises(TypeError, match="Missing: period"):
        CorrelatedGaussianSumQuery.from_config(
            {name: value for name, value in query.get_config().items() if name != "period"}
        )


def test_takes_variables_and_arrays_as_specs():
    pair = collections.namedtuple("Pair", ["a", "b"])
    specs = pair(tf.Variable([1.0, 2.0]), np.zeros((2, 1)))
    query = _query(independent(), specs=specs)
    assert query.record_specs == pair(
        tf.TensorSpec([2], tf.float32), tf.TensorSpec([2, 1], tf.float64)
    )


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"factorization": (1.0, 0.5)}, TypeError, "factorization must be"),
        ({"num_steps": 0}, ValueError, "num_steps must be"),
        ({"num_steps": 2**20 + 1}, ValueError, "num_steps must be"),
        ({"specs": []}, ValueError, "at least one leaf"),
        ({"specs": [tf.TensorSpec([None], tf.float32)]}, ValueError, "what shape records have"),
        ({"specs": [tf.TensorSpec([1], tf.int32)]}, TypeError, "float32 or float64"),
        ({"stddev": -1.0}, ValueError, "stddev must be"),
        (
            {"factorization": ToeplitzFactorization((1.0, 3.0)), "num_steps": 1000},
            ValueError,
            "overflows",
        ),
    ],
)
def test_refuses_bad_arguments(change, error, message):
    with pytest.raises(error, match=message):
        _query(**{"factorization": banded_square_root(2), **change})


def test_refuses_sums_of_another_shape_or_structure():
    query = _query(banded_square_root(2), specs=[tf.TensorSpec([2], tf.float32)])
    state = query.initial_global_state()
    with pytest.raises(ValueError, match="shapes of record_specs"):
        query.get_noised_result([tf.zeros([1])], state)
    with pytest.raises(ValueError, match="Structures differ"):
        query.get_noised_result([tf.zeros([2]), tf.zeros([2])], state)


@pytest.mark.parametrize("kind", [banded_square_root(2), BinaryTree()], ids=["bands", "tree"])
def test_noise_is_no_narrower_than_what_it_is_added_to(kind):
    # Of a float64 sum float32 noise would leave the low bits as they are.
    query = _query(kind, specs=[tf.TensorSpec([2], tf.float32)])
    wide = [tf.constant([0.1, 0.2], tf.float64)]
    with pytest.raises(TypeError, match="not be wider than record_specs"):
        query.initial_sample_state(wide)
    with pytest.raises(TypeError, match="not be wider than record_specs"):
        query.preprocess_record(1.0, wide)
    with pytest.raises(TypeError, match="not be wider than record_specs"):
        query.get_noised_result(wide, query.initial_global_state())
    with pytest.raises(TypeError, match="float32 or float64"):
        query.get_noised_result([tf.zeros([2], tf.int32)], query.initial_global_state())


def test_a_sum_narrower_than_its_noise_is_rounded_after_the_noise():
    specs = [tf.TensorSpec([500], tf.float64)]
    narrow, wide = (
        _query(independent(), specs=specs, random_source=SeededRandomSource(3)) for _ in range(2)
    )
    sums = tf.fill([500], 1.0 / 3)
    (result,), _, _ = narrow.get_noised_result([sums], narrow.initial_global_state())
    exact = wide.get_noised_result([tf.cast(sums, tf.float64)], wide.initial_global_state())[0][0]
    assert result.dtype == tf.float32
    np.testing.assert_array_equal(result, tf.cast(exact, tf.float32))
