"""tfdp.keras.class_weights: the weight of every example is that of its class, where it has one."""

import numpy as np
import pytest
import toy

from tfdp.keras.class_weights import weights_of_classes

N, Y = toy.N, toy.Y


def test_class_weights_of_one_hot_labels():
    weights = weights_of_classes(np.eye(3)[[0, 2, 1, 2]], {0: 2.0, 2: 3.0})
    np.testing.assert_array_equal(weights, [2.0, 3.0, 1.0, 3.0])


@pytest.mark.parametrize("label", [np.nan, np.inf, -1.0, 1e30])
def test_label_that_is_no_class_raises_nothing_for_its_weight(label):
    # int(label) would raise, so that a crash would tell of the record.
    labels = np.where(np.arange(N) == 3, label, Y).astype("float32")
    weights = weights_of_classes(labels, {0: 2.0, 1: 3.0})
    expected = np.where(Y == 0, 2.0, 3.0)
    expected[3] = 1.0
    np.testing.assert_array_equal(weights, expected)
