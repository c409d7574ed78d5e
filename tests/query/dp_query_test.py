"""What every query shares: which records it takes, and how structures are shown."""

import pytest
import tensorflow as tf

from tfdp.query.dp_query import describe, record_dtype, zeros_like


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


def test_structures_are_shown_by_dtype_and_shape():
    assert describe([tf.zeros([2, 3]), {"a": 1.0}]) == "[\"<dtype: 'float32'>(2, 3)\", {'a': '.'}]"
