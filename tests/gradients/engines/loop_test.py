"""The reference engine against sums by hand."""

import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tfdp.gradients.engines.loop import is_finite

# The gradients of w x are the records x: of norms 5, 0.5 and 10.
X = tf.constant([[3.0, 4.0], [0.3, 0.4], [6.0, -8.0]])


def clipped(**kwargs):
    w = tf.Variable([0.0, 0.0])
    query = tfdp.GaussianSumQuery(1.0, 1.0)
    total = tfdp.clipped_gradient_sum(
        lambda x: tf.reduce_sum(x * w), [w], X, query, engine="loop", **kwargs
    )
    return total.sample_state[0].numpy()


def test_sum_by_hand():
    # (0.6, 0.8) + (0.3, 0.4) + (0.6, -0.8).
    np.testing.assert_allclose(clipped(), [1.5, 0.4], rtol=1e-5)
    np.testing.assert_allclose(clipped(mask=[True, True, False]), [0.9, 1.2], rtol=1e-5)


def test_microbatch_by_hand():
    # The means of records 0 and 2, (4.5, -2), and of record 1; |(4.5, -2)|^2 = 24.25.
    found = clipped(num_microbatches=2, microbatch_ids=[0, 1, 0])
    expected = np.array([4.5, -2.0]) / np.sqrt(24.25) + [0.3, 0.4]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("length", [0, None])
@pytest.mark.parametrize("groups", [{}, {"examples_per_record": 2}], ids=["examples", "groups"])
def test_no_records_give_zeros_losses_and_aux_of_no_rows(groups, length):
    w = tf.Variable([1.0, 1.0])

    @tf.function(input_signature=[tf.TensorSpec([length, 2])], autograph=False)
    def total(x):
        return tfdp.clipped_gradient_sum(
            lambda x: (tf.reduce_sum(x * w), x[0]),
            [w],
            x,
            tfdp.GaussianSumQuery(1.0, 1.0),
            engine="loop",
            has_aux=True,
            **groups,
        )

    found = total(tf.zeros([0, 2]))
    np.testing.assert_array_equal(found.sample_state[0], [0.0, 0.0])
    assert found.losses.shape == (0,) and found.aux.shape == (0, 2)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e30])
def test_norm_of_a_record_must_be_finite(bad):
    assert is_finite([tf.constant([1.0]), tf.constant([2.0])])
    assert not is_finite([tf.constant([1.0]), tf.constant([bad])])
