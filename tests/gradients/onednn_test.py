"""Graphs that may corrupt memory are recognised, and only those."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tests.gradients.problems import floatx, head, normal, problem
from tfdp.gradients import ModelLoss
from tfdp.gradients.graphs import functions_called
from tfdp.gradients.onednn import (
    corrupts_memory,
    is_faulty_product,
    leaves_numbers_unwritten,
    needs_compiling,
)
from tfdp.gradients.rewriting import with_checks, with_safe_products

L = keras.layers


def graph_of(left, right, function=tf.matmul):
    specs = [tf.TensorSpec(left), tf.TensorSpec(right)]
    return tf.function(function, autograph=False).get_concrete_function(*specs).graph


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ([None, 1, 3, 4], [4, 16], True),  # The product that was reported.
        ([13, 1, 3, 4], [1, 1, 4, 16], True),
        ([None, 1, 3, 4], [None, 1, 4, 16], False),  # Equal batch dimensions.
        ([None, 3, 4], [4, 16], False),
        ([3, 4], [4, 16], False),
        (None, [4, 16], True),  # A rank that is not known may be four.
    ],
)
def test_broadcasting_products_of_rank_four_are_recognised(left, right, expected):
    def product(a, b):
        return tf.raw_ops.BatchMatMulV2(x=a, y=b)

    assert corrupts_memory(graph_of(left, right, product)) is expected


def test_products_in_the_body_of_a_loop_are_recognised():
    def loop(a, b):
        body = lambda i, total: (i + 1, total + tf.matmul(a, b))  # noqa: E731
        start = (tf.constant(0), tf.zeros([13, 1, 3, 16]))
        return tf.while_loop(lambda i, _: i < 2, body, start)

    def harmless(a, b):
        body = lambda i, total: (i + 1, total + tf.matmul(a[:, 0], b))  # noqa: E731
        start = (tf.constant(0), tf.zeros([13, 3, 16]))
        return tf.while_loop(lambda i, _: i < 2, body, start)

    assert corrupts_memory(graph_of([13, 1, 3, 4], [4, 16], loop))
    # Both operands have as many matrices.
    assert not corrupts_memory(graph_of([13, 1, 3, 4], [13, 1, 4, 16], loop))
    assert not corrupts_memory(graph_of([13, 1, 3, 4], [4, 16], harmless))


PRODUCTS = [
    ((8, 1, 6, 4), (4, 3), {}),
    ((1, 8, 6, 4), (4, 3), {}),
    ((4, 8), (3, 1, 8, 6), {}),
    ((8, 1, 6, 4), (1, 1, 4, 3), {}),
    ((1, 1, 6, 4), (2, 3, 4, 5), {}),
    ((1, 1, 1, 6, 4), (3, 2, 4, 2), {}),
    ((5, 1, 6, 4), (1, 7, 4, 2), {}),
    ((5, 1, 4, 6), (7, 4, 2), {"adj_x": True}),
    ((5, 1, 4, 6), (2, 4), {"adj_x": True, "adj_y": True}),
]


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(("left", "right", "flipped"), PRODUCTS)
def test_products_that_may_corrupt_memory_are_replaced(left, right, flipped, known):
    def product(record):
        return tf.raw_ops.BatchMatMulV2(x=record[0], y=record[1], **flipped)

    specs = [tf.TensorSpec(shape if known else [None] * len(shape)) for shape in (left, right)]
    specs[0] = tf.TensorSpec(left)
    safe = with_checks(product, specs)
    traced = tf.function(lambda *record: safe(list(record)), autograph=False)
    traced = traced.get_concrete_function(*specs)
    assert corrupts_memory(graph_of(left, right, lambda *record: product(record)))
    assert not any(map(is_faulty_product, traced.graph.get_operations()))
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=shape).astype("float32") for shape in (left, right))
    x_, y_ = (
        np.swapaxes(a, -1, -2) if flipped.get(flag) else a
        for a, flag in ((x, "adj_x"), (y, "adj_y"))
    )
    np.testing.assert_allclose(traced(x, y), np.matmul(x_, y_), rtol=1e-4, atol=1e-5)


class NodesFirst(L.Layer):
    """Puts records behind another axis, and multiplies: a product of the kind that was reported."""

    def __init__(self):
        super().__init__()
        self.kernel = self.add_weight(shape=(4, 3))

    def call(self, x):
        return tf.transpose(tf.matmul(tf.transpose(x, [1, 0, 2, 3]), self.kernel), [1, 0, 2, 3])


class OnePosition(NodesFirst):
    """The same product, of a whole batch."""

    def call(self, x):
        return tf.matmul(x[:, :1], self.kernel)


@pytest.mark.parametrize("engine", ["loop", "vectorized", "bookkeeping"])
@pytest.mark.parametrize("layer", [NodesFirst, OnePosition])
def test_no_engine_makes_products_that_may_corrupt_memory(layer, engine):
    # Some come of vectorizing: XLA compiles these.
    keras.utils.set_random_seed(1)
    inputs = keras.Input((3, 2, 4))
    model = keras.Model(inputs, head(layer()(inputs)))
    loss, variables, examples = problem(model, normal(3, 2, 4))
    query = tfdp.GaussianSumQuery(0.3, 1.0)

    def run(leaves):
        total = tfdp.clipped_gradient_sum(loss, variables, leaves, query, engine=engine)
        return total.sample_state

    traced = tf.function(run, autograph=False).get_concrete_function(examples)
    assert not _faulty_where_nothing_compiles(traced.graph)


def _faulty_where_nothing_compiles(graph):
    for op in graph.get_operations():
        if is_faulty_product(op):
            return True
        compiled = "_XlaMustCompile" in op.node_def.attr and op.get_attr("_XlaMustCompile")
        if not compiled and any(map(_faulty_where_nothing_compiles, functions_called(op))):
            return True
    return False


@pytest.mark.parametrize(
    ("channels", "strides", "windows", "expected"),
    [
        (1, (1, 3), 1, True),
        (1, (1, 1, 2), None, True),
        (1, (3, 1), 1, False),
        (1, (2, 2), 1, False),
        (1, (1, 3), 2, False),
        (2, (1, 3), 1, False),
        (1, (3,), 1, False),
    ],
)
def test_convolutions_that_leave_numbers_unwritten_are_recognised(
    channels, strides, windows, expected
):
    assert leaves_numbers_unwritten(channels, strides, windows) is expected


class Convolves(keras.layers.Layer):
    """An operation of Keras, which no rule knows."""

    def __init__(self, kernel, strides):
        super().__init__()
        self.kernel = self.add_weight(shape=kernel)
        self.strides = strides

    def call(self, x):
        return keras.ops.conv(x, self.kernel, self.strides)


@tf.function(autograph=False)
def in_a_function(x, kernel, strides):
    return tf.nn.convolution(x, kernel, strides, "VALID")


def kernel_gradients(x, kernel, strides):
    """Returns those of every record's sum of squared outputs, window by window."""
    counts = [
        (size - k) // s + 1
        for size, k, s in zip(x.shape[1:-1], kernel.shape, strides, strict=False)
    ]
    assert counts[-1] == 1
    total = np.zeros((len(x), *kernel.shape))
    for place in itertools.product(*map(range, counts)):
        cut = tuple(
            slice(p * s, p * s + k) for p, s, k in zip(place, strides, kernel.shape, strict=False)
        )
        patches = x[(slice(None), *cut)].astype(float)
        outputs = np.tensordot(patches, kernel, kernel.ndim - 1)
        total += 2 * patches[..., np.newaxis] * outputs.reshape(-1, *[1] * (x.ndim - 1), 2)
    return total


LAYERS = {2: keras.layers.Conv2D, 3: keras.layers.Conv3D}


# The book-keeping engine takes losses of models only.
WAYS = [
    (way, engine)
    for way in ("layer", "channels_first", "operation", "function")
    for engine in ("loop", "vectorized", "bookkeeping")
    if (way, engine) != ("function", "bookkeeping")
]


@pytest.mark.parametrize(
    ("kernel", "strides"), [((2, 3), (1, 2)), ((2, 2, 3), (1, 1, 2))], ids=["2d", "3d"]
)
@pytest.mark.parametrize(("way", "engine"), WAYS)
def test_no_result_of_a_convolution_is_what_was_in_the_memory(way, engine, kernel, strides):
    x = (
        np.random.default_rng(0)
        .normal(size=(6, 5, *(4 for _ in kernel[2:]), 3, 1))
        .astype(np.float32)
    )
    make = LAYERS[len(kernel)]
    if way == "operation":
        layer = Convolves([*kernel, 1, 2], strides)
    elif way == "channels_first":
        layer = make(2, kernel, strides, use_bias=False, data_format="channels_first")
    else:
        layer = make(2, kernel, strides, use_bias=False)
    examples = np.moveaxis(x, -1, 1) if way == "channels_first" else x
    inputs = keras.Input(examples.shape[1:])
    model = keras.Model(inputs, layer(inputs))
    loss = ModelLoss(model, lambda y, outputs: tf.reduce_sum(outputs**2))
    if way == "function":

        def loss(record):
            return tf.reduce_sum(in_a_function(record[0], layer.kernel.value, strides) ** 2)

    query = tfdp.GaussianSumQuery(1e6, 0.0)

    @tf.function(autograph=False)
    def total(*examples):
        return tfdp.clipped_gradient_sum(
            loss, model.trainable_variables, examples, query, engine=engine
        ).sample_state

    found = tf.nest.flatten(total(tf.constant(examples), tf.zeros([len(x), 1])))
    expected = kernel_gradients(x, layer.kernel.numpy(), strides).sum(0)
    (found,) = (f for f in found if f.shape == expected.shape)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("layer", "shape", "dtype", "expected"),
    [
        (L.Conv3D, (3, 3, 3, 4), "float32", True),
        (L.Conv2D, (3, 3, 4), "float64", True),
        (L.Conv2D, (3, 3, 4), "float32", False),
    ],
)
def test_convolutions_of_groups_are_vectorized(layer, shape, dtype, expected):
    with floatx(dtype):
        keras.utils.set_random_seed(1)
        inputs = keras.Input(shape)
        outputs = head(layer(4, 2, groups=2)(L.Dense(4)(inputs)))
        loss, variables, examples = problem(keras.Model(inputs, outputs), normal(*shape))
        query = tfdp.GaussianSumQuery(0.3, 1.0)
        try:
            with tf.GradientTape() as tape:
                found = loss.model(examples[0])
            tape.gradient(found, variables)
        except tf.errors.InvalidArgumentError:
            pytest.skip("This Keras computes no such convolution, or no gradient of it, on a CPU.")
        vectorized, loop = (
            tfdp.clipped_gradient_sum(loss, variables, examples, query, engine=engine)
            for engine in ("vectorized", "loop")
        )
        convolved = tf.function(lambda x: loss.model(x), autograph=False)
        graph = convolved.get_concrete_function(examples[0][:1]).graph
    assert needs_compiling(graph) is expected
    for a, e in zip(vectorized.sample_state, loop.sample_state, strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-4, atol=1e-6)


def test_a_loop_with_a_product_of_unknown_rank_is_not_made_safe():
    def loop(a, b):
        def body(i, total):
            return i + 1, total + tf.reduce_sum(tf.raw_ops.BatchMatMulV2(x=a, y=b))

        return tf.while_loop(lambda i, _: i < 2, body, (tf.constant(0), tf.constant(0.0)))[1]

    def safe(left):
        specs = [tf.TensorSpec(left), tf.TensorSpec([4, 16])]
        return with_safe_products(tf.function(loop, autograph=False).get_concrete_function(*specs))

    assert safe(None) is None
    assert safe([13, 3, 4]) is None
    run = tf.function(lambda *operands: safe([13, 1, 3, 4])(list(operands)), autograph=False)
    assert run(tf.ones([13, 1, 3, 4]), tf.ones([4, 16])) == 2 * 13 * 3 * 4 * 16
