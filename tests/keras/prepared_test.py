"""What stands for a model's outputs before its first step: `training_test.py` trains what comes of
it.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
import toy

from tfdp.keras import prepared
from tfdp.keras.prepared import _outputs

L = keras.layers
STEPS = 40


class Cell(L.SimpleRNNCell):
    """Counts how often it is called."""

    times = 0

    def call(self, *args, **kwargs):
        type(self).times += 1
        return super().call(*args, **kwargs)


def labels():
    return keras.Sequential([keras.Input((STEPS, 3)), L.GRU(4), L.Dense(2)])


def several():
    tokens = keras.Input((STEPS,), dtype="int32", name="tokens")
    start = keras.Input((4,), name="start")
    x = L.Embedding(9, 4, mask_zero=True)(tokens)
    steps, state = L.GRU(4, return_sequences=True, return_state=True)(x, initial_state=start)
    outputs = {"steps": L.Dense(3)(steps), "both": [state, L.Bidirectional(L.LSTM(2))(x)]}
    return keras.Model({"tokens": tokens, "start": start}, outputs)


def half():
    layers = [L.LSTM(4, dtype="mixed_float16"), L.Dense(2, dtype="mixed_float16")]
    return keras.Sequential([keras.Input((STEPS, 3)), *layers])


def images():
    image = keras.Input((3, 8, 8, 1))
    return keras.Model(image, L.Flatten()(L.ConvLSTM2D(2, 3, dropout=0.5)(image)))


class OwnModel(keras.Model):
    """Has no graph of its own."""

    def __init__(self):
        super().__init__()
        self.loop, self.last = L.RNN(Cell(4)), L.Dense(2)

    def call(self, inputs):
        return self.last(self.loop(inputs))


def example_of(model):
    inputs = model.inputs[0] if isinstance(model, keras.Sequential) else model.input
    return tf.nest.map_structure(lambda t: tf.zeros([1, *t.shape[1:]], t.dtype), inputs)


@pytest.mark.parametrize("make", [labels, several, half, images])
def test_they_have_the_structure_shapes_and_types_of_the_models(make):
    model = make()
    x = example_of(model)
    found, expected = _outputs(model, x), model(x)
    tf.nest.assert_same_structure(found, expected)
    for left, right in zip(tf.nest.flatten(found), tf.nest.flatten(expected), strict=True):
        assert (left.shape, left.dtype) == (right.shape, right.dtype)


def test_a_loop_takes_no_steps_before_the_first_one(monkeypatch):
    def times():
        Cell.times = 0
        layers = [L.RNN(Cell(4)), L.Dense(2)]
        model = toy.private(keras.Sequential([keras.Input((STEPS, 3)), *layers]))
        model.fit(np.ones([8, STEPS, 3]), np.ones([8], int), batch_size=4, verbose=0)
        return Cell.times

    assert times() < STEPS / 2
    # Calling the model takes all of them.
    monkeypatch.setattr(prepared, "_outputs", lambda model, x: model(x))
    assert times() > STEPS


def test_a_model_that_is_not_built_is_called_and_has_all_variables_then():
    model = OwnModel()
    x = tf.zeros([1, STEPS, 3])
    Cell.times = 0
    assert _outputs(model, x).shape == [1, 2] and Cell.times > STEPS
    assert len(model.trainable_variables) == 5
    Cell.times = 0
    assert _outputs(model, x).shape == [1, 2] and Cell.times < STEPS
