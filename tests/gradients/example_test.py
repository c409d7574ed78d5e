"""The gradient of one example: by hand, and which losses are refused."""

import numpy as np
import pytest
import tensorflow as tf

from tfdp.gradients.example import example_gradient, of_record, one_number


def test_gradient_by_hand():
    w = tf.Variable([1.0, 2.0])
    # (w x - y)^2 with x = (3, 4), y = 1: the residual is 3 + 8 - 1 = 10, so 2 * 10 * x.
    example = (tf.constant([[3.0, 4.0]]), tf.constant([1.0]))

    def loss_fn(example):
        x, y = example
        return (tf.tensordot(x, w, 1) - y) ** 2

    loss, aux, (gradient,) = example_gradient(loss_fn, [w], example, None, False, 1.0)
    assert (float(loss), aux) == (100.0, ())
    np.testing.assert_allclose(gradient, [60.0, 80.0])
    # What the loss is scaled by is taken out again.
    _, _, (scaled,) = example_gradient(loss_fn, [w], example, None, False, 64.0)
    np.testing.assert_allclose(scaled, [60.0, 80.0])


def test_variable_without_gradient_is_named():
    used, unused = tf.Variable(1.0, name="used"), tf.Variable(1.0, name="unused")
    with pytest.raises(ValueError, match="unused"):
        example_gradient(lambda x: used * x, [used, unused], tf.ones([1]), None, False, 1.0)


def test_aux_comes_in_a_pair():
    w = tf.Variable(2.0)
    _, aux, _ = example_gradient(lambda x: (w * x, "aux"), [w], tf.ones([1]), None, True, 1.0)
    assert aux == "aux"
    with pytest.raises(ValueError, match="pair"):
        example_gradient(lambda x: w * x, [w], tf.ones([1]), None, True, 1.0)


def test_a_loss_is_one_floating_point_number():
    loss, scaled = one_number(tf.constant([[3.0]]), 4.0)
    assert (loss.shape, float(loss), float(scaled)) == ((), 3.0, 12.0)
    for wrong in (tf.zeros([2]), tf.zeros([0]), tf.constant(1), "loss", None):
        with pytest.raises(ValueError, match="one example"):
            one_number(wrong, 1.0)


def test_numbers_of_a_batch_of_one_are_those_of_its_record():
    assert of_record(None) is None
    assert of_record(tf.constant([[1, 2]], tf.int64)).numpy().tolist() == [1, 2]
