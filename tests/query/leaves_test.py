"""Leaves of records: which queries take, and which they refuse."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdp import query as tfdp_query
from tfdp.query.leaves import numeric_zeros_like, record_dtype, zeros_like


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
def test_records_are_single_or_double_precision(dtype):
    for leaf in (
        tf.zeros([2], dtype),
        tf.TensorSpec([2], dtype),
        tf.Variable(tf.zeros([2], dtype)),
    ):
        assert record_dtype(leaf) == dtype
        assert zeros_like(leaf).numpy().tolist() == [0.0, 0.0]


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.int32, tf.bool])
def test_other_records_are_refused(dtype):
    with pytest.raises(TypeError, match="float32 or float64"):
        record_dtype(tf.zeros([2], dtype))


@pytest.mark.parametrize("check, dtype", [(record_dtype, "float16"), (numeric_zeros_like, "bool")])
def test_what_is_refused_is_shown_without_its_numbers(check, dtype, monkeypatch):
    def unknown(variable):
        raise NotImplementedError("Keras 3.12 does not write variables in graphs.")

    variable = keras.Variable([[1, 1, 1]], dtype=dtype)
    monkeypatch.setattr(keras.Variable, "__repr__", unknown)
    for leaf in (variable, variable.value, tf.TensorSpec([1, 3], dtype)):
        with pytest.raises(TypeError, match=rf"of dtype {dtype}, of shape \(1, 3\)\.$"):
            tf.function(lambda leaf=leaf: check(leaf), autograph=False)()


COUNTING = {
    "exponential": tfdp_query.ExponentialMechanismQuery(1.0, 1.0),
    "noisy_max": tfdp_query.ReportNoisyMaxQuery(1.0, 1.0),
    "above": tfdp_query.AboveThresholdQuery(1.0, 1.0, 1.0, numeric_epsilon=1.0),
    "partitions": tfdp_query.PartitionSelectionQuery(1.0, 1e-3, 2),
    "histogram": tfdp_query.HistogramQuery(1.0, 2, 1e-3),
    "gaussian_histogram": tfdp_query.GaussianHistogramQuery(2.0, 2, 1e-3),
    "exact": tfdp_query.ExactGaussianSumQuery(1.0, 1.0),
    "exact_without_noise": tfdp_query.ExactGaussianSumQuery(1.0, 0.0),
    "discrete_gaussian": tfdp_query.DiscreteGaussianSumQuery(4.0, 8.0),
    "discretized": tfdp_query.DiscretizedSumQuery(
        tfdp_query.DiscreteGaussianSumQuery(2002.0, 2000.0), l2_norm_clip=1.0, scale=2000.0
    ),
    "shares": tfdp_query.DistributedDiscreteGaussianSumQuery(4.0, 8.0, min_contributors=1),
    "skellam_shares": tfdp_query.DistributedSkellamSumQuery(4, 4.0, 8.0, min_contributors=1),
}
OF_INTEGERS = [COUNTING[n] for n in ("discrete_gaussian", "shares", "skellam_shares")]


def _states(query):
    """Returns the sum of a record, and the same with half a step more in every integer."""
    params = query.derive_sample_params(query.initial_global_state())
    record = tf.cast([1, 0, 1, 0], tf.int64 if query in OF_INTEGERS else tf.float32)
    state = query.accumulate_record(params, query.initial_sample_state(record), record)
    return state, tf.nest.map_structure(
        lambda leaf: tf.cast(leaf, tf.float64) + 0.5 if leaf.dtype.is_integer else leaf, state
    )


@pytest.mark.parametrize("form", [tf.identity, np.asarray], ids=["tensor", "array"])
@pytest.mark.parametrize("query", COUNTING.values(), ids=COUNTING)
def test_parts_of_steps_are_refused_because_noise_of_whole_steps_would_show_them(query, form):
    _, parts = _states(query)
    with pytest.raises(TypeError, match="sample_state must be integers"):
        query.get_noised_result(tf.nest.map_structure(form, parts), query.initial_global_state())


@pytest.mark.parametrize("query", COUNTING.values(), ids=COUNTING)
def test_a_sum_may_be_arrays(query):
    state, _ = _states(query)
    arrays = tf.nest.map_structure(np.asarray, state)
    of_arrays, of_tensors = (
        query.get_noised_result(s, query.initial_global_state())[0] for s in (arrays, state)
    )
    forms = (
        tf.nest.map_structure(lambda leaf: (leaf.shape, leaf.dtype), result)
        for result in (of_arrays, of_tensors)
    )
    assert next(forms) == next(forms)
