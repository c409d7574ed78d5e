"""Functions of a user's own in recurrent layers: on the batch where they keep records apart."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tests.gradients.problems import (
    BATCH,
    TOKENS,
    assert_engines_agree,
    by_engine,
    model_of,
    normal,
    problem,
    token_model,
    traced_sum,
)
from tests.gradients.rules.recurrent_test import WithoutMask
from tfdp.gradients import watching
from tfdp.gradients.layered_loss import UnsupportedModelError
from tfdp.gradients.record_scope import SideEffectError
from tfdp.gradients.rules.recurrent import RecurrentRule

L = keras.layers
SHAPE = (5, 4)


@keras.saving.register_keras_serializable("tfdp_tests")
def smooth(x):
    return x * tf.sigmoid(1.5 * x)


def over_units(x):
    parts = keras.ops.exp(x)
    return parts / (0.5 + keras.ops.sum(parts, -1, keepdims=True))


LAYERS = {
    "bidirectional": lambda: L.Bidirectional(L.LSTM(3, activation=smooth, return_sequences=True)),
    "gru": lambda: L.GRU(3, recurrent_activation=over_units, go_backwards=True),
    "gru_reset_first": lambda: L.GRU(
        3, activation=smooth, recurrent_activation=over_units, reset_after=False
    ),
    "lstm": lambda: L.LSTM(3, activation=over_units, return_sequences=True),
    "simple": lambda: L.SimpleRNN(3, activation=over_units, return_sequences=True),
    "stack": lambda: L.RNN([L.LSTMCell(3, activation=smooth), L.GRUCell(2)]),
}


def treatments(model):
    return str(tfdp.gradients.explain(model))


@pytest.mark.parametrize("name", sorted(LAYERS))
def test_functions_that_keep_records_apart(name):
    model = model_of(LAYERS[name], SHAPE)
    assert "RecurrentRule" in treatments(model)
    assert "record by record" not in treatments(model)
    assert_engines_agree(*problem(model, normal(*SHAPE)))


def test_masked_steps():
    tokens = TOKENS.copy()
    tokens[0, [0, 2]] = tokens[1, 3:] = tokens[2] = 0
    layer = L.LSTM(3, activation=over_units, return_sequences=True, go_backwards=True)
    model = token_model(L.Embedding(7, 4, mask_zero=True), layer, WithoutMask())
    assert "record by record" not in treatments(model)
    assert_engines_agree(*problem(model, tokens))


def test_steps_of_films():
    keras.utils.set_random_seed(1)
    loop = L.TimeDistributed(L.GRU(2, activation=smooth))
    model = keras.Sequential([keras.Input((2, 3, 4)), loop, L.Flatten(), L.Dense(2)])
    assert "record by record" not in treatments(model)
    assert_engines_agree(*problem(model, normal(2, 3, 4)))


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e30])
def test_record_that_is_not_finite_contributes_nothing(bad):
    """In 1e30, the sum over units is not finite."""
    x = normal(*SHAPE)
    model = model_of(lambda: L.LSTM(3, activation=over_units), SHAPE)
    loss, variables, (_, y) = problem(model, x)
    total = traced_sum(loss, variables, tfdp.GaussianSumQuery(0.3, 1.0))
    without = total((tf.constant(x), y), tf.range(BATCH) != 1)
    x[1, 2, 0] = bad
    with_bad = total((tf.constant(x), y), tf.ones([BATCH], tf.bool))
    for a, e in zip(with_bad, without, strict=True):
        np.testing.assert_array_equal(a, e)


@tf.custom_gradient
def with_a_gradient_of_its_own(x):
    return x, lambda g: g - tf.reduce_mean(g, 0)


class OwnFunction:
    """Does something else each time that it is called, after so many calls."""

    def __init__(self, same):
        self.calls, self.same = 0, same

    def __call__(self, x):
        self.calls += 1
        return x * float(max(self.calls - self.same, 0) + 1)


TABLE = tf.Variable([1.0, 2.0, 3.0])
LAYER = {}
ATTACKS = {
    "batch_size": lambda x: x / tf.cast(tf.shape(x)[0], x.dtype),
    "branch": lambda x: x if x.shape[0] == 1 else 2 * x,
    "draw": lambda x: x + tf.random.normal([3]),
    "draw_for_each_row": lambda x: x + keras.random.normal(tf.shape(x)),
    "draw_of_keras": lambda x: x + keras.random.normal([3]),
    "fewer_numbers": lambda x: x[:, :1],
    "gradient_of_its_own": with_a_gradient_of_its_own,
    "layer": lambda x: LAYER["dense"](x),
    "list": lambda x: [x],
    "loop": lambda x: tf.while_loop(lambda y: tf.reduce_sum(y) < 0, lambda y: (y + 1,), (x,))[0],
    "mean": lambda x: x - tf.reduce_mean(x, 0),
    "other_type": lambda x: tf.cast(x, tf.float16),
    "others": lambda x: x[::-1],
    "python": lambda x: tf.py_function(lambda y: y, [x], x.dtype),
    "sorted": lambda x: tf.sort(x, 0),
    "state": lambda x: OwnFunction(0)(x) * np.random.default_rng().normal(),
    "state_after_the_trial": OwnFunction(2),
    "transposed": lambda x: tf.transpose(tf.nn.softmax(tf.transpose(x))),
    "variable": lambda x: x * TABLE,
}


@pytest.mark.filterwarnings("ignore:.*Gradients are computed one example at a time")
@pytest.mark.parametrize("name", sorted(ATTACKS))
def test_what_could_mix_records_does_not_run_on_the_batch(name, monkeypatch):
    check_does_not_run_on_the_batch(ATTACKS[name], monkeypatch)


def test_the_check_fails_where_a_function_keeps_records_apart(monkeypatch):
    with pytest.raises(pytest.fail.Exception, match="It runs on the batch"):
        check_does_not_run_on_the_batch(smooth, monkeypatch)


def check_does_not_run_on_the_batch(function, monkeypatch):
    def record(*args, **kwargs):
        pytest.fail("It runs on the batch.")

    def one_by_one(*args, **kwargs):
        raise UnsupportedModelError("It runs record by record, which takes long to trace.")

    monkeypatch.setattr(RecurrentRule, "record", record)
    monkeypatch.setattr(watching, "MappedCall", one_by_one)
    if isinstance(function, OwnFunction):
        function.calls = 0
    keras.utils.set_random_seed(1)
    LAYER["dense"] = L.Dense(3)
    inputs = keras.Input(SHAPE)
    # Keras itself does not take some of these.
    errors = (UnsupportedModelError, SideEffectError, TypeError, ValueError)
    with contextlib.suppress(*errors):
        outputs = L.SimpleRNN(3, activation="tanh")(inputs)
        model = keras.Model(inputs, LAYER["dense"](outputs))
        model.layers[1].cell.activation = function
        by_engine(*problem(model, normal(*SHAPE)), tfdp.GaussianSumQuery(0.3, 1.0), "bookkeeping")


def test_a_mean_over_records_runs_record_by_record():
    model = model_of(lambda: L.SimpleRNN(3, activation=ATTACKS["mean"]), SHAPE)
    assert "record by record: Mean (functions_on_rows_test.py" in treatments(model)
    assert_engines_agree(*problem(model, normal(*SHAPE)))


def test_a_layer_whose_loop_is_replaced_runs_record_by_record():
    def layer():
        lstm = L.LSTM(3, activation=smooth)
        lstm.inner_loop = lstm.inner_loop
        return lstm

    model = model_of(layer, SHAPE)
    assert "record by record: code of this one object has been replaced" in treatments(model)


def test_functions_that_change_after_the_trial():
    model = model_of(lambda: L.SimpleRNN(3, activation="tanh"), SHAPE)
    model.layers[2].cell.activation = OwnFunction(2)
    assert "its operations are others each time it is called" in treatments(model)
