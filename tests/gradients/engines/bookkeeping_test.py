"""The book-keeping engine against the explicit loop, over layers, architectures and queries."""

import contextlib
import time

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import tfdp
from tfdp.gradients import ModelLoss, UnsupportedModelError
from tfdp.gradients.engines.bookkeeping import bookkeeping_gradients
from tfdp.gradients.recording import plan

L = keras.layers
BATCH = 4


class Position(L.Layer):
    """Adds a table of its own: a layer without a rule."""

    def build(self, shape):
        self.table = self.add_weight(shape=shape[1:], initializer="uniform")

    def call(self, inputs):
        return inputs + self.table


class Block(L.Layer):
    """A composite layer with a dropout-free residual, as users write them."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.attention = L.MultiHeadAttention(2, 3)
        self.norm = L.LayerNormalization()
        self.supports_masking = True

    def call(self, inputs):
        return self.norm(inputs + self.attention(inputs, inputs))


class BatchMean(L.Layer):
    """Mixes records: what must never be run on a batch."""

    def call(self, inputs):
        return inputs - tf.reduce_mean(inputs, axis=0, keepdims=True)


def lora(layer):
    """Returns the layer with a low-rank adaptation, whose second factor is not zero."""

    def enable(inputs):
        layer.build(inputs)
        layer.enable_lora(2, lora_alpha=3)
        for v in layer.trainable_variables:
            v.assign(np.random.default_rng(5).normal(size=v.shape))

    layer.prepare = enable
    return layer


# name -> (layer, shape of its input)
LAYERS = {
    "dense": (lambda: L.Dense(3, activation="tanh"), (4,)),
    "dense_no_bias": (lambda: L.Dense(3, use_bias=False), (4,)),
    "dense_sequence": (lambda: L.Dense(3, activation="relu"), (5, 4)),
    "dense_long_sequence": (lambda: L.Dense(2), (40, 3)),
    "dense_4d": (lambda: L.Dense(3), (2, 3, 4)),
    "dense_with_layer_as_activation": (lambda: L.Dense(3, activation=L.PReLU()), (4,)),
    "dense_lora": (lambda: lora(L.Dense(3)), (4,)),
    "dense_lora_sequence": (lambda: lora(L.Dense(3)), (5, 4)),
    "einsum_heads": (lambda: L.EinsumDense("abc,cde->abde", (5, 2, 3), bias_axes="de"), (5, 4)),
    "einsum_from_heads": (lambda: L.EinsumDense("abcd,cde->abe", (5, 3), bias_axes="e"), (5, 2, 4)),
    "einsum_ellipsis": (lambda: L.EinsumDense("...x,xy->...y", 3, bias_axes="y"), (5, 4)),
    "einsum_shared_axis": (lambda: L.EinsumDense("abc,bcd->abd", (5, 3), bias_axes="b"), (5, 4)),
    "einsum_bias_of_position": (
        lambda: L.EinsumDense("abc,cd->abd", (5, 3), bias_axes="b"),
        (5, 4),
    ),
    "einsum_transposed": (lambda: L.EinsumDense("abc,dc->adb", (3, 5)), (5, 4)),
    "einsum_lora": (
        lambda: lora(L.EinsumDense("abc,cde->abde", (5, 2, 3), bias_axes="de")),
        (5, 4),
    ),
    "einsum_sum_of_input": (lambda: L.EinsumDense("abc,cd->ad", (3,)), (5, 4)),
    "layer_norm": (lambda: L.LayerNormalization(), (5, 4)),
    "layer_norm_two_axes": (lambda: L.LayerNormalization(axis=[1, 2]), (5, 4)),
    "layer_norm_no_scale": (lambda: L.LayerNormalization(scale=False), (5, 4)),
    "layer_norm_no_center": (lambda: L.LayerNormalization(center=False), (4,)),
    "rms_norm": (lambda: L.RMSNormalization(), (5, 4)),
    "group_norm": (lambda: L.GroupNormalization(2), (3, 3, 4)),
    "group_norm_channels_first": (lambda: L.GroupNormalization(2, axis=1), (4, 3, 3)),
    "unit_norm": (lambda: L.UnitNormalization(), (4,)),
    "prelu": (lambda: L.PReLU(), (4,)),
    "prelu_shared": (lambda: L.PReLU(shared_axes=[1, 2]), (3, 3, 2)),
    "attention": (lambda: Pair(L.MultiHeadAttention(2, 3)), (5, 4)),
    "grouped_attention": (lambda: Pair(L.GroupQueryAttention(3, 4, 2)), (5, 4)),
    "lstm_without_a_rule": (lambda: L.LSTM(3, implementation=1), (4, 3)),
    "time_distributed": (lambda: L.TimeDistributed(L.Dense(2)), (4, 3)),
    "custom": (Position, (5, 4)),
    "composite": (Block, (5, 4)),
    "conv1d": (lambda: L.Conv1D(3, 3, strides=2, activation="relu"), (8, 2)),
    "conv1d_causal": (lambda: L.Conv1D(3, 2, dilation_rate=2, padding="causal"), (8, 2)),
    "conv2d": (lambda: L.Conv2D(3, 3, padding="same", activation="relu"), (6, 6, 2)),
    "conv2d_strides": (lambda: L.Conv2D(3, (3, 2), strides=(2, 1), use_bias=False), (7, 6, 2)),
    "conv2d_groups": (lambda: L.Conv2D(4, 3, groups=2), (5, 5, 2)),
    "conv2d_lora": (lambda: lora(L.Conv2D(3, 2)), (5, 5, 2)),
    "conv3d": (lambda: L.Conv3D(2, 2), (4, 4, 4, 1)),
    "conv1d_transpose": (lambda: L.Conv1DTranspose(2, 3, strides=2), (4, 2)),
    "conv2d_transpose": (
        lambda: L.Conv2DTranspose(2, 3, strides=2, padding="same", output_padding=1),
        (4, 4, 2),
    ),
    "depthwise": (lambda: L.DepthwiseConv2D(3, depth_multiplier=2, activation="tanh"), (5, 5, 2)),
    "separable1d": (lambda: L.SeparableConv1D(3, 3), (6, 2)),
    "separable2d": (lambda: L.SeparableConv2D(3, 3, depth_multiplier=2), (5, 5, 2)),
}


class Pair(L.Layer):
    """Marks an attention layer that attends to its own input."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer


def apply(layer, x):
    if isinstance(layer, Pair):
        return layer.layer(x, x)
    if hasattr(layer, "prepare"):
        layer.prepare(x.shape)
    return layer(x)


def head(x):
    return L.Dense(2, name="head")(L.Flatten()(x))


def model_of(make_layer, shape):
    """A layer between a dense layer and a dense layer, so that gradients flow through it."""
    keras.utils.set_random_seed(1)
    inputs = keras.Input(shape)
    return keras.Model(inputs, head(apply(make_layer(), L.Dense(shape[-1], name="first")(inputs))))


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
    """Returns (loss, variables, examples)."""
    y = targets(model.output_shape[-1])
    return (
        ModelLoss(model, squared_error),
        model.trainable_variables,
        (tf.constant(x), tf.constant(y)),
    )


def by_engine(loss, variables, examples, query, engine, **kwargs):
    total = tfdp.clipped_gradient_sum(loss, variables, examples, query, engine=engine, **kwargs)
    return [np.asarray(leaf, np.float64) for leaf in tf.nest.flatten(total.sample_state)]


def assert_engines_agree(loss, variables, examples, query=None, tolerance=1e-5, **kwargs):
    query = query or tfdp.GaussianSumQuery(l2_norm_clip=0.3, stddev=1.0)
    expected = by_engine(loss, variables, examples, query, "loop", **kwargs)
    actual = by_engine(loss, variables, examples, query, "bookkeeping", **kwargs)
    scale = max(np.abs(leaf).max() for leaf in expected)
    assert scale > 0
    for a, e in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, e, rtol=0, atol=tolerance * scale)


def norms_of(loss, variables, examples):
    """Returns [n, number of variables]: norms by the engine's own forms, and by the loop."""
    leaves = tf.nest.flatten(examples)

    @tf.function(autograph=False)
    def book_kept():
        gradients = bookkeeping_gradients(
            loss, variables, lambda flat: tf.nest.pack_sequence_as(examples, flat), False, 1.0
        )
        return [record.squared_norms() for record in gradients(*leaves)[2]]

    loop = []
    for i in range(BATCH):
        with tf.GradientTape() as tape:
            value = loss(tuple(leaf[i : i + 1] for leaf in examples))[0]
        gradients = tape.gradient(value, [v.value for v in variables])
        loop.append(
            [np.linalg.norm(np.asarray(tf.convert_to_tensor(g), np.float64)) for g in gradients]
        )
    return np.sqrt(np.stack(book_kept(), 1)), np.array(loop)


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


@pytest.mark.parametrize("name", sorted(LAYERS))
def test_layer(name):
    make_layer, shape = LAYERS[name]
    loss, variables, examples = problem(model_of(make_layer, shape), normal(*shape))
    assert_engines_agree(loss, variables, examples)


# They take long to trace, and run record by record.
SLOW = {"composite", "lstm_without_a_rule", "time_distributed"}
SINGLE = {"conv2d_lora", "dense_lora", "dense_lora_sequence", "einsum_lora"}  # Keras' LoRA weights.


@pytest.mark.parametrize("name", sorted(set(LAYERS) - SLOW - SINGLE))
def test_layer_in_double_precision(name):
    make_layer, shape = LAYERS[name]
    with floatx("float64"):
        loss, variables, examples = problem(model_of(make_layer, shape), normal(*shape))
        actual, expected = norms_of(loss, variables, examples)
        np.testing.assert_allclose(actual, expected, rtol=1e-10, atol=1e-12 * expected.max())
        assert_engines_agree(loss, variables, examples, tolerance=1e-10)


TOKENS = np.random.default_rng(0).integers(1, 7, (BATCH, 5))
TOKENS[:, 3:] = TOKENS[:, :1]  # Some come twice in a record.


def token_model(*layers, vocabulary=7):
    keras.utils.set_random_seed(1)
    return keras.Sequential([keras.Input((5,), dtype="int32"), *layers, L.Flatten(), L.Dense(2)])


TOKEN_MODELS = {
    "embedding": lambda: token_model(L.Embedding(7, 4)),
    "embedding_lora": lambda: token_model(lora_embedding()),
    "masked_lstm_without_a_rule": lambda: token_model(
        L.Embedding(7, 4, mask_zero=True), L.LSTM(3, implementation=1)
    ),
    "masked_attention": lambda: masked_attention(),
    "masked_composite": lambda: token_model(
        L.Embedding(7, 4, mask_zero=True), Block(), L.GlobalAveragePooling1D()
    ),
    "position": lambda: token_model(L.Embedding(7, 4), Position()),
    "tied": lambda: tied(True),
    "untied": lambda: tied(False),
}


def lora_embedding():
    layer = L.Embedding(7, 4)
    layer.build()
    layer.enable_lora(2)
    for v in layer.trainable_variables:
        v.assign(np.random.default_rng(5).normal(size=v.shape))
    return layer


def masked_attention():
    keras.utils.set_random_seed(1)
    x = keras.Input((5,), dtype="int32")
    h = L.Embedding(7, 4, mask_zero=True)(x)
    h = L.MultiHeadAttention(2, 3)(h, h)
    return keras.Model(x, L.Dense(2)(L.GlobalAveragePooling1D()(h)))


def tied(tie_weights):
    keras.utils.set_random_seed(1)
    x = keras.Input((5,), dtype="int32")
    embedding = L.ReversibleEmbedding(7, 4, tie_weights=tie_weights)
    return keras.Model(x, L.GlobalAveragePooling1D()(embedding(embedding(x), reverse=True)))


@pytest.mark.parametrize("name", sorted(TOKEN_MODELS))
def test_tokens(name):
    if name in ("tied", "untied") and not hasattr(L, "ReversibleEmbedding"):
        pytest.skip("Keras before 3.13 has no ReversibleEmbedding.")
    tokens = TOKENS.copy()
    if "masked" in name:
        tokens[:, 4] = 0
    loss, variables, examples = problem(TOKEN_MODELS[name](), tokens)
    assert_engines_agree(loss, variables, examples)
    actual, expected = norms_of(loss, variables, examples)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6 * expected.max())


def test_embedding_of_long_sequences_is_sorted():
    tokens = np.random.default_rng(0).integers(0, 50, (BATCH, 300))
    model = keras.Sequential(
        [
            keras.Input((300,), dtype="int32"),
            L.Embedding(50, 3),
            L.GlobalAveragePooling1D(),
            L.Dense(2),
        ]
    )
    loss, variables, examples = problem(model, tokens)
    actual, expected = norms_of(loss, variables, examples)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6 * expected.max())
    assert_engines_agree(loss, variables, examples)


def test_embedding_makes_no_tensor_of_batch_and_vocabulary():
    model = keras.Sequential(
        [keras.Input((5,), dtype="int32"), L.Embedding(250_000, 2), L.Flatten(), L.Dense(2)]
    )
    loss, variables, examples = problem(model, TOKENS)
    query = tfdp.GaussianSumQuery(1.0, 1.0)

    @tf.function(autograph=False)
    def step():
        return tfdp.clipped_gradient_sum(loss, variables, examples, query, engine="bookkeeping")

    def largest(graph):
        shapes = [t.shape for op in graph.get_operations() for t in op.outputs]
        return max(s.num_elements() for s in shapes if s.is_fully_defined())

    assert largest(step.get_concrete_function().graph) == 250_000 * 2


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


@pytest.mark.parametrize("microbatches", [None, 1, 3])
@pytest.mark.parametrize("name", sorted(QUERIES))
def test_query(name, microbatches):
    loss, variables, examples = problem(shared_over_shapes(), normal(5, 4))
    grouping = {}
    if microbatches:
        ids = np.random.default_rng(3).integers(0, microbatches, BATCH)
        grouping = {"num_microbatches": microbatches, "microbatch_ids": ids}
    for chunks in ({}, {"physical_batch_size": 3}):
        mask = np.array([True, True, False, True])
        query = QUERIES[name](variables)
        assert_engines_agree(loss, variables, examples, query, mask=mask, **grouping, **chunks)


@pytest.mark.parametrize("model", ["dense", "tokens"])
def test_microbatches_of_every_form(model):
    if model == "tokens":
        loss, variables, examples = problem(token_model(L.Embedding(7, 4), L.Dense(3)), TOKENS)
    else:
        make_layer, shape = LAYERS["dense"]
        loss, variables, examples = problem(model_of(make_layer, shape), normal(*shape))
    assert_engines_agree(loss, variables, examples, num_microbatches=2, microbatch_ids=[1, 0, 1, 1])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    "name", ["dense", "dense_sequence", "layer_norm", "attention", "conv2d", "custom"]
)
def test_record_that_is_not_finite_contributes_nothing(name, bad):
    make_layer, shape = LAYERS[name]
    loss, variables, examples = problem(model_of(make_layer, shape), normal(*shape))
    x = examples[0].numpy()
    query = tfdp.GaussianSumQuery(0.3, 1.0)
    without = by_engine(
        loss, variables, examples, query, "bookkeeping", mask=np.array([True, False, True, True])
    )
    x[1].flat[0] = bad
    x[1].flat[1] = 0.5 * bad
    with_bad = by_engine(loss, variables, (tf.constant(x), examples[1]), query, "bookkeeping")
    for a, e in zip(with_bad, without, strict=True):
        np.testing.assert_array_equal(a, e)


@pytest.mark.parametrize("name", ["dense", "dense_sequence", "dense_long_sequence", "conv2d"])
@pytest.mark.parametrize("sizes", [(1e30, 1e30), (1e18, 1e-24), (1e-24, 1e18), (1e-30, 1e-30)])
def test_extreme_sizes_stay_within_the_bound(name, sizes):
    """A tiny input with a huge gradient must not pass for a small product because a square
    vanished.
    """
    make_layer, shape = LAYERS[name]
    model = keras.Sequential([keras.Input(shape), make_layer(), L.Flatten()])
    model.layers[0].activation = keras.activations.linear
    loss = ModelLoss(model, lambda y, outputs: tf.reduce_sum(outputs * y))
    x = normal(*shape) * np.float32(sizes[0])
    y = np.full((BATCH, model.output_shape[-1]), sizes[1], "float32")
    query = tfdp.GaussianSumQuery(1e-3, 1.0)
    for i in range(BATCH):
        total = by_engine(
            loss,
            model.trainable_variables[:1],
            (tf.constant(x), tf.constant(y)),
            query,
            "bookkeeping",
            mask=np.arange(BATCH) == i,
        )
        assert np.linalg.norm(total[0]) <= 1e-3 * (1 + 1e-5)


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
    assert_engines_agree(loss, variables, examples, tolerance=tolerance)
    assert_engines_agree(loss, variables, examples, tolerance=tolerance, loss_scale=64.0)


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


# Random architectures.

VECTOR_LAYERS = {
    "dense": lambda d: L.Dense(
        4, activation=d(["linear", "relu", "tanh"]), use_bias=d([True, False])
    ),
    "layer_norm": lambda d: L.LayerNormalization(center=d([True, False]), scale=d([True, False])),
    "prelu": lambda d: L.PReLU(),
    "rms": lambda d: L.RMSNormalization(),
}
SEQUENCE_LAYERS = VECTOR_LAYERS | {
    "attention": lambda d: Pair(L.MultiHeadAttention(d([1, 2]), 2, use_bias=d([True, False]))),
    "conv": lambda d: L.Conv1D(
        4, d([1, 2, 3]), padding=d(["same", "causal"]), dilation_rate=d([1, 2]), groups=d([1, 2])
    ),
    "depthwise": lambda d: L.DepthwiseConv1D(d([2, 3]), padding="same"),
    "separable": lambda d: L.SeparableConv1D(
        4, d([1, 3]), padding="same", use_bias=d([True, False])
    ),
    "custom": lambda d: Position(),
}
IMAGE_LAYERS = {
    "conv": lambda d: L.Conv2D(
        4,
        (d([1, 2, 3]), d([1, 3])),
        strides=d([1, 2]),
        padding="same",
        groups=d([1, 2]),
        use_bias=d([True, False]),
        activation=d(["linear", "relu"]),
    ),
    "dilated": lambda d: L.Conv2D(4, 3, padding="same", dilation_rate=(d([1, 2]), 2)),
    "transposed": lambda d: L.Conv2DTranspose(4, d([1, 2, 3]), strides=d([1, 2]), padding="same"),
    "depthwise": lambda d: L.DepthwiseConv2D(3, strides=d([1, 2]), padding="same"),
    "separable": lambda d: L.SeparableConv2D(4, 2, padding="same"),
    "group_norm": lambda d: L.GroupNormalization(d([1, 2, 4])),
    "dense": lambda d: L.Dense(4),
}
KINDS = {
    "vector": ((4,), VECTOR_LAYERS),
    "sequence": ((5, 4), SEQUENCE_LAYERS),
    "image": ((4, 5, 4), IMAGE_LAYERS),
}


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_random_architecture(data):
    def draw(choices):
        return data.draw(st.sampled_from(choices))

    shape, table = KINDS[draw(sorted(KINDS))]
    with floatx("float64"):
        keras.utils.set_random_seed(data.draw(st.integers(0, 1000)))
        x = h = keras.Input(shape)
        earlier = []
        for _ in range(data.draw(st.integers(1, 3))):
            reusable = [layer for layer, s in earlier if s == tuple(h.shape)]
            if reusable and draw([True, False]):
                layer = draw(reusable)
            else:
                layer = table[draw(sorted(table))](draw)
                earlier.append((layer, tuple(h.shape)))
            new = apply(layer, h)
            h = new + h if tuple(new.shape) == tuple(h.shape) and draw([True, False]) else new
        model = keras.Model(x, head(h))
        for layer, _ in earlier[1:]:
            layer.trainable = draw([True, True, False])
        loss, variables, examples = problem(model, normal(*shape))
        actual, expected = norms_of(loss, variables, examples)
        np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-12 * expected.max())
        mask = np.array(data.draw(st.lists(st.booleans(), min_size=BATCH, max_size=BATCH)))
        mask[0] = True
        assert_engines_agree(loss, variables, examples, mask=mask, tolerance=1e-10)


# What the engine must refuse, and what "auto" does then.


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.first, self.second = L.Dense(4, activation="tanh"), L.Dense(2)

    def call(self, x):
        return self.second(self.first(x) + 1.0)

    output_shape = (None, 2)


class Registered(Subclassed):
    """The same, with a promise."""


class HiddenUse(Subclassed):
    """Uses a weight of a layer without calling the layer."""

    def call(self, x):
        return super().call(x) * tf.reduce_sum(self.first.kernel.value)


class EmbedsPositions(Subclassed):
    """Calls a layer on what is not a batch: positions, the same for every record."""

    def __init__(self):
        super().__init__()
        self.positions = L.Embedding(4, 4)

    def call(self, x):
        return super().call(x + self.positions(tf.range(4))[:1])


class Borrower(L.Layer):
    """A layer without a rule that uses a weight which is not its own."""

    def build(self, shape):
        self.own = self.add_weight(shape=(), initializer="ones")

    def call(self, x):
        return x * self.own * tf.reduce_sum(vars(self)["lender"].kernel.value)


class Borrows(Subclassed):
    def __init__(self):
        super().__init__()
        self.borrower = Borrower()
        vars(self.borrower)["lender"] = self.first  # As an attribute Keras would make it a part.

    def call(self, x):
        return self.borrower(super().call(x))


class Keeps(Subclassed):
    """Leaves the activations of all records lying about, and their mean."""

    def call(self, x):
        outputs = super().call(x)
        vars(self)["kept"] = {"all": outputs, "mean": tf.reduce_mean(outputs)}
        return outputs


tfdp.gradients.register_rule(Borrows, tfdp.gradients.RecordWise())
tfdp.gradients.register_rule(Keeps, tfdp.gradients.RecordWise())
tfdp.gradients.register_rule(EmbedsPositions, tfdp.gradients.RecordWise())
tfdp.gradients.register_rule(Registered, tfdp.gradients.RecordWise())
tfdp.gradients.register_rule(HiddenUse, tfdp.gradients.RecordWise())


def activity_regularizer():
    return keras.Sequential([keras.Input((4,)), L.Dense(2, activity_regularizer="l2")])


def loss_with_weights():
    model = keras.Sequential([keras.Input((4,)), L.Dense(2)])

    def penalized(y, outputs):
        return squared_error(y, outputs) * tf.reduce_sum(tf.square(model.layers[0].kernel.value))

    return ModelLoss(model, penalized)


def loss_with_all_records(kept):
    model = built(Keeps())
    return ModelLoss(
        model, lambda y, outputs: squared_error(y, outputs) * tf.reduce_mean(model.kept[kept])
    )


def minus_mean_of_everything():
    x = keras.Input((4,))
    h = L.Dense(3)(x)
    return keras.Model(x, L.Dense(2)(h - keras.ops.mean(h)))


UNSUPPORTED = {
    "hidden_use_by_layer": (
        lambda: ModelLoss(built(Borrows()), squared_error),
        "outside of the layers",
    ),
    "loss_with_all_records": (lambda: loss_with_all_records("all"), "comes from all records"),
    "loss_with_their_mean": (lambda: loss_with_all_records("mean"), "comes from all records"),
    "mean_of_everything": (
        lambda: ModelLoss(minus_mean_of_everything(), squared_error),
        "without an axis of records",
    ),
    "subclassed": (lambda: ModelLoss(built(Subclassed()), squared_error), "register_rule"),
    "hidden_use": (lambda: ModelLoss(built(HiddenUse()), squared_error), "outside of the layers"),
    "activity_regularizer": (lambda: ModelLoss(activity_regularizer(), squared_error), "losses"),
    "embedded_positions": (lambda: ModelLoss(built(EmbedsPositions()), squared_error), "records"),
    "loss_with_weights": (loss_with_weights, "outside of the layers"),
}


def built(model):
    model(np.zeros((1, 4), "float32"))
    return model


@pytest.mark.parametrize("name", sorted(UNSUPPORTED))
def test_unsupported_model_is_refused_and_auto_vectorizes(name, caplog):
    keras.utils.set_random_seed(1)
    make, message = UNSUPPORTED[name]
    loss = make()
    variables = loss.model.trainable_variables
    examples = (tf.constant(normal(4)), tf.constant(targets(2)))
    query = tfdp.GaussianSumQuery(0.3, 1.0)
    with pytest.raises(UnsupportedModelError, match=message):
        by_engine(loss, variables, examples, query, "bookkeeping")
    with caplog.at_level("INFO", "tfdp"):
        actual = by_engine(loss, variables, examples, query, "auto")
    assert message in caplog.text
    expected = by_engine(loss, variables, examples, query, "loop")
    for a, e in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-5, atol=1e-7)


def test_plain_variables_are_refused_and_auto_vectorizes():
    keras.utils.set_random_seed(1)
    loss, variables, examples = problem(
        keras.Sequential([keras.Input((4,)), L.Dense(2)]), normal(4)
    )
    plain, query = [v.value for v in variables], tfdp.GaussianSumQuery(0.3, 1.0)
    with pytest.raises(UnsupportedModelError, match="model.trainable_variables"):
        by_engine(loss, plain, examples, query, "bookkeeping")
    actual = by_engine(loss, plain, examples, query, "auto")
    expected = by_engine(loss, variables, examples, query, "loop")
    for a, e in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-5, atol=1e-7)


def test_registered_model():
    keras.utils.set_random_seed(1)
    loss, variables, examples = problem(built(Registered()), normal(4))
    assert_engines_agree(loss, variables, examples)


def test_quantized_layer_is_refused():
    model = keras.Sequential([keras.Input((4,)), L.Dense(4), L.Dense(2)])
    model.layers[0].quantize("float8")
    loss, variables, examples = problem(model, normal(4))
    with pytest.raises(UnsupportedModelError, match="quantized"):
        by_engine(loss, variables, examples, tfdp.GaussianSumQuery(0.3, 1.0), "bookkeeping")


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


def test_frozen_layers_are_not_watched():
    model = frozen()
    wanted = {id(v) for v in model.trainable_variables}
    watched = [type(layer).__name__ for layer, _ in plan(model, wanted)]
    assert watched.count("Dense") == 3


def test_layers_are_left_as_they_were():
    model = shared_dense()
    before = {layer.name: dict(vars(layer)) for layer in model.layers}
    loss, variables, examples = problem(model, normal(4))
    by_engine(loss, variables, examples, tfdp.GaussianSumQuery(0.3, 1.0), "bookkeeping")
    for layer in model.layers:
        assert "call" not in vars(layer)
        assert vars(layer).get("activation") is before[layer.name].get("activation")


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


def test_dropout_differs_between_records_and_steps():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((50,)), L.Dropout(0.5), L.Dense(1, use_bias=False)])
    loss = ModelLoss(model, lambda y, outputs: tf.reduce_sum(outputs))
    examples = (tf.ones([2, 50]), tf.zeros([2, 1]))

    @tf.function(autograph=False)
    def step():
        gradients = bookkeeping_gradients(
            loss,
            model.trainable_variables,
            lambda flat: tf.nest.pack_sequence_as(examples, flat),
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
