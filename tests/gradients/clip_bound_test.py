"""No clipped record exceeds its bound, to the last bit: in exact arithmetic, for every engine.

Records are made so that rounding goes against the bound: equal coordinates, whose squares all round
the same way; one huge coordinate and many tiny ones; positions that cancel.
"""

from fractions import Fraction

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tests.numerics.exact import check_squares, exact_products, long, magnitude_of
from tfdp.gradients import ModelLoss
from tfdp.gradients.forms import convolution_cost
from tfdp.gradients.forms.convolution import ConvolutionGradient
from tfdp.gradients.forms.per_record import Explicit, Sum
from tfdp.gradients.forms.products import Outer, Product
from tfdp.gradients.forms.rows import Rows
from tfdp.query import norm_factors

DTYPES = ["float32", "float64"]


CLIP = 0.1  # In float32 0.1 is a little more than 0.1.


def exact_sum_of_squares(vector):
    """Returns the exact sum of squares of an array, as a fraction."""
    # An integer times a power of two: exact in Python, and one sum for each power.
    mantissas, exponents = np.frexp(np.asarray(vector, np.float64).ravel())
    integers = (mantissas * 2.0**53).astype(np.int64)
    total = Fraction(0)
    for exponent in np.unique(exponents):
        part = sum(int(i) ** 2 for i in integers[exponents == exponent])
        total += Fraction(part) * Fraction(2) ** (2 * (int(exponent) - 53))
    return total


def equal(size, rng):
    return np.full(size, 1 + rng.random())


def one_huge(size, rng):
    return np.r_[1e3, 1e-3 * (1 + np.full(size - 1, rng.random()))]


def just_above(size, rng):
    vector = rng.normal(size=size)
    return vector * (CLIP * (1 + 2.0**-24) / np.linalg.norm(vector))


def just_below(size, rng):
    vector = rng.normal(size=size)
    return vector * (CLIP * (1 - 2.0**-24) / np.linalg.norm(vector))


def subnormal_end(size, rng):
    return np.r_[1.0, np.full(size - 1, 1e-40)] * (1 + rng.random())


VECTORS = [equal, one_huge, just_above, just_below, subnormal_end]


def careless_factor(record):
    norm = tf.sqrt(tf.reduce_sum(tf.square(record)))
    clip = tf.cast(CLIP, norm.dtype)
    return clip / tf.maximum(norm, clip)


def exceeds(scaled, clip=CLIP):
    return exact_sum_of_squares(scaled) > Fraction(clip) ** 2


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("make", VECTORS)
@pytest.mark.parametrize("size", [1, 7, 64, 1000, 1021, 4096, 70_000])
def test_clipped_record_is_within_the_bound(make, size, dtype):
    query = tfdp.GaussianSumQuery(CLIP, 1.0)
    rng = np.random.default_rng(0)
    for _ in range(3 if size > 1000 else 20):
        record = tf.constant(make(size, rng), dtype)
        assert not exceeds(query.preprocess_record(CLIP, record))


@pytest.mark.parametrize("jit_compile", [False, True])
def test_a_million_equal_coordinates(jit_compile):
    query = tfdp.GaussianSumQuery(CLIP, 1.0)
    clip = tf.function(lambda r: query.preprocess_record(CLIP, r), jit_compile=jit_compile)
    for value in (1.1, 1.7):
        record = tf.fill([1_000_000], tf.constant(value))
        clipped = np.unique(clip(record))
        assert len(clipped) == 1
        assert 1_000_000 * Fraction(float(clipped[0])) ** 2 <= Fraction(CLIP) ** 2


@pytest.mark.parametrize("make", [equal, one_huge, just_above])
def test_these_records_break_a_clip_that_ignores_rounding(make):
    rng = np.random.default_rng(0)
    records = [tf.constant(make(1000, rng), tf.float32) for _ in range(20)]
    assert any(exceeds(careless_factor(r) * r) for r in records)


@pytest.mark.parametrize("dtype", DTYPES)
def test_record_clearly_below_the_bound_is_not_touched(dtype):
    # With n numbers the norm is taken for up to (n + 10) u more than it is.
    rng = np.random.default_rng(0)
    for size in (1, 10, 1000):
        vector = rng.normal(size=size)
        vector *= CLIP * (1 - 1e-4) / np.linalg.norm(vector)
        record = tf.constant(vector, dtype)
        clipped = tfdp.GaussianSumQuery(CLIP, 1.0).preprocess_record(CLIP, record)
        np.testing.assert_array_equal(clipped, record)


@pytest.mark.parametrize("dtype", DTYPES)
def test_clipping_gives_little_away(dtype):
    # (7 + 10) u with seven coordinates.
    u = 2.0**-24 if dtype == "float32" else 2.0**-53
    clipped = tfdp.GaussianSumQuery(CLIP, 1.0).preprocess_record(
        CLIP, tf.constant(np.arange(1.0, 8.0), dtype)
    )
    norm_squared = exact_sum_of_squares(clipped) / Fraction(CLIP) ** 2
    assert 1 - 40 * u < norm_squared <= 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("make", VECTORS)
def test_queries_of_several_groups(make, dtype):
    scales = [0.3, 7.0, 1.0]
    joint = tfdp.JointClippingQuery(scales, CLIP, 1.0)
    nested = tfdp.NestedQuery([tfdp.GaussianSumQuery(c, 1.0) for c in (0.1, 0.3, 1e-12)])
    weighted = tfdp.query.WeightedSumQuery(tfdp.GaussianSumQuery(CLIP, 1.0), 3.3)
    rng = np.random.default_rng(0)
    for _ in range(10):
        record = [tf.constant(make(n, rng), dtype) for n in (100, 10, 1)]
        assert not exceeds(np.concatenate(joint.preprocess_record((), record)))
        params = nested.derive_sample_params(nested.initial_global_state())
        parts = nested.preprocess_record(params, record)
        for part, clip in zip(parts, (0.1, 0.3, 1e-12), strict=True):
            assert not exceeds(part, clip)
        weight = tf.constant(3.3, tf.float64)
        heavy = tfdp.query.WeightedRecord(record[0], weight)
        assert not exceeds(weighted.preprocess_record(CLIP, heavy), 3.3 * CLIP)


@pytest.mark.parametrize("dtype", DTYPES)
def test_outer_products_and_explicit_gradients(dtype):
    rng = np.random.default_rng(0)
    left = np.stack([equal(700, rng), one_huge(700, rng), rng.normal(size=700)]).astype(dtype)
    right = np.stack([equal(300, rng), one_huge(300, rng), rng.normal(size=300)]).astype(dtype)
    exact = exact_products(left[:, None], right[:, None])
    magnitude = magnitude_of(left[:, None], right[:, None])
    check_squares(Outer(tf.constant(left), tf.constant(right)).squared_norms(), exact, magnitude)
    check_squares(Explicit(tf.constant(left)).squared_norms(), left, 0 * magnitude)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("t", [6, 300])
def test_rows_that_cancel(t, dtype):
    rng = np.random.default_rng(0)
    ids = np.stack([np.arange(t) // 2 % 3, np.zeros(t, int), rng.integers(0, 3, t)])
    signs = np.where(np.arange(t) % 2, -1.0, 1.0)[:, None]
    rows = np.stack([signs * 1.3 * np.ones([1, 40])] * 3)
    rows[1:] += 1e-6 * rng.normal(size=[2, t, 40])
    rows = rows.astype(dtype)
    exact = np.zeros([3, 3, 40], np.longdouble)
    for i in range(3):
        np.add.at(exact[i], ids[i], long(rows[i]))
    gradient = Rows(tf.constant(ids), tf.constant(rows), 3)
    # A row of the table that cancels has no error from the other rows.
    check_squares(gradient.squared_norms(), exact, 0 * rows[:, 0, 0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("way", convolution_cost.WAYS)
def test_convolutions_whose_positions_cancel(way, dtype):
    rng = np.random.default_rng(0)
    inputs = np.stack([np.full([7, 7, 5], 1.3), 1 + 1e-6 * rng.random([7, 7, 5])]).astype(dtype)
    signs = np.where(np.arange(25) % 2, -1.0, 1.0).reshape(5, 5, 1)
    signs[0, 0] = 0
    gradients = np.stack([signs * np.full([1, 1, 6], 0.7), signs * rng.random([1, 1, 6])])
    gradients = gradients.astype(dtype)
    patches = np.stack(
        [inputs[:, i : i + 3, j : j + 3].reshape(2, -1) for i in range(5) for j in range(5)], 1
    )
    positions = gradients.reshape(2, 25, 6)
    exact = exact_products(patches, positions)
    magnitude = magnitude_of(patches, positions)
    gradient = ConvolutionGradient(
        tf.constant(inputs), tf.constant(gradients), (3, 3, 5, 6), way=way
    )
    if gradient._layout.makes_gradients:  # What was made is what enters the sum.
        exact, magnitude = gradient.explicit().numpy(), 0 * magnitude
    check_squares(gradient.squared_norms(), exact, magnitude)
    assert (gradient.magnitudes().numpy() * (1 + 1e-6) >= magnitude).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_uses_of_one_variable_that_cancel(dtype):
    rng = np.random.default_rng(0)
    left, right = rng.normal(size=(2, 3, 8, 40)).astype(dtype)
    product = Product(tf.constant(left[:, None]), tf.constant(right[:, None]), [40, 40], gram=True)
    rows = -exact_products(left, right).astype(dtype)
    ids = np.stack([np.arange(40)] * 3)
    table = Rows(tf.constant(ids), tf.constant(rows), 40)
    exact = exact_products(left, right) + long(rows)
    magnitude = magnitude_of(left, right) + np.linalg.norm(rows, axis=(1, 2))
    check_squares(Sum([product, table]).squared_norms(), exact, magnitude)
    check_squares(Sum([table, product]).squared_norms(), exact, magnitude)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", ["explicit", "outer", "product", "rows"])
def test_microbatches_whose_examples_cancel(form, dtype):
    rng = np.random.default_rng(0)
    n, p, q = 9, 30, 20
    signs = np.r_[np.tile([1.0, -1.0], 4), 0.5]
    left = (1.3 * np.ones([n, 1, p]) + 1e-6 * rng.random([n, 1, p])).astype(dtype)
    right = (signs[:, None, None] * np.full([n, 1, q], 0.7)).astype(dtype)
    ids = np.zeros([n, 1], int)
    gradient, each = {
        "explicit": lambda: (Explicit(tf.constant(left)), long(left)),
        "outer": lambda: (
            Outer(tf.constant(left[:, 0]), tf.constant(right[:, 0])),
            exact_products(left, right),
        ),
        "product": lambda: (
            Product(tf.constant(left[:, None]), tf.constant(right[:, None]), [p, q], gram=True),
            exact_products(left, right),
        ),
        "rows": lambda: (Rows(tf.constant(ids), tf.constant(right), 2), long(right)),
    }[form]()
    segments = np.array([0, 0, 1, 1, 1, 1, 0, 0, 2])
    mask = np.arange(n) != 1
    exact = np.stack([each[(segments == s) & mask].sum(0) for s in range(3)])
    norms = np.sqrt(np.sum(each**2, axis=(1, 2))).astype(float)
    magnitude = [norms[(segments == s) & mask].sum() for s in range(3)]
    squares = gradient.segment_squared_norms(tf.constant(mask), tf.constant(segments, tf.int32), 3)
    check_squares(squares, exact, magnitude)


MODELS = {
    "dense": (lambda: [keras.layers.Dense(30)], (50,)),
    "sequence": (lambda: [keras.layers.Dense(40, "tanh"), keras.layers.Flatten()], (8, 30)),
    "convolution": (
        lambda: [keras.layers.Conv2D(8, 3, strides=2), keras.layers.Flatten()],
        (9, 9, 4),
    ),
    "normalization": (
        lambda: [keras.layers.LayerNormalization(), keras.layers.Flatten()],
        (8, 30),
    ),
}


@pytest.mark.parametrize("engine", ["bookkeeping", "vectorized", "loop"])
@pytest.mark.parametrize("name", MODELS)
def test_sum_of_one_record_is_within_the_bound(name, engine):
    keras.utils.set_random_seed(0)
    make_layers, shape = MODELS[name]
    model = keras.Sequential([keras.Input(shape), *make_layers(), keras.layers.Dense(1)])
    rng = np.random.default_rng(0)
    x = np.concatenate([np.full([1, *shape], 1.3), rng.normal(size=[5, *shape])])
    x = tf.constant(x, tf.float32)
    loss = ModelLoss(model, lambda y, outputs: tf.reduce_sum(outputs * y))
    y = tf.ones([6, 1])
    query = tfdp.GaussianSumQuery(CLIP, 1.0)

    @tf.function(autograph=False)
    def total(mask):
        return tfdp.clipped_gradient_sum(
            loss, model.trainable_variables, (x, y), query, mask=mask, engine=engine
        ).sample_state

    for i in range(6):
        sums = [np.asarray(leaf).ravel() for leaf in total(np.arange(6) == i)]
        assert not exceeds(np.concatenate(sums))


def test_group_norms_of_many_leaves():
    squares = [tf.constant([np.float32(1.1)])] * 200
    norm = norm_factors.group_norms(squares, [0] * 200, 1)
    assert Fraction(float(norm[0, 0])) ** 2 >= 200 * Fraction(float(np.float32(1.1)))
