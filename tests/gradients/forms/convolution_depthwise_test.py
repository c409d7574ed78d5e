"""Gradients of depthwise and separable kernels against a loop of tapes over records."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdp.gradients.forms.convolution_depthwise import depthwise, separable

FACTORS = np.array([0.5, 0.0, 2.0])


def _loop(convolve, inputs, output_gradient, kernels):
    """Returns for each kernel the gradients of all records, from one tape for each record."""
    gradients = []
    for x, g in zip(inputs, output_gradient, strict=True):
        variables = [tf.constant(kernel) for kernel in kernels]
        with tf.GradientTape() as tape:
            tape.watch(variables)
            output = convolve(tf.constant(x[None]), *variables)
        gradients.append(tape.gradient(output, variables, output_gradients=tf.constant(g[None])))
    return [np.stack(of_kernel) for of_kernel in zip(*gradients, strict=True)]


def _check(gradient, expected, tolerance):
    factors = FACTORS[: len(expected)]
    for actual, wanted in (
        (gradient.squared_norms(), np.sum(expected**2, tuple(range(1, expected.ndim)))),
        (
            gradient.weighted_sum(tf.constant(factors, tf.float32)),
            np.tensordot(factors, expected, 1),
        ),
        (gradient.explicit(), expected),
    ):
        assert actual.shape == wanted.shape
        scale = np.max(np.abs(wanted)) + 1e-30
        np.testing.assert_allclose(actual / scale, wanted / scale, atol=tolerance, rtol=0)


def _kinds():
    """Returns the kinds of layers that Keras has."""
    kinds = ["plain", "strided", "dilated"]
    try:
        keras.layers.DepthwiseConv2D(1, strides=2, dilation_rate=2)
    except ValueError:
        # Keras 3.12 refuses such layers: TensorFlow has the strides on each part of what a dilation
        # takes apart, which is no convolution.
        return kinds
    return [*kinds, "both"]


KINDS = _kinds()


@st.composite
def _layers(draw):
    """Draws (arguments of a layer, inputs, depthwise kernel)."""
    rank = draw(st.integers(1, 2))
    # Small and large kernels go different ways.
    kernel = tuple(draw(st.integers(1, 5)) for _ in range(rank))
    padding = draw(st.sampled_from(["valid", "same"]))
    strides = dilations = (1,) * rank
    kind = draw(st.sampled_from(KINDS))
    if kind in ("strided", "both"):
        strides = (draw(st.integers(2, 3)),) * rank
    if kind in ("dilated", "both"):
        dilations = (2,) * rank
    c, m = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    least = [1] * rank
    if padding == "valid":
        least = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    sizes = [low + draw(st.integers(0, 3)) for low in least]
    n, dtype = draw(st.integers(1, 3)), draw(st.sampled_from(["float32", "float64"]))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    layer = {"strides": strides, "padding": padding, "dilation_rate": dilations}
    inputs = rng.normal(size=(n, *sizes, c)).astype(dtype)
    return layer, inputs, rng.normal(size=(*kernel, c, m)).astype(dtype)


def _output_gradient(convolve, inputs, kernels):
    shape = convolve(tf.constant(inputs), *map(tf.constant, kernels)).shape
    return np.random.default_rng(1).normal(size=shape).astype(inputs.dtype)


def _tensors(channels_first, *arrays):
    return [tf.constant(np.moveaxis(a, -1, 1) if channels_first else a) for a in arrays]


@settings(max_examples=50)
@given(_layers(), st.booleans())
def test_depthwise_equals_loop(case, channels_first):
    layer, inputs, kernel = case

    def convolve(x, kernel):
        return keras.ops.depthwise_conv(x, kernel, **layer)

    output_gradient = _output_gradient(convolve, inputs, [kernel])
    (expected,) = _loop(convolve, inputs, output_gradient, [kernel])
    gradient = depthwise(
        *_tensors(channels_first, inputs, output_gradient),
        kernel.shape,
        **layer,
        data_format="channels_first" if channels_first else "channels_last",
    )
    _check(gradient, expected, 1e-10 if inputs.dtype == np.float64 else 1e-5)


@pytest.mark.parametrize(
    "size, kernel, stride, is_fast",
    [
        ((8, 8), (3, 3), 1, True),
        ((3, 3), (3, 3), 1, True),
        ((2, 2), (3, 3), 1, False),
        ((4, 4), (3, 3), 2, False),  # Two windows along each axis.
        ((2, 8), (3, 3), 1, False),
        ((8, 8), (5, 5), 1, False),
        ((1, 8), (1, 3), 1, True),  # As along one axis.
        ((None, None), (3, 3), 1, True),
    ],
)
def test_filter_gradient_is_taken_only_where_it_is_fast(size, kernel, stride, is_fast):
    windows = [None if length is None else -(-length // stride) for length in size]

    @tf.function(
        input_signature=[tf.TensorSpec([None, *size, 2]), tf.TensorSpec([None, *windows, 2])]
    )
    def squares(x, g):
        return depthwise(x, g, (*kernel, 2, 1), stride, "same").squared_norms()

    operations = {
        operation.type for operation in squares.get_concrete_function().graph.get_operations()
    }
    assert ("DepthwiseConv2dNativeBackpropFilter" in operations) == is_fast


@settings(max_examples=40)
@given(_layers(), st.integers(1, 3), st.booleans())
def test_separable_equals_loop(case, filters, channels_first):
    layer, inputs, kernel = case
    *size, c, m = kernel.shape
    rng = np.random.default_rng(2)
    pointwise = rng.normal(size=(*[1] * len(size), c * m, filters)).astype(kernel.dtype)

    def convolve(x, *kernels):
        return keras.ops.separable_conv(x, *kernels, **layer)

    kernels = [kernel, pointwise]
    output_gradient = _output_gradient(convolve, inputs, kernels)
    expected = _loop(convolve, inputs, output_gradient, kernels)
    gradients = separable(
        *_tensors(channels_first, inputs, output_gradient),
        *map(tf.constant, kernels),
        **layer,
        data_format="channels_first" if channels_first else "channels_last",
    )
    for gradient, of_loop in zip(gradients, expected, strict=True):
        _check(gradient, of_loop, 1e-10 if inputs.dtype == np.float64 else 1e-5)


def _example(size, dtype="float32"):
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(3, 6, 6, 2)).astype(dtype)
    return inputs, rng.normal(size=(3, 6, 6, 4)).astype(dtype), (size, size, 2, 2)


@pytest.mark.parametrize("size", [3, 5])
@pytest.mark.parametrize("kind", ["graph", "xla", "unknown"])
def test_graph_equals_eager(size, kind):
    inputs, output_gradient, shape = _example(size)

    def results(x, g):
        gradient = depthwise(x, g, shape, padding="same")
        return gradient.squared_norms(), gradient.weighted_sum(tf.constant(FACTORS, tf.float32))

    side = None if kind == "unknown" else 6
    signature = [tf.TensorSpec([None if kind != "xla" else 3, side, side, c]) for c in (2, 4)]
    compiled = tf.function(results, input_signature=signature, jit_compile=kind == "xla")
    expected = results(tf.constant(inputs), tf.constant(output_gradient))
    for x, y in zip(compiled(inputs, output_gradient), expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [3, 5])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_accumulated_in_float32(size, dtype):
    inputs, output_gradient, shape = _example(size)
    half = [tf.cast(t, dtype) for t in (inputs, output_gradient)]
    expected = depthwise(*[tf.cast(t, tf.float32) for t in half], shape, padding="same")
    gradient = depthwise(*half, shape, padding="same")
    assert gradient.squared_norms().dtype == tf.float32
    _check(gradient, expected.explicit().numpy(), 1e-5)


@pytest.mark.parametrize("size", [3, 5])
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("where", ["inputs", "output_gradient"])
def test_record_that_is_not_finite_adds_nothing(size, value, where):
    inputs, output_gradient, shape = _example(size)

    def results(*tensors):
        gradient = depthwise(*tensors, shape, padding="same")
        return gradient.squared_norms(), gradient.weighted_sum(tf.constant(FACTORS, tf.float32))

    # The factor of record 1 is zero.
    (inputs if where == "inputs" else output_gradient)[1, 2, 2, 1] = value
    norms, total = tf.function(results)(inputs, output_gradient)
    assert np.isfinite(norms.numpy()).tolist() == [True, False, True]
    inputs[1] = output_gradient[1] = 0
    expected = tf.function(results)(inputs, output_gradient)[1]
    np.testing.assert_allclose(total, expected, rtol=1e-6)
