"""tfdp.keras.class_weights: the weight of every example is that of its class, where it has one."""

import numpy as np
import pytest
import tensorflow as tf
import toy

from tfdp.keras.class_weights import weights_of_classes, with_class_weights

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


WEIGHTS = {0: 2.0, 1: 3.0, 3: 4.0, 300: 5.0, 2**40: 6.0}


def _both(y, class_weight=WEIGHTS, spec=None):
    """Weights from arrays, and from data sets."""
    if spec is None:
        dataset = tf.data.Dataset.from_tensor_slices((y, y)).batch(len(y))
    else:
        dataset = tf.data.Dataset.from_generator(
            lambda: iter([(y, y)]), output_signature=(spec,) * 2
        )
    (batch,) = with_class_weights(dataset, class_weight)
    return weights_of_classes(y, class_weight), batch[2].numpy()


@pytest.mark.parametrize(
    ("labels", "dtype"),
    [
        ([0, 1, 44, 3, 255], "uint8"),  # 300 = 44 modulo 256.
        ([0, 1, 44, 3, -1], "int8"),
        ([0, 1, 300, 3, 2**40], "int64"),
        ([0, 1, 2**64 - 1, 3, 300], "uint64"),
        ([False, True, True], "bool"),
        ([0.0, 0.9999, 2.6, 300.2, -0.2, -1.0, 1e30, np.inf, np.nan], "float32"),
        ([0.0, 1.0, 2.0, 300.0, 2047.0], "float16"),
    ],
)
@pytest.mark.parametrize("columns", [None, 1])
def test_classes_of_every_type_have_their_own_weight_only(labels, dtype, columns):
    y = np.array(labels, dtype)
    y = y if columns is None else y[:, None]
    finite = [int(np.round(each)) if np.isfinite(each) else -1 for each in np.array(labels, dtype)]
    expected = [WEIGHTS.get(each, 1.0) for each in finite]
    for found in _both(y):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", ["uint8", "float32", "bool"])
@pytest.mark.parametrize("spec", [None, [None, None]])
def test_one_hot_classes_of_every_type(dtype, spec):
    y = np.eye(4)[[0, 3, 2, 1]].astype(dtype)
    spec = None if spec is None else tf.TensorSpec(spec, dtype)
    for found in _both(y, spec=spec):
        np.testing.assert_array_equal(found, [2.0, 4.0, 1.0, 3.0])


def test_one_column_is_no_one_hot_though_the_graph_does_not_know_it():
    y = np.array([[0], [3], [1]])
    for found in _both(y, spec=tf.TensorSpec([None, None], tf.int64)):
        np.testing.assert_array_equal(found, [2.0, 4.0, 3.0])


def test_classes_of_several_steps_of_an_example_are_refused():
    y = np.zeros([4, 3, 2], "float32")
    with pytest.raises(ValueError, match="3 axes"):
        weights_of_classes(y, WEIGHTS)
    dataset = tf.data.Dataset.from_tensor_slices((y, y)).batch(2)
    with pytest.raises(ValueError, match="one class of every example"):
        with_class_weights(dataset, WEIGHTS)
    unknown = tf.TensorSpec(None, tf.float32)
    of_any = tf.data.Dataset.from_generator(lambda: (), output_signature=(unknown, unknown))
    with pytest.raises(ValueError, match="one class of every example"):
        with_class_weights(of_any, WEIGHTS)
    words = tf.data.Dataset.from_tensor_slices((["a"], ["b"])).batch(1)
    with pytest.raises(TypeError, match="must be numbers"):
        with_class_weights(words, WEIGHTS)
