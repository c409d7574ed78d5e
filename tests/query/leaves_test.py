"""Leaves of records: which queries take, and which they refuse."""

import keras
import pytest
import tensorflow as tf

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
