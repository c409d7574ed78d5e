"""The book-keeping engine against the explicit loop, over architectures, queries and precisions."""

import itertools
import math
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tests.gradients.problems import (
    BATCH,
    TOKENS,
    Pair,
    Position,
    assert_engines_agree,
    assert_sums_agree,
    by_engine,
    frozen,
    model_of,
    normal,
    norms_of,
    problem,
    shared_dense,
    shared_over_shapes,
    token_model,
    traced_sum,
)
from tfdp.gradients import ModelLoss
from tfdp.gradients.engines.bookkeeping import bookkeeping_gradients

L = keras.layers


class BatchMean(L.Layer):
    """Mixes records: what must never be run on a batch."""

    def call(self, inputs):
        return inputs - tf.reduce_mean(inputs, axis=0, keepdims=True)


# One layer of every form of gradients: name -> (layer, shape of its input)
LAYERS = {
    "dense": (lambda: L.Dense(3, activation="tanh"), (4,)),
    "dense_sequence": (lambda: L.Dense(3, activation="relu"), (5, 4)),
    "dense_long_sequence": (lambda: L.Dense(2), (40, 3)),
    "layer_norm": (lambda: L.LayerNormalization(), (5, 4)),
    "attention": (lambda: Pair(L.MultiHeadAttention(2, 3)), (5, 4)),
    "conv2d": (lambda: L.Conv2D(3, 3, padding="same", activation="relu"), (6, 6, 2)),
    "custom": (Position, (5, 4)),
}


def nested_models():
    inner = keras.Sequential([keras.Input((4,)), L.Dense(4, "tanh"), L.Dense(4)])
    x = keras.Input((4,))
    return keras.Model(x, L.Dense(2)(inner(inner(x))))


def operations():
    x = keras.Input((4,))
    h = keras.ops.tanh(L.Dense(4)(x)) * keras.ops.mean(x, axis=1, keepdims=True)
    h = h + np.ones((1, 4), "float32")
    # In a batch these would mix records; one record at a time they are something else.
    h = h - keras.ops.mean(h, axis=0, keepdims=True) / 2.0
    return keras.Model(x, L.Dense(2)(L.Concatenate()([h, x])))


def mixing_layer():
    x = keras.Input((4,))
    h = L.Dense(4)(x)
    return keras.Model(x, L.Dense(2)(h + BatchMean()(h)))


def broadcast_over_records():
    """[n, 4] + [n, 4, 4], which lines the wrong axes up in a batch of four."""
    x = keras.Input((4, 4))
    h = L.Dense(4)(x)
    return keras.Model(x, L.Dense(2)(L.Flatten()(keras.ops.add(keras.ops.mean(h, axis=1), h))))


ARCHITECTURES = {
    "shared": (shared_dense, (4,)),
    "shared_over_shapes": (shared_over_shapes, (5, 4)),
    "frozen": (frozen, (4,)),
    "nested": (nested_models, (4,)),
    "operations": (operations, (4,)),
    "mixing_layer": (mixing_layer, (4,)),
    "broadcast": (broadcast_over_records, (4, 4)),
}


@pytest.mark.parametrize("name", sorted(ARCHITECTURES))
def test_architecture(name):
    make, shape = ARCHITECTURES[name]
    keras.utils.set_random_seed(1)
    loss, variables, examples = problem(make(), normal(*shape))
    assert_engines_agree(loss, variables, examples)
    actual, expected = norms_of(loss, variables, examples)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6 * expected.max())


QUERIES = {
    "flat": lambda v: tfdp.GaussianSumQuery(0.3, 1.0),
    "average": lambda v: tfdp.GaussianAverageQuery(0.3, noise_multiplier=1.0, denominator=4),
    "per_layer": lambda v: tfdp.query.per_layer(v, 0.3, 1.0, 4),
    "joint": lambda v: tfdp.JointClippingQuery([1.0 + i for i in range(len(v))], 0.3, 1.0),
}


@pytest.mark.parametrize(
    "name, microbatches", [*itertools.product(sorted(QUERIES), [None, 3]), ("flat", 1)]
)
def test_query(name, microbatches):
    loss, variables, examples = problem(shared_over_shapes(), normal(5, 4))
    grouping = {}
    if microbatches:
        ids = np.random.default_rng(3).integers(0, microbatches, BATCH)
        grouping = {"num_microbatches": microbatches, "microbatch_ids": ids}
    problem_and_query = (loss, variables, examples, QUERIES[name](variables))
    kwargs = {"mask": np.array([True, True, False, True]), **grouping}
    expected = by_engine(*problem_and_query, "loop", **kwargs)
    for chunks in ({}, {"physical_batch_size": 3}):
        actual = by_engine(*problem_and_query, "bookkeeping", **kwargs, **chunks)
        assert_sums_agree(actual, expected)


@pytest.mark.parametrize("model", ["dense", "tokens"])
def test_microbatches_of_every_form(model):
    if model == "tokens":
        loss, variables, examples = problem(token_model(L.Embedding(7, 4), L.Dense(3)), TOKENS)
    else:
        make_layer, shape = LAYERS["dense"]
        loss, variables, examples = problem(model_of(make_layer, shape), normal(*shape))
    assert_engines_agree(loss, variables, examples, num_microbatches=2, microbatch_ids=[1, 0, 1, 1])


@pytest.mark.parametrize(
    "name", ["dense", "dense_sequence", "layer_norm", "attention", "conv2d", "custom"]
)
def test_record_that_is_not_finite_contributes_nothing(name):
    make_layer, shape = LAYERS[name]
    x = normal(*shape)
    loss, variables, (_, y) = problem(model_of(make_layer, shape), x)
    total = traced_sum(loss, variables, tfdp.GaussianSumQuery(0.3, 1.0))
    without = total((tf.constant(x), y), tf.constant([True, False, True, True]))
    for bad in (np.nan, np.inf, -np.inf):
        x[1].flat[0] = bad
        x[1].flat[1] = 0.5 * bad
        with_bad = total((tf.constant(x), y), tf.ones([BATCH], tf.bool))
        for a, e in zip(with_bad, without, strict=True):
            np.testing.assert_array_equal(a, e, err_msg=str(bad))


@pytest.mark.parametrize("name", ["dense", "dense_sequence", "dense_long_sequence", "conv2d"])
@pytest.mark.parametrize("sizes", [(1e30, 1e30), (1e18, 1e-24), (1e-24, 1e18), (1e-30, 1e-30)])
def test_extreme_sizes_stay_within_the_bound(name, sizes):
    """A tiny input with a huge gradient must not pass for a small product because a square
    vanished. Gradients of a record are 0 or infinite, or of 1e-6 or more.
    """
    make_layer, shape = LAYERS[name]
    model = keras.Sequential([keras.Input(shape), make_layer(), L.Flatten()])
    model.layers[0].activation = keras.activations.linear
    loss = ModelLoss(model, lambda y, outputs: tf.reduce_sum(outputs * y))
    x = normal(*shape) * np.float32(sizes[0])
    y = np.full((BATCH, model.output_shape[-1]), sizes[1], "float32")
    query = tfdp.GaussianSumQuery(1e-9, 1.0)
    total = traced_sum(loss, model.trainable_variables[:1], query)
    for i in range(BATCH):
        (alone,) = total((tf.constant(x), tf.constant(y)), tf.range(BATCH) == i)
        norm = np.linalg.norm(alone)
        assert norm <= 1e-9 * (1 + 1e-5)
        assert (norm > 0) == (1e-30 < math.prod(sizes) < 1e30)


def test_padding_contributes_exactly_nothing():
    loss, variables, examples = problem(shared_dense(), normal(4))
    query = tfdp.GaussianSumQuery(0.3, 1.0)
    mask = np.array([True, False, True, False])
    kept = tf.nest.map_structure(lambda leaf: tf.boolean_mask(leaf, mask), examples)
    padded = by_engine(loss, variables, examples, query, "bookkeeping", mask=mask)
    alone = by_engine(loss, variables, kept, query, "bookkeeping")
    for a, e in zip(padded, alone, strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-6, atol=1e-9)


def test_empty_sample():
    loss, variables, examples = problem(shared_dense(), normal(4))
    empty = tf.nest.map_structure(lambda leaf: leaf[:0], examples)
    total = by_engine(loss, variables, empty, tfdp.GaussianSumQuery(0.3, 1.0), "bookkeeping")
    assert all((leaf == 0).all() for leaf in total)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize("name", ["dense_sequence", "layer_norm", "attention", "custom", "conv2d"])
def test_mixed_precision(name, policy):
    make_layer, shape = LAYERS[name]
    keras.config.set_dtype_policy(policy)
    try:
        loss, variables, examples = problem(model_of(make_layer, shape), normal(*shape))
    finally:
        keras.config.set_dtype_policy("float32")
    # Half precision has 8 (bfloat16) or 11 bits, and the two engines round at different places.
    tolerance = 0.08 if policy == "mixed_bfloat16" else 0.01
    for scale in (1.0, 64.0) if policy == "mixed_float16" else (1.0,):
        assert_engines_agree(loss, variables, examples, tolerance=tolerance, loss_scale=scale)


def test_float16_overflow_is_a_record_that_is_not_finite():
    keras.config.set_dtype_policy("mixed_float16")
    try:
        loss, variables, examples = problem(model_of(*LAYERS["dense"]), normal(4))
    finally:
        keras.config.set_dtype_policy("float32")
    query = tfdp.GaussianSumQuery(0.3, 1.0)
    y = examples[1].numpy()
    y[1, 0] = 1e7
    actual = by_engine(loss, variables, (examples[0], tf.constant(y)), query, "bookkeeping")
    expected = by_engine(
        loss, variables, examples, query, "bookkeeping", mask=np.array([True, False, True, True])
    )
    for a, e in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(a, e)


def test_plain_loss_function_is_refused():
    variable = tf.Variable([1.0])
    with pytest.raises(TypeError, match="LayeredLoss"):
        tfdp.clipped_gradient_sum(
            lambda x: tf.reduce_sum(variable * x),
            [variable],
            tf.ones([2, 1]),
            tfdp.GaussianSumQuery(1.0, 1.0),
            engine="bookkeeping",
        )


def test_unused_variable_is_refused():
    model = shared_dense()
    unused = keras.Variable(np.zeros(3, "float32"), name="unused")
    loss, variables, examples = problem(model, normal(4))
    with pytest.raises(ValueError, match="unused"):
        by_engine(
            loss, [*variables, unused], examples, tfdp.GaussianSumQuery(1.0, 1.0), "bookkeeping"
        )


@pytest.mark.parametrize("loss_name", ["BinaryCrossentropy", "CategoricalCrossentropy"])
@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
@pytest.mark.parametrize("kind", ["dense", "composite"])
def test_loss_finds_the_logits_that_keras_hangs_on_outputs(loss_name, activation, kind):
    class Head(L.Layer):
        def build(self, shape):
            self.kernel = self.add_weight(shape=(shape[-1], 3))

        def call(self, x):
            return keras.activations.get(activation)(x @ self.kernel)

    keras.utils.set_random_seed(1)
    last = L.Dense(3, activation=activation) if kind == "dense" else Head()
    model = keras.Sequential([keras.Input((4,)), last])
    y = tf.constant(np.eye(3, dtype="float32")[[0, 1, 2, 1]])
    loss = ModelLoss(model, getattr(keras.losses, loss_name)())
    # Where probabilities saturate, losses from logits and from probabilities differ.
    examples = (tf.constant(30 * normal(4)), y)
    assert_engines_agree(loss, model.trainable_variables, examples)


class Ends(L.Layer):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def call(self, inputs):
        return self.function(inputs)


# Where a model takes an operation of TensorFlow, for which nothing is attached.
ENDS = {
    "code": lambda function: [L.Dense(3), Ends(function)],
    "lambda": lambda function: [L.Dense(3), L.Lambda(function)],
    "activation": lambda function: [L.Dense(3, activation=function)],
    "layer": lambda function: [L.Dense(3), L.Activation(function)],
    "record by record": lambda function: [
        L.Dense(3),
        Ends(lambda x: function(x + 0 * tf.reduce_mean(x))),
    ],
    "something after": lambda function: [L.Dense(3), Ends(lambda x: function(x) + 0.0)],
}


@pytest.mark.parametrize("kind", ["BinaryCrossentropy", "CategoricalCrossentropy"])
@pytest.mark.parametrize("function", [tf.nn.softmax, tf.nn.sigmoid])
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("way", ["for the batch", "for records", "of two outputs"])
def test_loss_finds_the_logits_in_the_graph_as_in_keras(kind, function, end, way):
    keras.utils.set_random_seed(1)
    outputs = inputs = keras.Input((4,))
    for layer in ENDS[end](function):
        outputs = layer(outputs)
    of_keras = getattr(keras.losses, kind)()
    chosen = {
        "for the batch": of_keras,
        "for records": lambda y, found: of_keras(y, found),
        "of two outputs": lambda y, found: of_keras(y, found["a"]) + of_keras(y, found["b"]),
    }[way]
    if way == "of two outputs":
        outputs = {"b": L.Dense(3, activation="softmax")(inputs), "a": outputs}
    model = keras.Model(inputs, outputs)
    loss = ModelLoss(model, chosen)
    # Where probabilities saturate, losses from logits and from probabilities differ.
    y = tf.constant(np.eye(3, dtype="float32")[[0, 1, 2, 1]])
    query = tfdp.GaussianSumQuery(l2_norm_clip=1e4, stddev=1.0)
    found, expected = (
        by_engine(loss, model.trainable_variables, (30 * normal(4), y), query, engine)
        for engine in ("bookkeeping", "loop")
    )
    assert_sums_agree(found, expected)


def test_dropout_differs_between_records():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((50,)), L.Dropout(0.5), L.Dense(1, use_bias=False)])
    loss = ModelLoss(model, lambda y, outputs: tf.reduce_sum(outputs))
    examples = (tf.ones([2, 50]), tf.zeros([2, 1]))
    seeds = tf.constant([[1, 2], [3, 4]], tf.int64)

    @tf.function(autograph=False)
    def step():
        gradients = bookkeeping_gradients(
            loss,
            model.trainable_variables,
            lambda flat: (tf.nest.pack_sequence_as(examples, flat), seeds),
            False,
            1.0,
        )
        return gradients(*tf.nest.flatten(examples))[2][0].explicit()

    first = step().numpy()
    assert set(np.unique(first)) == {0.0, 2.0}
    assert (first[0] != first[1]).any()


def test_layer_without_a_rule_is_compiled_once():
    """XLA takes what it believes to be a shape for a constant, and compiles again for another."""
    model = token_model(L.Embedding(7, 3), Position())
    loss, variables, (_, y) = problem(model, np.zeros([BATCH, 5], "int32"))
    query = tfdp.GaussianSumQuery(0.3, 1.0)

    @tf.function(jit_compile=True, autograph=False)
    def step(examples):
        total = tfdp.clipped_gradient_sum(loss, variables, examples, query, engine="bookkeeping")
        return total.sample_state

    seconds, rng = [], np.random.default_rng(1)
    for _ in range(4):
        x = tf.constant(rng.integers(0, 7, [BATCH, 5]), tf.int32)
        begin = time.perf_counter()
        step((x, y))
        seconds.append(time.perf_counter() - begin)
    assert min(seconds[1:]) < 0.05 * seconds[0]


def test_works_under_xla():
    loss, variables, examples = problem(shared_over_shapes(), normal(5, 4))
    query = tfdp.GaussianSumQuery(0.3, 1.0)

    @tf.function(jit_compile=True, autograph=False)
    def step(examples):
        total = tfdp.clipped_gradient_sum(loss, variables, examples, query, engine="bookkeeping")
        return total.sample_state

    expected = by_engine(loss, variables, examples, query, "loop")
    for a, e in zip(step(examples), expected, strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("lora", [False, True])
def test_layer_in_a_frozen_block_that_is_trainable_again(lora):
    class Block(keras.layers.Layer):
        def __init__(self):
            super().__init__(name="block")
            self.inner = keras.layers.Dense(4)

        def build(self, shape):
            self.inner.build(shape)

        def call(self, inputs):
            return self.inner(inputs)

    block = Block()
    model = keras.Sequential([keras.Input((3,)), block, keras.layers.Dense(2)])
    block.trainable = False
    block.inner.trainable = True
    if lora:
        block.inner.enable_lora(2)
    assert not block.trainable_variables and len(model.trainable_variables) > 2
    assert "block: block, on the batch" in tfdp.gradients.explain(model)
    loss = tfdp.gradients.ModelLoss(model, lambda y, p: tf.reduce_sum(tf.square(p - y)))
    examples = tf.random.stateless_normal([5, 3], [1, 2]), tf.zeros([5, 2])
    query = tfdp.GaussianSumQuery(0.1, 0.0)
    sums = [
        tfdp.clipped_gradient_sum(loss, model.trainable_variables, examples, query, engine=engine)
        for engine in ("bookkeeping", "loop")
    ]
    for fast, slow in zip(sums[0].sample_state, sums[1].sample_state, strict=True):
        np.testing.assert_allclose(fast, slow, rtol=1e-5, atol=1e-7)
