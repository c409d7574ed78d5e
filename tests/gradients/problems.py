"""Small models, and how two engines are compared on them."""

import contextlib

import keras
import numpy as np
import tensorflow as tf

import tfdp
from tfdp.gradients import ModelLoss, explain
from tfdp.gradients.engines.bookkeeping import bookkeeping_gradients

L = keras.layers
BATCH = 4
TOKENS = np.random.default_rng(0).integers(1, 7, (BATCH, 5))
TOKENS[:, 3:] = TOKENS[:, :1]  # Some come twice in a record.


class Position(L.Layer):
    """Adds a table of its own: a layer without a rule."""

    def build(self, shape):
        self.table = self.add_weight(shape=shape[1:], initializer="uniform")

    def call(self, inputs):
        return inputs + self.table


class WithoutMask(L.Layer):
    """Lets gradients through to masked steps, too."""

    supports_masking = True

    def call(self, inputs):
        return tf.identity(inputs)

    def compute_mask(self, inputs, mask=None):
        return None


class Block(L.Layer):
    """A composite layer with a dropout-free residual, as users write them."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.attention = L.MultiHeadAttention(2, 3)
        self.norm = L.LayerNormalization()
        self.supports_masking = True

    def call(self, inputs):
        return self.norm(inputs + self.attention(inputs, inputs))


class Pair(L.Layer):
    """Marks an attention layer that attends to its own input."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer


def lora(layer):
    """Returns the layer with a low-rank adaptation, whose second factor is not zero."""

    def enable(inputs):
        layer.build(inputs)
        layer.enable_lora(2, lora_alpha=3)
        for v in layer.trainable_variables:
            v.assign(np.random.default_rng(5).normal(size=v.shape))

    layer.prepare = enable
    return layer


def apply(layer, x):
    if isinstance(layer, Pair):
        return layer.layer(x, x)
    if hasattr(layer, "prepare"):
        # A layer that keeps a function of anybody's has no rule.
        vars(layer).pop("prepare")(x.shape)
    return layer(x)


def head(x):
    return L.Dense(2, name="head")(L.Flatten()(x))


def model_of(make_layer, shape):
    """A layer between a dense layer and a dense layer, so that gradients flow through it."""
    keras.utils.set_random_seed(1)
    inputs = keras.Input(shape)
    return keras.Model(inputs, head(apply(make_layer(), L.Dense(shape[-1], name="first")(inputs))))


def how_it_runs(model):
    """Returns what is said of all that is between the first layer of `model_of` and its head."""
    return [line.split(": ", 1)[1] for line in explain(model).split("\n")[1:-1]]


def normal(*shape):
    return np.random.default_rng(0).normal(size=(BATCH, *shape)).astype(keras.config.floatx())


def squared_error(y, outputs):
    # Records of very different norms: some are clipped, others are not.
    return tf.reduce_sum(tf.square(tf.cast(outputs, y.dtype) - y[:, 1:]) * y[:, :1])


def targets(size):
    weights = np.logspace(-2, 1, BATCH)[:, None]
    y = np.random.default_rng(1).normal(size=(BATCH, size))
    return np.concatenate([weights, y], 1).astype(keras.config.floatx())


def problem(model, x):
    """Returns (loss, variables, examples).

    Biases, offsets and scales, which Keras makes all 0 or all 1, are given numbers: a rule with
    another sign, or one in another place, gives another sum.
    """
    rng = np.random.default_rng(2)
    for v in model.trainable_variables:
        if np.ptp(v) == 0:
            v.assign_add(0.1 * rng.normal(size=v.shape))
    y = targets(model.output_shape[-1])
    inputs = tuple(map(tf.constant, x)) if isinstance(x, tuple) else tf.constant(x)
    return (
        ModelLoss(model, squared_error),
        model.trainable_variables,
        (inputs, tf.constant(y)),
    )


def by_engine(loss, variables, examples, query, engine, **kwargs):
    total = tfdp.clipped_gradient_sum(loss, variables, examples, query, engine=engine, **kwargs)
    return [np.asarray(leaf, np.float64) for leaf in tf.nest.flatten(total.sample_state)]


def traced_sum(loss, variables, query):
    """Returns a function of (examples, mask) that gives the sum, in one graph for all of them."""

    @tf.function(autograph=False)
    def total(examples, mask):
        return tfdp.clipped_gradient_sum(
            loss, variables, examples, query, mask=mask, engine="bookkeeping"
        ).sample_state

    return total


def gradients_of_each(loss, variables, examples):
    """Returns the gradients of one record after the other, without a graph.

    Convolutions of groups have one: Keras compiles them anew each time that they are called.
    """

    def of_one(example):
        with tf.GradientTape() as tape:
            value = loss.loss(example, loss.forward(example, None), None)[0]
        return tape.gradient(value, [v.value for v in variables])

    if any(getattr(layer, "groups", 1) > 1 for layer in loss.model._flatten_layers()):
        of_one = tf.function(of_one, autograph=False)
    found = []
    for i in range(len(tf.nest.flatten(examples)[0])):
        example = tf.nest.map_structure(lambda leaf, at=i: leaf[at : at + 1], examples)
        found.append([np.asarray(tf.convert_to_tensor(g), np.float64) for g in of_one(example)])
    return found


def explicit_sum(loss, variables, examples, clip):
    """Returns the sum of clipped gradients as its definition says."""
    total = [np.zeros(v.shape) for v in variables]
    for gradients in gradients_of_each(loss, variables, examples):
        norm = np.sqrt(sum(np.sum(g**2) for g in gradients))
        factor = min(1.0, clip / norm) if norm else 1.0
        total = [t + factor * g for t, g in zip(total, gradients, strict=True)]
    return total


def assert_engines_agree(loss, variables, examples, query=None, tolerance=1e-5, **kwargs):
    """Checks book-keeping against the loop engine, or what the loop itself is checked against."""
    if query is None and not kwargs:
        query = tfdp.GaussianSumQuery(l2_norm_clip=0.3, stddev=1.0)
        expected = explicit_sum(loss, variables, examples, 0.3)
    else:
        query = query or tfdp.GaussianSumQuery(l2_norm_clip=0.3, stddev=1.0)
        expected = by_engine(loss, variables, examples, query, "loop", **kwargs)
    actual = by_engine(loss, variables, examples, query, "bookkeeping", **kwargs)
    assert_sums_agree(actual, expected, tolerance)


def assert_agrees_with_xla(loss, variables, examples):
    query = tfdp.GaussianSumQuery(l2_norm_clip=0.3, stddev=1.0)
    total = tf.function(traced_sum(loss, variables, query), jit_compile=True)
    actual = total(examples, tf.ones([BATCH], tf.bool))
    assert_sums_agree(actual, explicit_sum(loss, variables, examples, 0.3))


def assert_agrees_for_any_length(loss, variables, examples):
    """Checks book-keeping in a graph for records of any number and length of the first axis."""
    query = tfdp.GaussianSumQuery(l2_norm_clip=0.3, stddev=1.0)
    x, y = examples
    specs = tf.TensorSpec([None, None, *x.shape[2:]], x.dtype), tf.TensorSpec([None, *y.shape[1:]])
    total = tf.function(
        traced_sum(loss, variables, query),
        autograph=False,
        input_signature=[specs, tf.TensorSpec([None], tf.bool)],
    )
    actual = total(examples, tf.ones([BATCH], tf.bool))
    assert_sums_agree(actual, explicit_sum(loss, variables, examples, 0.3))


def assert_sums_agree(actual, expected, tolerance=1e-5):
    scale = max(np.abs(leaf).max() for leaf in expected)
    assert scale > 0
    for a, e in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, e, rtol=0, atol=tolerance * scale)


# What records are multiplied by; one of them by nothing.
FACTORS = [0.5, 0.0, 2.0, 1.5]


def norms_of(loss, variables, examples):
    """Returns [n, number of variables]: norms by the engine's own forms, and by the loop."""
    return norms_and_sums_of(loss, variables, examples)[:2]


def norms_and_sums_of(loss, variables, examples):
    """Returns (norms, norms by the loop, sums of records times FACTORS, sums by the loop)."""
    leaves = tf.nest.flatten(examples)

    @tf.function(autograph=False)
    def book_kept():
        gradients = bookkeeping_gradients(
            loss,
            variables,
            lambda flat: (tf.nest.pack_sequence_as(examples, flat), None),
            False,
            1.0,
        )
        records = gradients(*leaves)[2]
        factors = tf.constant(FACTORS, keras.config.floatx())
        squares = [record.squared_norms() for record in records]
        return tf.stack(squares, 1), [record.weighted_sum(factors) for record in records]

    loop = gradients_of_each(loss, variables, examples)
    squares, sums = book_kept()
    expected = [np.tensordot(FACTORS, np.stack(g), 1) for g in zip(*loop, strict=True)]
    norms = np.array([[np.linalg.norm(g) for g in gradients] for gradients in loop])
    return np.sqrt(squares), norms, [np.asarray(s, np.float64) for s in sums], expected


@contextlib.contextmanager
def floatx(dtype):
    before = keras.config.floatx()
    keras.config.set_floatx(dtype)
    keras.config.set_dtype_policy(dtype)
    try:
        yield
    finally:
        keras.config.set_floatx(before)
        keras.config.set_dtype_policy(before)


def token_model(*layers, vocabulary=7):
    keras.utils.set_random_seed(1)
    return keras.Sequential([keras.Input((5,), dtype="int32"), *layers, L.Flatten(), L.Dense(2)])


def shared_dense():
    x = keras.Input((4,))
    layer = L.Dense(4, activation="tanh")
    return keras.Model(x, L.Dense(2)(layer(layer(x)) + 2.0 * layer(x)))


def shared_over_shapes():
    """The same kernel on a vector and on a sequence; the same custom layer twice."""
    x = keras.Input((5, 4))
    dense, position = L.Dense(4), Position()
    h = position(dense(position(x)))
    return keras.Model(x, L.Dense(2)(dense(L.GlobalAveragePooling1D()(h))))


def frozen():
    x = keras.Input((4,))
    h = L.Dense(4, activation="tanh", trainable=False)(x)
    norm = L.BatchNormalization()
    norm.trainable = False
    h = norm(L.Dense(4)(h))
    bias_only = L.Dense(3)
    h = bias_only(h)
    bias_only.kernel.trainable = False
    return keras.Model(x, L.Dense(2)(h))


def built(model):
    model(np.zeros((1, 4), "float32"))
    return model


def assert_layer_is_exact(make_layer, shape):
    """Checks a layer in single precision, and in double precision the norm of every gradient and
    what the engine makes of it before it is clipped.
    """
    loss, variables, examples = problem(model_of(make_layer, shape), normal(*shape))
    assert_engines_agree(loss, variables, examples)
    with floatx("float64"):
        loss, variables, examples = problem(model_of(make_layer, shape), normal(*shape))
        actual, expected, sums, loop = norms_and_sums_of(loss, variables, examples)
        np.testing.assert_allclose(actual, expected, rtol=1e-10, atol=1e-12 * expected.max())
        assert_sums_agree(sums, loop, 1e-10)


def assert_layer_agrees(make_layer, shape):
    """Checks a layer in single precision alone, where Keras or the time it takes allows no more."""
    loss, variables, examples = problem(model_of(make_layer, shape), normal(*shape))
    assert_engines_agree(loss, variables, examples)


def assert_broken_record_contributes_nothing(make_layer, shape, place):
    """Checks that NaN and infinity at a place of a record make it no other than a masked one."""
    x = normal(*shape)
    loss, variables, (_, y) = problem(model_of(make_layer, shape), x)
    total = traced_sum(loss, variables, tfdp.GaussianSumQuery(0.3, 1.0))
    without = total((tf.constant(x), y), tf.range(BATCH) != 1)
    for bad in (np.nan, np.inf):
        x[(1, *place)] = bad
        with_bad = total((tf.constant(x), y), tf.ones([BATCH], tf.bool))
        for a, e in zip(with_bad, without, strict=True):
            np.testing.assert_array_equal(a, e, err_msg=str(bad))


def assert_tokens_agree(model, tokens):
    """Checks a model of tokens, and the norm of every gradient."""
    loss, variables, examples = problem(model, tokens)
    assert_engines_agree(loss, variables, examples)
    actual, expected = norms_of(loss, variables, examples)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6 * expected.max())
