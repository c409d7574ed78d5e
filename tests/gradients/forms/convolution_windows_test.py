"""Windows as matrices against loops over positions and offsets."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdp.gradients.forms import convolution_cost, convolution_windows
from tfdp.gradients.forms.convolution_windows import Windows, spatial_sizes


def _patches(source, windows, counts):
    """Returns [n, positions, numbers] by a loop; before the first pixel is half the padding."""
    rank = len(counts)
    sizes = source.shape[1:-1]
    needed = [
        (c - 1) * s + e for c, s, e in zip(counts, windows.strides, windows.extents(), strict=True)
    ]
    before = [
        max(n - s, 0) // 2 if windows.padding == "SAME" else 0
        for n, s in zip(needed, sizes, strict=True)
    ]
    result = []
    for position in itertools.product(*map(range, counts)):
        numbers = []
        for offset in itertools.product(*map(range, windows.kernel)):
            at = [
                position[i] * windows.strides[i] + offset[i] * windows.dilations[i] - before[i]
                for i in range(rank)
            ]
            inside = all(0 <= x < size for x, size in zip(at, sizes, strict=True))
            zeros = np.zeros((source.shape[0], source.shape[-1]))
            numbers.append(source[(slice(None), *at)] if inside else zeros)
        result.append(np.concatenate(numbers, -1))
    return np.stack(result, 1)


@st.composite
def _cases(draw, strided=True):
    rank = draw(st.integers(1, 3))
    most = 3 if rank == 3 else 4
    kernel = tuple(draw(st.integers(1, most)) for _ in range(rank))
    padding = draw(st.sampled_from(["VALID", "SAME"]))
    strides = dilations = (1,) * rank
    if strided and draw(st.booleans()):
        strides = tuple(draw(st.integers(1, 3)) for _ in range(rank))
    elif draw(st.booleans()):
        dilations = tuple(draw(st.integers(1, 2)) for _ in range(rank))
    windows = Windows(kernel, strides, dilations, padding)
    extents = windows.extents()
    least = extents if padding == "VALID" else [1] * rank
    sizes = [low + draw(st.integers(0, 3)) for low in least]
    counts = [
        -(-size // stride) if padding == "SAME" else (size - extent) // stride + 1
        for size, stride, extent in zip(sizes, strides, extents, strict=True)
    ]
    channels = draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    return windows, counts, rng.normal(size=(2, *sizes, channels))


@settings(max_examples=40)
@given(_cases())
def test_patches_are_windows(case):
    windows, counts, source = case
    expected = _patches(source, windows, counts)
    for patches in (windows.patches, windows.patches_in_long_runs):
        np.testing.assert_array_equal(patches(tf.constant(source), counts), expected)


@pytest.mark.parametrize(("known", "by_matrix"), [(True, True), (True, False), (False, False)])
@pytest.mark.parametrize("padding", ["VALID", "SAME"])
@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize("width, kernel, stride", [(5, 5, 3), (7, 5, 4), (3, 3, 4), (2, 2, 3)])
def test_one_window_along_the_last_axis(
    width, kernel, stride, rank, padding, known, by_matrix, monkeypatch
):
    """Of one channel, in single precision, where TensorFlow's convolution is at fault."""
    if not by_matrix:
        monkeypatch.setattr(convolution_cost, "_LARGEST_MATRIX", 0)
    width = min(width, stride) if padding == "SAME" else width
    source = np.random.default_rng(0).normal(size=(9, *[4] * (rank - 1), width, 1)).astype("f")
    ones = (1,) * (rank - 1)
    windows = Windows((*ones, kernel), (*ones, stride), (1,) * rank, padding)
    counts = [4] * (rank - 1) + [1]

    def patches(source, like):
        return windows.patches_in_long_runs(source, spatial_sizes(like))

    shapes = [source.shape, (9, *counts, 1)]
    if not known:
        shapes = [[None] * (rank + 1) + [1]] * 2
    found = tf.function(patches, [tf.TensorSpec(shape) for shape in shapes], autograph=False)
    like = np.zeros([9, *counts, 1], "f")
    np.testing.assert_array_equal(found(source, like), _patches(source, windows, counts))


@pytest.mark.parametrize("by_matrix", [True, False])
@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("padding", ["VALID", "SAME"])
@pytest.mark.parametrize("stride", [1, 2, 3, 4])
@pytest.mark.parametrize("height", [1, 2, 3, 4, 6])
def test_rows_that_come_into_windows_together(
    height, stride, padding, channels, by_matrix, monkeypatch
):
    if not by_matrix:
        monkeypatch.setattr(convolution_cost, "_LARGEST_MATRIX", 0)
    rng = np.random.default_rng(0)
    for (width, along), columns, more in itertools.product(
        [(1, 3), (4, 2), (5, 1)], [5, 7], [0, 3]
    ):
        windows = Windows((height, width), (stride, along), (1, 1), padding)
        source = rng.normal(size=(3, height + more, columns, channels)).astype("f")
        counts = [
            -(-size // step) if padding == "SAME" else (size - extent) // step + 1
            for size, step, extent in zip(
                source.shape[1:3], windows.strides, windows.kernel, strict=True
            )
        ]
        made = windows.patches_in_long_runs(tf.constant(source), counts)
        np.testing.assert_array_equal(made, _patches(source, windows, counts))


@settings(max_examples=20)
@given(_cases())
def test_patches_of_groups(case):
    windows, counts, source = case
    source = np.concatenate([source, source + 1, source - 1], -1)
    patches = windows.patches(tf.constant(source), counts, groups=3).numpy()
    by_group = patches.reshape(len(source), 3, *patches.shape[1:])
    for i, group in enumerate(np.split(source, 3, -1)):
        np.testing.assert_array_equal(by_group[:, i], _patches(group, windows, counts))


@settings(max_examples=40)
@given(_cases(strided=False))
def test_gram_of_patches(case):
    windows, counts, source = case
    patches = _patches(source, windows, counts)
    positions = np.random.default_rng(0).normal(size=(len(source), *counts, 2))
    flat = positions.reshape(len(source), -1, 2)
    left, right = windows.gram_of_patches(tf.constant(source), tf.constant(positions))
    # The numbers that are no positions have a zero in the second matrix.
    expected = np.einsum("ntp,nsp,ntq,nsq->n", patches, patches, flat, flat)
    np.testing.assert_allclose(tf.reduce_sum(left * right, [1, 2]), expected, rtol=1e-10)
    assert left.shape == right.shape


@settings(max_examples=15)
@given(_cases())
def test_filter_gradient_is_a_product_with_patches(case):
    windows, counts, source = case
    gradient = np.random.default_rng(0).normal(size=(len(source), *counts, 2))
    expected = np.einsum(
        "ntp,ntq->pq", _patches(source, windows, counts), gradient.reshape(len(source), -1, 2)
    )
    actual = windows.filter_gradient(tf.constant(source), tf.constant(gradient))
    np.testing.assert_allclose(tf.reshape(actual, expected.shape), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("n", [0, 3])
@pytest.mark.parametrize("height", [9, None])
@pytest.mark.parametrize("padding", ["VALID", "SAME"])
def test_numbers_of_records_and_rows_that_are_unknown_where_columns_are_known(padding, height, n):
    """So that rows are multiplied with a matrix, two at once, or all numbers of no record."""
    windows = Windows((4, 3), (2, 2), (1, 1), padding)
    source = np.random.default_rng(0).normal(size=(3, 9, 7, 1))
    counts = [3, 3] if padding == "VALID" else [5, 4]

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, height, 7, 1], tf.float64),
            tf.TensorSpec([None, None, counts[1], 2], tf.float64),
        ]
    )
    def patches(source, like):
        return windows.patches_in_long_runs(source, spatial_sizes(like))

    found = patches(source[:n], np.zeros([n, *counts, 2]))
    np.testing.assert_array_equal(found, _patches(source, windows, counts)[:n])


@pytest.mark.parametrize("padding", ["VALID", "SAME"])
def test_unknown_sizes(padding):
    windows = Windows((3, 2), (2, 1), (1, 1), padding)
    source = np.random.default_rng(0).normal(size=(2, 6, 5, 3))
    counts = [2, 4] if padding == "VALID" else [3, 5]

    @tf.function(input_signature=[tf.TensorSpec([None] * 3 + [3], tf.float64)] * 2)
    def both(source, like):
        counts = spatial_sizes(like)
        return windows.patches(source, counts), windows.patches_in_long_runs(source, counts)

    for patches in both(source, np.zeros([2, *counts, 3])):
        np.testing.assert_array_equal(patches, _patches(source, windows, counts))


@pytest.mark.parametrize("most", [0, 4, 2**16])
@pytest.mark.parametrize("groups", [1, 2])
def test_places_are_the_same_whether_the_graph_holds_or_computes_them(monkeypatch, most, groups):
    monkeypatch.setattr(convolution_windows, "_MOST_IN_GRAPH", most)
    source = np.arange(2 * 5 * 4 * 4, dtype=np.float32).reshape(2, 5, 4, 4)
    windows = Windows((3, 2), (2, 1), (1, 1), "VALID")
    by_loop = _patches(source, windows, [2, 3])
    for spec in ([2, 5, 4, 4], [None, None, None, 4]):
        run = tf.function(
            lambda x: windows.patches(x, [2, 3] if x.shape[1] else spatial_counts(x), groups),
            input_signature=[tf.TensorSpec(spec)],
        )
        found = np.reshape(run(source), [2, groups, 6, 6, 4 // groups])
        expected = np.reshape(by_loop, [2, 6, 6, groups, 4 // groups])
        np.testing.assert_array_equal(found, np.transpose(expected, [0, 3, 1, 2, 4]))


def spatial_counts(source):
    """Returns how many windows of 3 x 2 there are at strides of 2 and 1."""
    return [(tf.shape(source)[1] - 3) // 2 + 1, tf.shape(source)[2] - 1]
