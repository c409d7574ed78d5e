"""Promises of a user's own classes: what is seen of them, whatever lengths are open or alike."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tests.gradients.problems import (
    assert_sums_agree,
    explicit_sum,
    squared_error,
    targets,
)
from tfdp.gradients import ModelLoss, RecordWise, UnsupportedModelError, explain
from tfdp.gradients.rules import rule

L, K = keras.layers, keras.ops
STEPS = 4  # As many as there are records: what is taken for another axis gives no error.


class Promised(keras.Model):
    """A model whose code nobody looks at."""

    def __init__(self, code, others=()):
        super().__init__(name="promised")
        self.code, self.dense, self.last = code, L.Dense(4, activation="tanh"), L.Dense(2)
        self.others = list(others)

    def call(self, x):
        return self.last(self.code(self, x))


def steps_first(model, x):
    h = model.dense(tf.transpose(x, [1, 0, 2]))
    return tf.reduce_mean(tf.transpose(h, [1, 0, 2]), 1)


def chosen_steps(model, x):
    """A layer on steps of all records that are larger than others, of which there are n."""
    largest = tf.reduce_max(x, [1, 2], keepdims=True)
    chosen = tf.boolean_mask(x, tf.reduce_any(x == largest, 2))
    return model.dense(chosen)


def steps_of_all(model, x):
    h = model.dense(tf.reshape(x, [-1, 3]))
    return tf.reduce_mean(tf.reshape(h, [tf.shape(x)[0], -1, 4]), 1)


class Plain(L.Layer):
    """Has no rule, nor weights."""

    def call(self, x, *others):
        return x * 2.0 + sum(tf.reduce_sum(other) for other in others)


def one_step(model, x):
    return model.dense(x)[:, 0]


def problem_of(code, monkeypatch, *others):
    monkeypatch.setitem(rule._RULES, Promised, RecordWise())
    keras.utils.set_random_seed(1)
    model = Promised(code, others)
    x = np.random.default_rng(0).normal(size=(4, STEPS, 3)).astype("float32")
    model(x)
    examples = tf.constant(x), tf.constant(targets(2))
    return ModelLoss(model, squared_error), model.trainable_variables, examples


def sum_of(loss, variables, examples, engine, steps):
    @tf.function(
        autograph=False,
        input_signature=[tf.TensorSpec([None, steps, 3]), tf.TensorSpec([None, 3])],
    )
    def total(x, y):
        query = tfdp.GaussianSumQuery(0.3, 1.0)
        return tfdp.clipped_gradient_sum(loss, variables, (x, y), query, engine=engine).sample_state

    return [np.asarray(leaf, np.float64) for leaf in total(*examples)]


@pytest.mark.parametrize("steps", [STEPS, None])
@pytest.mark.parametrize("code", [steps_first, chosen_steps, steps_of_all])
def test_layers_that_are_called_on_something_else_are_refused(code, steps, monkeypatch):
    loss, variables, examples = problem_of(code, monkeypatch)
    why = "'dense.*' is called on something that has no axis of records"
    with pytest.raises(UnsupportedModelError, match=why):
        sum_of(loss, variables, examples, "bookkeeping", steps)
    if code is not chosen_steps:  # Its shapes follow a record.
        actual = sum_of(loss, variables, examples, "auto", steps)
        assert_sums_agree(actual, explicit_sum(loss, variables, examples, 0.3))
    with pytest.raises(UnsupportedModelError, match=why):
        explain(loss.model, keras.Input((steps, 3)))


@pytest.mark.parametrize("steps", [STEPS, None])
def test_layers_that_are_called_on_records_run_on_the_batch(steps, monkeypatch):
    loss, variables, examples = problem_of(one_step, monkeypatch)
    actual = sum_of(loss, variables, examples, "bookkeeping", steps)
    assert_sums_agree(actual, explicit_sum(loss, variables, examples, 0.3))
    assert "promised/dense" not in explain(loss.model, keras.Input((steps, 3)))


def test_weights_that_are_read_past_keras(monkeypatch):
    def code(model, x):
        return one_step(model, x) + model.dense.bias._value

    loss, variables, examples = problem_of(code, monkeypatch)
    with pytest.raises(UnsupportedModelError, match="promised reads .*bias past Keras"):
        sum_of(loss, variables, examples, "bookkeeping", STEPS)
    actual = sum_of(loss, variables, examples, "auto", STEPS)
    assert_sums_agree(actual, explicit_sum(loss, variables, examples, 0.3))


def test_rows_that_a_model_has_chosen_are_not_its_records(monkeypatch):
    def code(model, x):
        h = one_step(model, x)
        return h if x.shape[0] == 4 else tf.boolean_mask(h, h[:, 0] > -2.0)

    loss, variables, examples = problem_of(code, monkeypatch)
    loss.model.last = lambda x: x  # Nothing comes after it.
    variables = [v for v in variables if "last" not in v.path]
    with pytest.raises(UnsupportedModelError, match="the model returns something else"):
        sum_of(loss, variables, examples, "bookkeeping", STEPS)


def test_code_that_takes_no_known_number_of_records_is_refused(monkeypatch):
    def code(model, x):
        if x.shape[0] not in (None, 1, 4):
            raise ValueError("Not so many.")
        return one_step(model, x)

    loss, variables, examples = problem_of(code, monkeypatch)
    with pytest.raises(UnsupportedModelError, match="its code fails for 53 records. Not so many."):
        sum_of(loss, variables, examples, "bookkeeping", STEPS)


@pytest.mark.parametrize("of_steps", [False, True])
def test_layers_without_a_rule(of_steps, monkeypatch):
    plain, both = Plain(), Plain()

    def code(model, x):
        h = x * plain(tf.range(3.0))  # The same for all records.
        return model.dense(both(h, tf.transpose(x, [1, 0, 2])) if of_steps else both(h, x))[:, 0]

    loss, variables, examples = problem_of(code, monkeypatch, plain, both)
    if of_steps:
        with pytest.raises(UnsupportedModelError, match="'plain.*' is called on something"):
            sum_of(loss, variables, examples, "bookkeeping", None)
    else:
        actual = sum_of(loss, variables, examples, "bookkeeping", None)
        assert_sums_agree(actual, explicit_sum(loss, variables, examples, 0.3))


class StepsInFront(L.Layer):
    """Calls a layer on steps, or on records."""

    def __init__(self, moves=True):
        super().__init__()
        self.dense, self.moves = L.Dense(3), moves

    def call(self, x):
        if not self.moves:
            return self.dense(x)
        return tf.transpose(self.dense(tf.transpose(x, [1, 0, 2])), [1, 0, 2])


class Around(L.Layer):
    """A block, whose code is looked at, around one."""

    def __init__(self, inner, merges=False):
        super().__init__()
        self.inner, self.merges = inner, merges

    def call(self, x):
        if not self.merges:
            return self.inner(x) + x
        rows = self.inner(K.reshape(x, (-1, 1, 3)))
        return K.reshape(rows, (-1, STEPS, 3)) + x


def functional(layer, steps=None):
    inputs = keras.Input((steps, 3))
    return keras.Model(inputs, L.Dense(2)(L.GlobalAveragePooling1D()(layer(inputs))))


@pytest.mark.parametrize("wrap", [lambda inner: inner, Around])
def test_a_promise_for_a_layer_in_a_functional_model(wrap, monkeypatch):
    monkeypatch.setitem(rule._RULES, StepsInFront, RecordWise())
    keras.utils.set_random_seed(1)
    x = np.random.default_rng(0).normal(size=(4, STEPS, 3)).astype("float32")
    examples = tf.constant(x), tf.constant(targets(2))
    for moves in (True, False):
        model = functional(wrap(StepsInFront(moves)))
        loss, variables = ModelLoss(model, squared_error), model.trainable_variables
        expected = explicit_sum(loss, variables, examples, 0.3)
        assert_sums_agree(sum_of(loss, variables, examples, "auto", None), expected)
        if moves:
            with pytest.raises(UnsupportedModelError, match="has no axis of records"):
                sum_of(loss, variables, examples, "bookkeeping", None)
        else:
            assert_sums_agree(sum_of(loss, variables, examples, "bookkeeping", None), expected)


def test_a_promise_for_rows_of_records(monkeypatch):
    monkeypatch.setitem(rule._RULES, StepsInFront, RecordWise())
    model = functional(Around(StepsInFront(moves=False), merges=True), STEPS)
    assert ": block, on the batch" in explain(model)
    with pytest.raises(UnsupportedModelError, match="has no axis of records"):
        explain(functional(Around(StepsInFront(), merges=True), STEPS))


class StepsFirst(ModelLoss):
    """Calls the model on steps, in a forward pass of its own."""

    def forward(self, examples, scope):
        h = self.model(tf.transpose(examples[0], [1, 0, 2]))
        return tf.reduce_mean(tf.transpose(h, [1, 0, 2]), 1)


def test_a_forward_pass_of_ones_own():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((None, 3)), L.Dense(2)])
    x = np.random.default_rng(0).normal(size=(4, STEPS, 3)).astype("float32")
    loss, variables = StepsFirst(model, squared_error), model.trainable_variables
    examples = tf.constant(x), tf.constant(targets(2))
    with pytest.raises(UnsupportedModelError, match="has no axis of records"):
        sum_of(loss, variables, examples, "bookkeeping", None)
    assert_sums_agree(
        sum_of(loss, variables, examples, "auto", None),
        explicit_sum(loss, variables, examples, 0.3),
    )
