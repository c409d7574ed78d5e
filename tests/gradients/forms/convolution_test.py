"""Gradients of convolution kernels against a loop of tapes over records."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdp.gradients.forms import convolution_cost
from tfdp.gradients.forms.convolution import ConvolutionGradient

TOLERANCE = {"float32": 1e-5, "float64": 1e-10}
FACTORS = np.array([0.5, 0.0, 2.0, 1.5])


def to_first(array):
    return np.moveaxis(array, -1, 1)


def loop(convolve, inputs, output_gradient, kernel):
    """Returns the gradients of all records, [n, ...], from one tape for each."""
    gradients = []
    for x, g in zip(inputs, output_gradient, strict=True):
        variable = tf.constant(kernel)
        with tf.GradientTape() as tape:
            tape.watch(variable)
            output = convolve(tf.constant(x[None]), variable)
        gradients.append(tape.gradient(output, variable, output_gradients=tf.constant(g[None])))
    return np.stack(gradients)


def check(gradient, expected, tolerance):
    """Compares norms, sum and gradients, each relative to the largest number.

    Norms are never too small; where products cancel they may be larger, in proportion to these.
    """
    factors = FACTORS[: len(expected)]
    squares = np.sum(np.float64(expected) ** 2, tuple(range(1, expected.ndim)))
    actual = np.asarray(gradient.squared_norms(), np.float64)
    sizes = np.asarray(gradient.magnitudes(), np.float64) ** 2
    assert actual.shape == squares.shape
    assert (actual >= squares * (1 - tolerance)).all()
    assert (actual <= squares + tolerance * (np.max(squares) + 4 * sizes) + 1e-30).all()
    for actual, wanted in (
        (
            gradient.weighted_sum(tf.constant(factors, tf.float32)),
            np.tensordot(factors, expected, 1),
        ),
        (gradient.explicit(), expected),
    ):
        assert actual.dtype == (tf.float64 if tolerance < 1e-6 else tf.float32)
        assert actual.shape == wanted.shape
        scale = np.max(np.abs(wanted)) + 1e-30
        np.testing.assert_allclose(actual / scale, wanted / scale, atol=tolerance, rtol=0)


def applicable(strides, groups):
    others = {convolution_cost.PIXEL_GRAM} if set(strides) != {1} else set()
    if groups > 1:
        others = {convolution_cost.PIXEL_GRAM, convolution_cost.ONE_BY_ONE}
    return [way for way in convolution_cost.WAYS if way not in others]


@st.composite
def layers(draw, transposed=False):
    """Draws (arguments of a layer, shape of its input, shape of its kernel, dtype, seed)."""
    rank = draw(st.integers(1, 3))
    kernel = tuple(draw(st.integers(1, 3 if rank == 3 else 5)) for _ in range(rank))
    padding = draw(st.sampled_from(["valid", "same"]))
    strides = dilations = (1,) * rank
    kind = draw(st.sampled_from(["plain", "strided", "dilated"]))
    if kind == "strided":
        strides = (draw(st.integers(2, 3)),) * rank
    if kind == "dilated":
        dilations = (2,) * rank
    groups = 1 if transposed else draw(st.integers(1, 3))
    c, q = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    least = [1] * rank
    if padding == "valid" and not transposed:
        least = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    sizes = [low + draw(st.integers(0, 3)) for low in least]
    layer = {"strides": strides, "padding": padding, "dilation_rate": dilations}
    kernel_shape = (*kernel, q, c) if transposed else (*kernel, c, groups * q)
    n, dtype = draw(st.integers(1, 4)), draw(st.sampled_from(["float32", "float64"]))
    inputs = np.random.default_rng(draw(st.integers(0, 99))).normal(size=(n, *sizes, groups * c))
    return layer, inputs.astype(dtype), np.zeros(kernel_shape, dtype), groups


def _convolution(layer, groups):
    def convolve(x, kernel):
        # Keras compiles convolutions of groups.
        parts = zip(tf.split(x, groups, -1), tf.split(kernel, groups, -1), strict=True)
        return tf.concat([keras.ops.conv(*part, **layer) for part in parts], -1)

    return convolve


def _output_gradient(convolve, inputs, kernel):
    shape = convolve(tf.constant(inputs), tf.constant(kernel)).shape
    return np.random.default_rng(1).normal(size=shape).astype(inputs.dtype)


@settings(max_examples=60)
@given(layers(), st.booleans())
def test_equals_loop(case, channels_first):
    layer, inputs, kernel, groups = case
    convolve = _convolution(layer, groups)
    output_gradient = _output_gradient(convolve, inputs, kernel)
    expected = loop(convolve, inputs, output_gradient, kernel)
    data_format = "channels_first" if channels_first else "channels_last"
    tensors = [to_first(t) if channels_first else t for t in (inputs, output_gradient)]
    for way in [None, *applicable(layer["strides"], groups)]:
        gradient = ConvolutionGradient(
            *map(tf.constant, tensors),
            kernel.shape,
            **layer,
            groups=groups,
            data_format=data_format,
            way=way,
        )
        check(gradient, expected, TOLERANCE[kernel.dtype.name])


@settings(max_examples=40)
@given(layers(transposed=True), st.integers(0, 2), st.booleans())
def test_transposed_equals_loop(case, output_padding, channels_first):
    layer, inputs, kernel, _ = case
    # With "same" TensorFlow refuses some output paddings; those it takes are tested below.
    usable = layer["padding"] == "valid" and 0 < output_padding < layer["strides"][0]

    def convolve(x, kernel):
        return keras.ops.conv_transpose(
            x, kernel, **layer, output_padding=output_padding if usable else None
        )

    if max(layer["dilation_rate"]) == 1:
        output_gradient = _output_gradient(convolve, inputs, kernel)
        expected = loop(convolve, inputs, output_gradient, kernel)
    else:
        # TensorFlow has no such convolutions on a CPU: <g, transposed(x)> = <convolution(g), x>.
        more = [(k - 1) * 2 if layer["padding"] == "valid" else 0 for k in kernel.shape[:-2]]
        sizes = [size + m for size, m in zip(inputs.shape[1:-1], more, strict=True)]
        shape = (len(inputs), *sizes, kernel.shape[-2])
        output_gradient = np.random.default_rng(1).normal(size=shape).astype(kernel.dtype)
        expected = loop(_convolution(layer, 1), output_gradient, inputs, kernel)
    data_format = "channels_first" if channels_first else "channels_last"
    tensors = [to_first(t) if channels_first else t for t in (inputs, output_gradient)]
    for way in [None, *applicable(layer["strides"], 1)]:
        gradient = ConvolutionGradient.transposed(
            *map(tf.constant, tensors), kernel.shape, **layer, data_format=data_format, way=way
        )
        check(gradient, expected, TOLERANCE[kernel.dtype.name])


@pytest.mark.parametrize("size", [4, 5])
@pytest.mark.parametrize("output_padding", [0, 1])
def test_transposed_same_with_output_padding(size, output_padding):
    rng = np.random.default_rng(0)
    inputs, kernel = rng.normal(size=(3, size, size, 2)), np.zeros((3, 3, 2, 2))

    def convolve(x, kernel):
        return keras.ops.conv_transpose(x, kernel, 2, "same", output_padding)

    output_gradient = _output_gradient(convolve, inputs, kernel)
    expected = loop(convolve, inputs, output_gradient, kernel)
    for way in applicable((2, 2), 1):
        gradient = ConvolutionGradient.transposed(
            tf.constant(inputs), tf.constant(output_gradient), kernel.shape, 2, "same", way=way
        )
        check(gradient, expected, 1e-10)


def _example(dtype="float32", channels=2):
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(4, 5, 5, channels)).astype(dtype)
    return inputs, rng.normal(size=(4, 5, 5, 3)).astype(dtype), (3, 3, channels, 3)


COMPILED = {"graph": {}, "xla": {"jit_compile": True}, "unknown": {}}


@pytest.mark.parametrize("way", convolution_cost.WAYS)
@pytest.mark.parametrize("kind", COMPILED)
def test_graph_equals_eager(way, kind):
    inputs, output_gradient, shape = _example()

    def results(x, g):
        gradient = ConvolutionGradient(x, g, shape, padding="same", way=way)
        factors = tf.constant(FACTORS, tf.float32)
        return gradient.squared_norms(), gradient.weighted_sum(factors), gradient.explicit()

    size = None if kind == "unknown" else 5
    signature = [tf.TensorSpec([None, size, size, c]) for c in (2, 3)]
    compiled = tf.function(results, input_signature=signature, **COMPILED[kind])
    actual = compiled(inputs, output_gradient)
    for x, y in zip(
        actual, results(tf.constant(inputs), tf.constant(output_gradient)), strict=True
    ):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("way", convolution_cost.WAYS)
def test_fewer_records_than_parts(way):
    inputs, output_gradient, shape = _example("float64")

    # The number of records is not known, so there are as many parts as ever.
    @tf.function(input_signature=[tf.TensorSpec([None] * 3 + [c], tf.float64) for c in (2, 3)])
    def results(x, g):
        gradient = ConvolutionGradient(x, g, shape, padding="same", way=way)
        factors = tf.constant(FACTORS)[: tf.shape(x)[0]]
        return gradient.squared_norms(), gradient.weighted_sum(factors), gradient.explicit()

    whole = ConvolutionGradient(tf.constant(inputs), tf.constant(output_gradient), shape, 1, "same")
    for records in (0, 1, 3):
        squares, total, gradients = results(inputs[:records], output_gradient[:records])
        expected = whole.explicit().numpy()[:records]
        np.testing.assert_allclose(gradients, expected, atol=1e-12)
        np.testing.assert_allclose(squares, np.sum(expected**2, (1, 2, 3, 4)), rtol=1e-10)
        np.testing.assert_allclose(total, np.tensordot(FACTORS[:records], expected, 1), atol=1e-10)


@pytest.mark.parametrize("padding", ["valid", "same"])
@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("way", applicable((2,), 1))
@pytest.mark.parametrize("jit_compile", [False, True])
def test_no_part_is_of_no_records(jit_compile, way, rank, padding, monkeypatch):
    """oneDNN's convolutions of no records, which make windows here, have the shape of something
    else. XLA's have the right one."""
    monkeypatch.setattr(convolution_cost, "_CACHED", 1)
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(3, *[20] * rank, 1)).astype(np.float32)
    layer = {"strides": 2, "padding": padding}
    kernel = np.zeros((*[8] * rank, 1, 3), np.float32)
    convolve = _convolution(layer, 1)
    output_gradient = _output_gradient(convolve, inputs, kernel)

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, *part.shape[1:]]) for part in (inputs, output_gradient)
        ],
        jit_compile=jit_compile,
    )
    def results(x, g):
        gradient = ConvolutionGradient(x, g, kernel.shape, **layer, way=way)
        assert gradient._number_of_parts() == (1 if way == convolution_cost.ONE_BY_ONE else 8)
        return gradient.squared_norms(), gradient.weighted_sum(tf.ones(tf.shape(x)[0]))

    expected = loop(convolve, inputs, output_gradient, kernel)
    for records in (1, 2, 3):
        squares, total = results(inputs[:records], output_gradient[:records])
        of_these = expected[:records]
        wanted = np.sum(of_these**2, tuple(range(1, rank + 3)))
        np.testing.assert_allclose(squares, wanted, rtol=0.02)
        np.testing.assert_allclose(total, of_these.sum(0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("way", applicable((2,), 1))
@pytest.mark.parametrize("sizes", [(40,), (16, 16), (17, 16), (6, 6, 6)])
def test_windows_of_single_places_apart(way, sizes):
    """oneDNN writes such filter gradients out of bounds, where the last places are in no window."""
    rank = len(sizes)
    inputs = np.random.default_rng(0).normal(size=(4, *sizes, 3)).astype(np.float32)
    kernel = np.zeros((*[1] * rank, 3, 5), np.float32)
    layer = {"strides": 2, "padding": "valid"}
    convolve = _convolution(layer, 1)
    output_gradient = _output_gradient(convolve, inputs, kernel)
    places = inputs[(slice(None), *[slice(None, None, 2)] * rank)].reshape(4, -1, 3)
    expected = np.einsum("ntc,ntq->ncq", places, output_gradient.reshape(4, -1, 5))
    tensors = tf.constant(inputs), tf.constant(output_gradient)
    gradient = ConvolutionGradient(*tensors, kernel.shape, **layer, way=way)
    check(gradient, expected.reshape(4, *kernel.shape), 1e-5)


@pytest.mark.parametrize(
    ("way", "groups"), [(way, n) for n in (1, 3) for way in applicable((1, 1), n)]
)
def test_parts_are_the_whole(way, groups, monkeypatch):
    """In a graph, and then where XLA compiles one of the same shapes, which all turns of a loop
    share there; into five records no number of parts goes evenly."""
    rng = np.random.default_rng(0)
    inputs, output_gradient = rng.normal(size=(5, 6, 6, 6)), rng.normal(size=(5, 4, 4, 3))
    factors = tf.constant(rng.uniform(size=5))

    def results(x, g, factors):
        gradient = ConvolutionGradient(x, g, (3, 3, 6 // groups, 3), groups=groups, way=way)
        return gradient.squared_norms(), gradient.weighted_sum(factors), gradient.explicit()

    arguments = tf.constant(inputs), tf.constant(output_gradient), factors
    expected = results(*arguments)
    monkeypatch.setattr(convolution_cost, "_CACHED", 300)
    counted = ConvolutionGradient(*arguments[:2], (3, 3, 6 // groups, 3), groups=groups, way=way)
    in_parts = way != convolution_cost.ONE_BY_ONE
    assert 1 + in_parts <= counted._number_of_parts() <= 1 + 4 * in_parts
    unknown = [tf.TensorSpec([None, *a.shape[1:]], tf.float64) for a in arguments]
    for signature in (None, unknown):
        for jit in (False, True):
            actual = tf.function(results, input_signature=signature, jit_compile=jit)(*arguments)
            for a, e in zip(actual, expected, strict=True):
                np.testing.assert_allclose(a, e, rtol=1e-10, atol=1e-10)


def test_one_by_one_is_for_large_images_on_a_cpu_without_xla(monkeypatch):
    large = tf.TensorSpec([None, 64, 64, 48]), tf.TensorSpec([None, 64, 64, 16])

    def loops(tensors, **options):
        def norms(x, g):
            return ConvolutionGradient(x, g, (3, 3, 48, 16), padding="same").squared_norms()

        graph = tf.function(norms, tensors, **options).get_concrete_function().graph.as_graph_def()
        nodes = [node for function in graph.library.function for node in function.node_def]
        return "Conv2DBackpropFilter" in {node.op for node in nodes}

    assert loops(large)
    assert not loops([tf.TensorSpec([None, None, *spec.shape[2:]]) for spec in large])
    assert not loops(large, jit_compile=True)
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind=None: ["a GPU"])
    assert not loops(large)


def test_unknown_sizes_choose_patches():
    _, _, shape = _example()

    @tf.function(input_signature=[tf.TensorSpec([None, None, None, c]) for c in (2, 3)])
    def norms(x, g):
        return ConvolutionGradient(x, g, shape, padding="same").squared_norms()

    inputs, output_gradient, _ = _example()
    expected = ConvolutionGradient(
        tf.constant(inputs), tf.constant(output_gradient), shape, padding="same"
    ).squared_norms()
    np.testing.assert_allclose(norms(inputs, output_gradient), expected, rtol=1e-5)


@pytest.mark.parametrize("way", convolution_cost.WAYS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_accumulated_in_float32(way, dtype):
    inputs, output_gradient, shape = _example()
    half = [tf.cast(t, dtype) for t in (inputs, output_gradient)]
    full = [tf.cast(t, tf.float32) for t in half]
    gradients = [ConvolutionGradient(*t, shape, padding="same", way=way) for t in (half, full)]
    check(gradients[0], gradients[1].explicit().numpy(), 1e-5)


@pytest.mark.parametrize(
    ("way", "groups"),
    [(way, groups) for groups in (1, 2) for way in applicable((1, 1), groups)],
)
def test_record_that_is_not_finite_adds_nothing(way, groups):
    inputs, output_gradient, _ = _example()
    output_gradient = np.concatenate([output_gradient] * groups, -1)
    shape = (3, 3, 2 // groups, 3 * groups)

    @tf.function
    def results(*tensors):
        gradient = ConvolutionGradient(*tensors, shape, padding="same", groups=groups, way=way)
        return gradient.squared_norms(), gradient.weighted_sum(tf.constant(FACTORS, tf.float32))

    without = [inputs.copy(), output_gradient.copy()]
    for tensor in without:
        tensor[1] = 0
    _, expected = results(*map(tf.constant, without))
    for value, where in itertools.product([np.nan, np.inf, 1e30], [(0,), (1,), (0, 1)]):
        tensors = [inputs.copy(), output_gradient.copy()]
        for i in where:
            tensors[i][1, 2, 2, 1] = value  # The factor of record 1 is zero.
        norms, total = results(*map(tf.constant, tensors))
        assert np.isfinite(norms.numpy()).tolist() == [True, False, True, True], (value, where)
        np.testing.assert_array_equal(total, expected, err_msg=f"{value} in {where}")


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("where", [0, 1], ids=["inputs", "output_gradient"])
def test_kernel_larger_than_inputs_masks_them(value, where):
    rng = np.random.default_rng(0)
    tensors = [rng.normal(size=(4, *size)).astype("float32") for size in [(5, 5, 2), (1, 1, 3)]]

    def made():
        return ConvolutionGradient(*map(tf.constant, tensors), (5, 5, 2, 3), way="patches")

    tensors[where][1, 0, 0, 1] = value  # The factor of record 1 is zero.
    squares = made().squared_norms().numpy()
    total = made().weighted_sum(tf.constant(FACTORS, tf.float32))
    assert np.isfinite(squares).tolist() == [True, False, True, True]
    assert not np.all(np.isfinite(made().explicit()[1]))
    tensors[0][1] = tensors[1][1] = 0
    np.testing.assert_array_equal(total, made().weighted_sum(tf.constant(FACTORS, tf.float32)))


@pytest.mark.parametrize("way", convolution_cost.WAYS)
@pytest.mark.parametrize("size", [1e18, 1e-18])
def test_norm_is_not_lost_where_squares_vanish(way, size):
    # Squares of 10^-20 are zero in float32, and those of 10^20 infinite; the gradients are neither.
    inputs, output_gradient, shape = _example()
    inputs, output_gradient = inputs * np.float32(size), output_gradient * np.float32(0.01 / size)
    exact = ConvolutionGradient(
        tf.constant(inputs, tf.float64), tf.constant(output_gradient, tf.float64), shape, 1, "same"
    ).squared_norms()
    norms = ConvolutionGradient(
        tf.constant(inputs), tf.constant(output_gradient), shape, 1, "same", way=way
    ).squared_norms()
    assert np.all(norms.numpy() >= exact.numpy() * (1 - 1e-4))


def test_shared_kernel_adds_gradients():
    inputs, output_gradient, shape = _example("float64")
    one, two = (
        ConvolutionGradient(tf.constant(x), tf.constant(output_gradient), shape, padding="same")
        for x in (inputs, inputs[::-1])
    )
    expected = (one.explicit() + two.explicit()).numpy()
    check(one.merged(two), expected, 1e-10)


def test_unusable_arguments_are_refused():
    inputs, output_gradient, shape = _example()
    tensors = tf.constant(inputs), tf.constant(output_gradient)
    with pytest.raises(ValueError, match="padding must be 'valid' or 'same'. Received: .*causal"):
        ConvolutionGradient(*tensors, shape, padding="causal")
    with pytest.raises(ValueError, match="strides of 1 and one group"):
        ConvolutionGradient(*tensors, shape, strides=2, way=convolution_cost.PIXEL_GRAM)
    with pytest.raises(ValueError, match="is for one group"):
        ConvolutionGradient(*tensors, shape, groups=2, way=convolution_cost.ONE_BY_ONE)
    with pytest.raises(ValueError, match="way must be one of"):
        ConvolutionGradient(*tensors, shape, way="magic")


@settings(max_examples=30)
@given(layers(), st.booleans(), st.booleans())
def test_groups_are_weighted_sums_of_records(case, twice, one_by_one):
    """Groups of two, or two by two: frames of a film, and films of a user."""
    layer, inputs, kernel, groups = case
    inputs = np.concatenate([inputs[:1], 2 * inputs[:1], -inputs[-1:], inputs[-1:] + 1])
    convolve = _convolution(layer, groups)
    output_gradient = _output_gradient(convolve, inputs, kernel)
    each = loop(convolve, inputs, output_gradient, kernel)
    factors = np.array([2.0, 0.0, 0.5, 1.0], inputs.dtype)
    gradient = ConvolutionGradient(
        tf.constant(inputs), tf.constant(output_gradient), kernel.shape, **layer, groups=groups
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(convolution_cost, "_TURN", 0 if one_by_one else 1e12)
        if twice:
            grouped = gradient.grouped(None, 2).grouped(tf.constant([2.0, 0.0], inputs.dtype), 2)
            expected = 2 * (each[:1] + each[1:2])
        else:
            grouped = gradient.grouped(tf.constant(factors), 2)
            expected = [np.tensordot(factors[i : i + 2], each[i : i + 2], 1) for i in (0, 2)]
    check(grouped, np.stack(expected), TOLERANCE[str(inputs.dtype)])


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
@pytest.mark.parametrize("in_inputs", [True, False], ids=["inputs", "gradients"])
def test_films_that_are_not_finite_leave_the_others_as_they_are(value, in_inputs, monkeypatch):
    monkeypatch.setattr(convolution_cost, "_TURN", 0)
    rng = np.random.default_rng(0)
    frames, gradients = rng.normal(size=(6, 5, 5, 2)), rng.normal(size=(6, 3, 3, 4))
    of_others = tf.constant([1.0, 0.0, 2.0], tf.float32)

    def grouped():
        tensors = (tf.constant(t, tf.float32) for t in (frames, gradients))
        form = ConvolutionGradient(*tensors, (3, 3, 2, 4)).grouped(None, 2)
        assert form._layout.way == convolution_cost.ONE_BY_ONE
        return form.squared_norms().numpy(), form.weighted_sum(of_others).numpy()

    squares, total = grouped()
    for array in (frames, gradients) if value == 1e30 else [frames if in_inputs else gradients]:
        array[2] = value
    with_value, same_total = grouped()
    assert not np.isfinite(with_value[1])
    np.testing.assert_array_equal(with_value[[0, 2]], squares[[0, 2]])
    np.testing.assert_array_equal(same_total, total)
