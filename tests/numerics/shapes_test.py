"""Shapes of tensors whose first axis is that of records."""

import numpy as np
import pytest
import tensorflow as tf

from tfdp.numerics.shapes import reshape_records


def operations(spec, *shape):
    function = tf.function(lambda x: reshape_records(x, shape), autograph=False)
    function = function.get_concrete_function(spec)
    kinds = [op.type for op in function.graph.get_operations()]
    return function, [kind for kind in kinds if kind not in ("Placeholder", "Identity", "Const")]


@pytest.mark.parametrize("records", [0, 1, 3])
def test_one_operation_where_the_sizes_of_a_record_are_known(records):
    function, found = operations(tf.TensorSpec([None, 2, 6]), 4, 3)
    assert found == ["Reshape"]
    x = np.arange(12.0 * records, dtype=np.float32).reshape(records, 2, 6)
    np.testing.assert_array_equal(function(tf.constant(x)), x.reshape(records, 4, 3))


@pytest.mark.parametrize(
    ("spec", "shape"),
    [
        ([None, 0, 2], [0]),
        ([None, 0], [3, 0]),
        ([None, None, 2], [-1, 2]),
        ([None, None], [-1, 1]),
        ([None], [1]),
        ([None], []),
        ([5, 2, 2], [4]),
        ([5, None], [-1]),
    ],
)
@pytest.mark.parametrize("unknown", [2, 7])
def test_records_are_kept_apart(spec, shape, unknown):
    """The number of records is never found from that of the numbers where it could be another."""
    sizes = [unknown if size is None else size for size in spec]
    sizes[0] = spec[0] or 5
    x = np.arange(float(np.prod(sizes))).reshape(sizes)
    function, _ = operations(tf.TensorSpec(spec, tf.float64), *shape)
    result = function(tf.constant(x))
    assert result.shape[0] == 5
    np.testing.assert_array_equal(np.ravel(result), np.ravel(x))


def test_a_size_that_is_known_when_the_graph_runs():
    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None, 2, 6])])
    def transposed(x):
        return reshape_records(x, [tf.shape(x)[2], 2])

    x = np.arange(36.0, dtype=np.float32).reshape(3, 2, 6)
    np.testing.assert_array_equal(transposed(tf.constant(x)), x.reshape(3, 6, 2))


@pytest.mark.parametrize("spec", [[None, 6], [None, None], [2, 6]])
def test_refuses_to_make_other_records(spec):
    """Two records of 6 numbers are not four of 3."""
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError)):
        operations(tf.TensorSpec(spec), 3)[0](tf.zeros([2, 6]))
