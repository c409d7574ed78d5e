"""Weights that are read where no gradient would come back: nothing is left out in silence."""

import keras
import pytest
import tensorflow as tf

import tfdp
from tests.gradients.problems import (
    assert_sums_agree,
    by_engine,
    explicit_sum,
    head,
    normal,
    problem,
    targets,
)
from tfdp.gradients import ModelLoss, UnsupportedModelError, explain

L, K = keras.layers, keras.ops


class Own(L.Layer):
    """Code of one's own around a weight and a layer."""

    def __init__(self, code):
        super().__init__(name="own")
        self.code, self.dense = code, L.Dense(4, name="dense")

    def build(self, shape):
        self.w = self.add_weight(shape=(4,), initializer="uniform", name="w")
        self.dense.build(shape)

    def call(self, inputs):
        # All weights are used beside what the code does with them.
        return self.code(self, inputs) + self.dense(inputs) * self.w


def scaled(layer):
    """A function with a gradient of its own that reads a weight."""

    @tf.custom_gradient
    def scale(x):
        def gradients(at, variables=None):
            of_x = at * layer.w.value
            return (of_x, [tf.reduce_sum(at * x, 0)] * len(variables)) if variables else of_x

        return x * layer.w.value, gradients

    return scale


def in_function(layer, x):
    return tf.function(lambda x: scaled(layer)(x))(x)


READ_IN_OWN_GRADIENTS = {
    "custom_gradient": lambda layer, x: scaled(layer)(x),
    "in_function": in_function,
    "recomputed": lambda layer, x: tf.recompute_grad(lambda x: tf.tanh(x * layer.w))(x),
    "recomputed_layer": lambda layer, x: tf.recompute_grad(lambda x: layer.dense(x))(x),
}
READ_PAST_KERAS = {
    "own": lambda layer, x: x * layer.w._value,
    "of_a_layer": lambda layer, x: x + layer.dense.bias._value,
    "in_function": lambda layer, x: tf.function(lambda x: x * layer.w._value)(x),
}


@tf.custom_gradient
def product(x, w):
    return x * w, lambda at: (at * w, tf.reduce_sum(at * x, 0))


@tf.custom_gradient
def with_small_gradient(x):
    return tf.identity(x), lambda at: tf.clip_by_value(at, -0.1, 0.1)


# What TensorFlow finds.
FOUND = {
    "argument": lambda layer, x: product(x, tf.convert_to_tensor(layer.w)),
    "clipped_gradient": lambda layer, x: with_small_gradient(layer.dense(x) * layer.w),
    "swish": lambda layer, x: tf.nn.swish(x * layer.w, beta=2.0),
}


def problem_with(code):
    keras.utils.set_random_seed(1)
    inputs = keras.Input((4,))
    model = keras.Model(inputs, head(Own(code)(L.Dense(4)(inputs))))
    return problem(model, normal(4))


def check(loss, variables, examples, engine):
    actual = by_engine(loss, variables, examples, tfdp.GaussianSumQuery(0.3, 1.0), engine)
    assert_sums_agree(actual, explicit_sum(loss, variables, examples, 0.3))


@pytest.mark.parametrize("code", FOUND.values(), ids=FOUND.keys())
def test_gradients_that_are_found(code):
    check(*problem_with(code), "bookkeeping")


IN_OWN_GRADIENT = "in a function with a gradient of its own"


@pytest.mark.parametrize(
    ("code", "why"),
    [
        *((code, IN_OWN_GRADIENT) for code in READ_IN_OWN_GRADIENTS.values()),
        *((code, "past Keras") for code in READ_PAST_KERAS.values()),
    ],
)
def test_uses_that_bookkeeping_does_not_take(code, why):
    loss, variables, examples = problem_with(code)
    check(loss, variables, examples, "auto")
    with pytest.raises(UnsupportedModelError, match=f"'own' reads .*{why}"):
        explain(loss.model)


@pytest.mark.parametrize(
    "read", [lambda v: v._value, lambda v: tf.recompute_grad(lambda: v * 1.0)()]
)
def test_losses(read):
    keras.utils.set_random_seed(1)
    inputs = keras.Input((4,))
    model = keras.Model(inputs, L.Dense(2, name="last")(inputs))

    def squares(y, outputs):
        off = tf.square(outputs - y[:, 1:]) * y[:, :1] + K.square(read(model.layers[-1].bias))
        return tf.reduce_sum(off)

    loss, variables = ModelLoss(model, squares), model.trainable_variables
    examples = tf.constant(normal(4)), tf.constant(targets(2))
    check(loss, variables, examples, "auto")
    with pytest.raises(UnsupportedModelError, match="The loss reads"):
        by_engine(loss, variables, examples, tfdp.GaussianSumQuery(0.3, 1.0), "bookkeeping")


class Recomputed(ModelLoss):
    """Calls the model as a whole in a function with a gradient of its own."""

    def forward(self, examples, scope):
        return tf.recompute_grad(lambda x: self.model(x, training=True))(examples[0])


def test_models_on_the_batch():
    loss, variables, examples = problem_with(lambda layer, x: x)
    loss = Recomputed(loss.model, lambda y, outputs: tf.reduce_sum(outputs * y[:, 1:]))
    check(loss, variables, examples, "auto")
    with pytest.raises(UnsupportedModelError, match="The forward pass reads weights"):
        by_engine(loss, variables, examples, tfdp.GaussianSumQuery(0.3, 1.0), "bookkeeping")


class SoftMask(L.Layer):
    """Has a mask that reads a weight past Keras."""

    supports_masking = True

    def build(self, shape):
        self.w = self.add_weight(shape=(4,), initializer="uniform", name="w")

    def call(self, inputs):
        return inputs * self.w

    def compute_mask(self, inputs, mask=None):
        return inputs * self.w._value

    def compute_output_shape(self, shape):
        return shape


class Masked(L.Layer):
    """Uses the mask."""

    supports_masking = True

    def compute_mask(self, inputs, mask=None):
        return None

    def call(self, inputs, mask=None):
        return inputs * mask

    def compute_output_shape(self, shape):
        return shape


def test_masks():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), L.Dense(4), SoftMask(), Masked(), L.Dense(2)])
    loss, variables, examples = problem(model, normal(4))
    check(loss, variables, examples, "auto")
    with pytest.raises(UnsupportedModelError, match="The mask of .* past Keras"):
        by_engine(loss, variables, examples, tfdp.GaussianSumQuery(0.3, 1.0), "bookkeeping")
