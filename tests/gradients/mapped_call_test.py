"""Layers that run record by record, in a pass over the whole batch."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tests.gradients.problems import (
    TOKENS,
    Block,
    Position,
    assert_agrees_for_any_length,
    assert_engines_agree,
    assert_layer_agrees,
    assert_layer_is_exact,
    assert_tokens_agree,
    by_engine,
    explicit_sum,
    model_of,
    normal,
    problem,
    token_model,
)

L = keras.layers


class Cell(L.SimpleRNNCell):
    """A cell of the user's own, which no rule knows."""

    of_my_own = True


class CellOfPositions(L.Layer):
    """A cell whose state is a sequence."""

    def __init__(self):
        super().__init__()
        self.state_size = 6
        self.dense = L.Dense(3, activation="tanh")

    def build(self, shape):
        self.dense.build((None, 2, 3))

    def call(self, inputs, states, training=False):
        state = self.dense(keras.ops.reshape(states[0], (-1, 2, 3)) + inputs)
        return state, [keras.ops.reshape(state, (-1, 6))]


@tf.function
def _between_0_and_1(x):
    return tf.clip_by_value(0.5 * x + 0.5, 0.0, 1.0)


class CallsFunction(L.Layer):
    """Calls a function that others call, too."""

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], 3))

    def call(self, inputs):
        return _between_0_and_1(tf.matmul(inputs, self.kernel))


def test_a_function_that_was_differentiated_elsewhere():
    """TensorFlow gives it more results than calls of it have that are made later."""
    for engine in ("loop", "vectorized", "bookkeeping", "bookkeeping"):
        loss, variables, examples = problem(model_of(CallsFunction, (4,)), normal(4))
        total = by_engine(loss, variables, examples, tfdp.GaussianSumQuery(0.3, 1.0), engine)
        expected = explicit_sum(loss, variables, examples, 0.3)
        for a, e in zip(total, expected, strict=True):
            np.testing.assert_allclose(a, e, atol=1e-6)


# name -> (layer, shape of its input)
LAYERS = {
    "composite": (Block, (5, 4)),
    # TensorFlow vectorizes the loop to products that it may write out of bounds, and XLA does not
    # compile it.
    "recurrent_of_positions": (lambda: L.RNN(CellOfPositions()), (2, 2, 3)),
    "recurrent_without_a_rule": (lambda: L.RNN(Cell(3)), (4, 3)),
    "recurrent_with_other_options": (
        lambda: L.SimpleRNN(3, activation=lambda x: tf.math.lgamma(2.5 + tf.tanh(x))),
        (4, 3),
    ),
}


def test_layers_have_no_rule():
    for name, (layer, shape) in LAYERS.items():
        model = keras.Sequential([keras.Input(shape), layer(), L.Flatten(), L.Dense(2)])
        by_record = tfdp.gradients.explain(model).count("record by record")
        assert by_record == (0 if name == "composite" else 1), name


@pytest.mark.parametrize("name", sorted(LAYERS))
def test_layer_without_a_rule(name):
    assert_layer_agrees(*LAYERS[name])


def test_layer_with_a_weight_of_its_own():
    assert_layer_is_exact(Position, (5, 4))


@tf.custom_gradient
def with_another_gradient(x):
    return tf.square(x), lambda g: 3.0 * g


class InFrontOfALoop(L.Layer):
    """A loop, whose inputs' gradient TensorFlow does not vectorize, and a gradient of one's own."""

    def __init__(self):
        super().__init__()
        self.loop = L.SimpleRNN(3)

    def call(self, inputs):
        return self.loop(with_another_gradient(inputs))


@pytest.mark.filterwarnings("ignore:Gradients are computed one example at a time")
def test_gradients_of_ones_own_are_kept():
    assert_layer_agrees(InFrontOfALoop, (4, 3))


# name -> layers of a model whose tokens are masked where they are 0.
MASKED = {
    "recurrent": lambda: [L.Embedding(7, 4, mask_zero=True), L.RNN(Cell(3))],
    "composite": lambda: [L.Embedding(7, 4, mask_zero=True), Block(), L.GlobalAveragePooling1D()],
}


@pytest.mark.parametrize("name", sorted(MASKED))
def test_masks_reach_a_layer_without_a_rule(name):
    tokens = TOKENS.copy()
    tokens[:, 4] = 0
    assert_tokens_agree(token_model(*MASKED[name]()), tokens)


class Mixes(L.Layer):
    """A layer that no rule knows. To what its dense layer returns Keras attaches the logits, and to
    what it returns itself the mask of its input.
    """

    def __init__(self, activation):
        super().__init__()
        self.supports_masking = True
        self.dense = L.Dense(3, activation=activation)

    def call(self, inputs, mask=None):
        return self.dense(inputs + 0 * tf.reduce_mean(inputs))


@pytest.mark.parametrize("in_use", ["alone", "beside_others"])
@pytest.mark.parametrize("mask_zero", [False, True])
@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
def test_gradients_come_through_logits_of_a_layer_that_hands_on_a_mask(
    activation, mask_zero, in_use
):
    keras.utils.set_random_seed(1)
    inputs = keras.Input((5,), dtype="int32")
    h = L.Embedding(7, 4, mask_zero=mask_zero)(inputs)
    layer = Mixes(activation)
    outputs = [layer(h)] if in_use == "alone" else [layer(h), layer.dense(keras.ops.flip(h, 1))]
    model = keras.Model(inputs, outputs)
    assert "record by record" in tfdp.gradients.explain(model)
    cross_entropy = {
        "softmax": keras.losses.categorical_crossentropy,
        "sigmoid": keras.losses.binary_crossentropy,
    }[activation]

    def loss(y, outputs):
        return sum(tf.reduce_mean(cross_entropy(y, p)) for p in tf.nest.flatten(outputs))

    tokens = TOKENS.copy()
    tokens[:, 4] = 0
    labels = tf.one_hot(tokens % 3, 3)
    examples = (tf.constant(tokens), labels)
    loss = tfdp.gradients.ModelLoss(model, loss)
    assert_engines_agree(loss, model.trainable_variables, examples)


class Changes(L.Layer):
    """A layer to whose output other logits belong after some calls."""

    def __init__(self, first, then):
        super().__init__()
        self.dense, self.calls, self.functions = L.Dense(3), 0, (first, then)

    def call(self, inputs):
        self.calls += 1
        logits = self.dense(inputs + 0 * tf.reduce_mean(inputs))
        return self.functions[self.calls >= 6](logits)


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (keras.activations.softmax, tf.nn.softmax),
        (tf.nn.softmax, tf.nn.softplus),
        (tf.nn.softmax, tf.nn.sigmoid),
        (tf.nn.softplus, tf.nn.softmax),
    ],
)
def test_a_layer_that_attaches_something_else_when_it_is_called_again_is_refused(first, then):
    inputs = keras.Input((4,))
    layer = Changes(first, then)
    model = keras.Model(inputs, layer(inputs))
    loss = tfdp.gradients.ModelLoss(model, keras.losses.categorical_crossentropy)
    examples = (tf.ones([4, 4]), tf.one_hot([0, 1, 2, 0], 3))
    refused = False
    for calls in range(6):
        layer.calls = calls
        try:
            by_engine(
                loss,
                model.trainable_variables,
                examples,
                tfdp.GaussianSumQuery(1.0, 1.0),
                "bookkeeping",
            )
        except tfdp.gradients.UnsupportedModelError as error:
            refused = refused or "when it is called again" in str(error)
    assert refused


def test_layer_without_a_rule_on_an_embedding():
    assert_tokens_agree(token_model(L.Embedding(7, 4), Position()), TOKENS)


class Returns(L.Layer):
    """A layer that no rule knows, and which returns something beside a tensor."""

    def __init__(self, make):
        super().__init__()
        self.dense, self.make = L.Dense(4), make

    def call(self, inputs):
        return self.make(self.dense(tf.roll(inputs, 1, 0) + inputs))


class FirstTensor(L.Layer):
    """The first tensor in what the layer in it returns."""

    def __init__(self, make):
        super().__init__()
        self.inner = Returns(make)

    def call(self, inputs):
        return next(t for t in tf.nest.flatten(self.inner(inputs)) if tf.is_tensor(t))


# KerasHub's attention layers return None for a cache that they do not keep.
RETURNED = {
    "none": lambda y: (y, None),
    "number": lambda y: (y, 3),
    "dictionary": lambda y: {"a": None, "b": y, "c": "text"},
    "deep": lambda y: [None, [y, None, 2 * y]],
}


@pytest.mark.parametrize("name", sorted(RETURNED))
def test_layer_without_a_rule_returns_more_than_tensors(name):
    assert_layer_agrees(lambda: FirstTensor(RETURNED[name]), (3, 4))


class ByRecord(L.Layer):
    """Code that runs for some records."""

    def __init__(self, code):
        super().__init__()
        self.dense, self.code = L.Dense(4), code

    def call(self, inputs):
        return self.code(inputs, self.dense)


BY_RECORD = {
    "branch": lambda x, f: tf.cond(tf.reduce_sum(x) > 0, lambda: f(x), lambda: tf.sin(x)) + f(x),
    "turns": lambda x, f: (
        tf.while_loop(
            lambda y: tf.reduce_sum(tf.abs(y)) > 2,
            lambda y: [0.5 * f(y)],
            [x],
            maximum_iterations=4,
        )[0]
        + f(x)
    ),
}


@pytest.mark.filterwarnings("ignore:.*Gradients are computed one example at a time")
@pytest.mark.parametrize("name", sorted(BY_RECORD))
def test_code_that_runs_for_some_records(name):
    assert_layer_agrees(lambda: ByRecord(BY_RECORD[name]), (4,))


class TakesOneBranch(L.Layer):
    """Has a branch whose derivative is infinite where the other one is taken."""

    def call(self, inputs):
        total = tf.reduce_sum(inputs)
        return tf.cond(total > 0, lambda: tf.math.log(total) * inputs, lambda: inputs**2)


def test_the_branch_that_a_record_does_not_take_does_not_matter():
    model = model_of(TakesOneBranch, (4,))
    total = tf.reduce_sum(model.get_layer("first")(normal(4)), 1)
    assert set(np.sign(total)) == {-1, 1}
    with pytest.warns(UserWarning, match="takes one branch or another"):
        assert_engines_agree(*problem(model, normal(4)))


class Centred(L.Layer):
    """Maps over records by itself, with a layer in it."""

    def __init__(self):
        super().__init__()
        self.dense = L.Dense(3)

    def call(self, inputs):
        return tf.map_fn(lambda row: row - tf.reduce_mean(row), self.dense(inputs))


def test_records_of_open_length():
    keras.utils.set_random_seed(1)
    inputs = keras.Input((None, 4))
    pooled = L.GlobalAveragePooling1D()(keras.ops.tanh(Centred()(inputs)))
    model = keras.Model(inputs, L.Dense(2)(pooled))
    # TensorFlow cannot vectorize a loop whose elements are of a shape that is not known.
    with pytest.warns(UserWarning, match="one example at a time"):
        assert_agrees_for_any_length(*problem(model, normal(5, 4)))
