"""Leaves of records: which queries take, and which they refuse."""

import pytest
import tensorflow as tf

from tfdp.query.leaves import record_dtype, zeros_like


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
