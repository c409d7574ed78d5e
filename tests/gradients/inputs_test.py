"""What the caller of a step gives is described by type, dtype and shape, never by its values."""

import numpy as np
import pytest
import tensorflow as tf

from tfdp.gradients.inputs import advice_for, as_dense, describe_leaf


def test_arrays_become_tensors():
    assert as_dense("x", np.zeros([2, 3], "float32")).shape == (2, 3)


@pytest.mark.parametrize(
    ("leaf", "error", "message"),
    [
        (tf.RaggedTensor.from_row_lengths([1, 2, 3], [1, 2]), TypeError, "x must be dense"),
        (tf.sparse.from_dense([[1.0]]), TypeError, "x must be dense"),
        (np.float32(1.0), ValueError, "leading axis"),
        (np.array([object()]), TypeError, "tensors or arrays of numbers"),
    ],
)
def test_what_is_no_batch_is_refused(leaf, error, message):
    with pytest.raises(error, match=message):
        as_dense("x", leaf)


def test_descriptions_hold_no_value():
    text = describe_leaf(np.array([123456.0]))
    assert text == "a ndarray of dtype float64 and shape (1,)"
    assert describe_leaf("secret") == "a str"


def test_advice_is_for_what_is_not_a_number():
    assert "Encode strings" in advice_for(np.array(["a"]))
    assert "Subtract an origin" in advice_for(np.array(["2020-01-01"], "datetime64[D]"))
    assert "one dtype" in advice_for(np.array([None]))
    assert advice_for(np.zeros(2)) == ""
