"""Operations along every axis there is, vectorized: of each record, what it gives by itself.

`tf.vectorized_map` puts an axis of records in front and moves every other by one. Where it forgets
that an axis may be counted from the last one, records mix. It also forgets what is padded with.
"""

import inspect
import itertools
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.ops.parallel_for import pfor

from tests.gradients.problems import (
    assert_sums_agree,
    by_engine,
    model_of,
    normal,
    problem,
)
from tfdp.gradients import UnsupportedModelError, indices, vectorizing
from tfdp.gradients.mapping import map_records
from tfdp.query import GaussianSumQuery, NoPrivacySumQuery

L, K = keras.layers, keras.ops
N, SHAPE, RANK = 3, (2, 3, 3), 4
X = np.random.default_rng(0).normal(size=(N, *SHAPE)).astype("float32")
PLACES = np.random.default_rng(1).integers(0, 2, (N, 2, 2)).astype("int32")
PLACES[:, 0, 0] = [0, 1, 1]
AXES = range(-RANK, RANK)
NEW_AXES = range(-RANK - 1, RANK + 1)
PAIRS = [pair for pair in itertools.product(AXES, AXES) if (pair[0] - pair[1]) % RANK]
FLAGS = list(itertools.product([False, True], repeat=2))
GATHERED = [(1, 0), (-1, 0), (-3, 0), (2, 1), (-1, 1), (-2, -2)]
SLICES = [
    *[np.s_[:, 0], np.s_[..., 0], np.s_[..., -1], np.s_[None], np.s_[..., None], np.s_[..., ::-1]],
    *[np.s_[:, None, ..., 0], np.s_[:, -1:, ..., 1:], np.s_[0, ..., 0], np.s_[-1, -1, -1, -1]],
]


def along(make, axes=AXES):
    return lambda x, i: [make(x, axis) for axis in axes]


def around(axis):
    """Paddings along one axis, one place before and two after."""
    return [[1, 2] if a == axis else [0, 0] for a in range(RANK)]


def pad_by_places(x, i):
    before = i[0, 0, 0]
    return tf.pad(x, [[0, 0], [0, 0], [0, 0], [before, 1 - before]], constant_values=7.0)


def transpose_complex(x, order):
    return tf.math.real(tf.transpose(tf.complex(x, x), order, conjugate=True))


# name -> from a batch of one, and places of one, to a structure of what there is along every axis
OPERATIONS = {
    "all_any": along(lambda x, a: [tf.reduce_all(x > 0, a), tf.reduce_any(x > 1, [a])]),
    "arg": along(lambda x, a: [tf.argmax(x, a), tf.argmin(x, tf.constant(a, tf.int64))]),
    "concat": along(lambda x, a: tf.concat([x, -x, tf.ones([1, *SHAPE])], a)),
    "cumulative": along(
        lambda x, a: [[tf.cumsum(x, a, *f), tf.math.cumprod(x, a, *f)] for f in FLAGS]
    ),
    "expand_dims": along(tf.expand_dims, NEW_AXES),
    "gather": along(lambda x, a: tf.gather(x, [0, 0], axis=a)),
    "gather_from_fixed": lambda x, i: [tf.gather(X[0], i, axis=a) for a in range(-3, 3)],
    "gather_places": lambda x, i: [tf.gather(x, i, axis=a, batch_dims=b) for a, b in GATHERED],
    "one_hot": lambda x, i: [tf.one_hot(i, 3, axis=a) for a in range(-1, RANK)],
    "pad": along(lambda x, a: tf.pad(x, around(a)), range(RANK)),
    "pad_by_places": pad_by_places,
    "pad_fixed": lambda x, i: tf.pad(X[0], around(2)[1:], constant_values=x[0, 0, 0, 0]),
    "pad_in_a_loop": lambda x, i: tf.while_loop(
        lambda k, _: k < 2,
        lambda k, y: (k + 1, tf.pad(y, around(1), constant_values=-5.0)[:, 1:-1]),
        (0, x),
        shape_invariants=(tf.TensorShape([]), tf.TensorShape([1, None, *SHAPE[1:]])),
    )[1],
    "pad_with_a_number": along(
        lambda x, a: [tf.pad(x, around(a), constant_values=c) for c in (-5.0, np.nan, -np.inf)],
        range(RANK),
    ),
    "pad_with_a_number_of_a_record": along(
        lambda x, a: tf.pad(x, around(a), constant_values=x[0, 1, 2, 0]), range(RANK)
    ),
    "pad_with_what_is_no_float": along(
        lambda x, a: [
            tf.pad(tf.cast(10 * x, tf.int32), around(a), constant_values=9),
            tf.pad(x > 0, around(a), constant_values=True),
        ],
        range(RANK),
    ),
    "reduce": along(
        lambda x, a: [
            f(x, axes, keepdims=k)
            for k in (False, True)
            for axes in (a, [a])
            for f in (tf.reduce_sum, tf.reduce_prod, tf.reduce_max, tf.reduce_min, tf.reduce_mean)
        ]
    ),
    "reduce_pairs": along(lambda x, a: [tf.reduce_sum(x, a), tf.reduce_max(x, a)], PAIRS),
    "repeat": along(lambda x, a: tf.repeat(x, 2, a)),
    "reverse": along(lambda x, a: tf.reverse(x, [a])),
    "roll": along(lambda x, a: [tf.roll(x, 1, a), keras.ops.roll(x, 1, a)]),
    "roll_by_places": lambda x, i: [tf.roll(x, tf.reduce_sum(i)[None], [a]) for a in AXES],
    "roll_in_a_loop": along(
        lambda x, a: tf.while_loop(
            lambda k, _: k < 2, lambda k, y: (k + 1, tf.roll(y, 1, a)), (0, x)
        )[1]
    ),
    "roll_pairs": along(lambda x, a: tf.roll(x, [1, 2], a), list(itertools.product(AXES, AXES))),
    "shift_of_frequencies": along(
        lambda x, a: [tf.signal.fftshift(x, [a]), tf.signal.ifftshift(x, [a])]
    ),
    "slice": along(lambda x, s: x[s], SLICES),
    "softmax": along(lambda x, a: [tf.nn.softmax(x, a), tf.nn.log_softmax(x, a)]),
    "sort": along(lambda x, a: [tf.sort(x, a), tf.argsort(x, a)]),
    "split": along(lambda x, a: tf.split(x, 1, a)),
    "split_sizes": along(lambda x, a: tf.split(x, [1, -1], a), [-3, -2, -1, 1, 2, 3]),
    "squeeze": along(lambda x, a: tf.squeeze(x[:, :1], a), [-4, -3, 0, 1]),
    "stack": along(lambda x, a: tf.stack([x, -x], a), NEW_AXES),
    "tensordot": along(lambda x, a: tf.tensordot(x, x, [[a[0]], [a[1]]]), [(-1, -1), (2, -1)]),
    "transpose": along(
        lambda x, a: [tf.transpose(x, a), transpose_complex(x, a)],
        list(itertools.permutations(range(RANK))),
    ),
    "unstack": along(lambda x, a: tf.unstack(x, axis=a)),
}


def alone(function):
    one = tf.function(function, autograph=False)
    rows = [tf.nest.flatten(one(X[i : i + 1], PLACES[i : i + 1])) for i in range(N)]
    return [np.stack(leaves) for leaves in zip(*rows, strict=True)]


def vectorized(function):
    leaves = [tf.constant(X), tf.constant(PLACES)]
    call, _ = map_records(lambda record: function(*record), leaves)
    return [np.asarray(leaf) for leaf in tf.nest.flatten(call(*leaves))]


def assert_same(function):
    for actual, expected in zip(vectorized(function), alone(function), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_every_axis(name):
    assert_same(OPERATIONS[name])


def test_every_operation_that_is_vectorized_and_has_an_axis_is_among_them():
    def has_axis(name):
        make = getattr(tf.raw_ops, name, None)
        return make and {"axis", "dimension", "perm"} & set(inspect.signature(make).parameters)

    def types(graph):
        functions = [f.graph for f in graph._functions.values() if hasattr(f, "graph")]
        return {op.type for op in graph.get_operations()}.union(*map(types, functions))

    specs = tf.TensorSpec([1, *SHAPE]), tf.TensorSpec([1, 2, 2], tf.int32)
    tested = set().union(
        *(types(tf.function(f).get_concrete_function(*specs).graph) for f in OPERATIONS.values())
    )
    assert {name for name in pfor._pfor_converter_registry if has_axis(name)} <= tested


@pytest.mark.parametrize(
    "name", [name for name in sorted(OPERATIONS) if "roll" in name or re.match("pad_.*_a_", name)]
)
def test_tensorflow_alone_would_do_something_else(name, monkeypatch):
    """Power: without rows of their own, a roll along the last axis is one along records, and what
    is padded with a number is padded with zeros.
    """
    unchecked = indices.Check((0, 1, 2), lambda op, inputs: (inputs, tf.constant(True)))
    monkeypatch.delitem(vectorizing._CONVERTERS, "Roll")
    monkeypatch.setitem(indices.CHECKS, "PadV2", unchecked)
    with pytest.raises(AssertionError):
        assert_same(OPERATIONS[name])


PADDED = {
    "with_a_number": lambda x: tf.pad(x, [[0, 0], [0, 2]], constant_values=-5.0),
    "with_infinity": lambda x: tf.pad(x, [[0, 0], [0, 2]], constant_values=-np.inf),
    "with_a_mean": lambda x: keras.ops.pad(x, [[0, 0], [1, 1]], constant_values=keras.ops.mean(x)),
}


@pytest.mark.parametrize("engine", ["vectorized", "bookkeeping"])
@pytest.mark.parametrize("name", sorted(PADDED))
def test_gradients_of_what_is_padded_with_a_number(name, engine):
    make = lambda: keras.layers.Lambda(lambda x: tf.exp(PADDED[name](x)))  # noqa: E731
    loss, variables, examples = problem(model_of(make, (4,)), normal(4))
    query = GaussianSumQuery(l2_norm_clip=0.3, stddev=1.0)
    assert_sums_agree(*(by_engine(loss, variables, examples, query, e) for e in (engine, "loop")))


@pytest.mark.parametrize("engine", ["vectorized", "bookkeeping"])
def test_a_record_does_not_reach_its_neighbour(engine):
    """A layer that rolls the features of a record: the sum of two lots is that of both."""
    query = GaussianSumQuery(l2_norm_clip=0.3, stddev=1.0)
    make = lambda: keras.layers.Lambda(lambda x: keras.ops.roll(x, 1, axis=-1))  # noqa: E731
    loss, variables, (x, y) = problem(model_of(make, (4,)), normal(4))

    def total(rows):
        return by_engine(loss, variables, (x[rows], y[rows]), query, engine)

    parts = zip(total(slice(0, 2)), total(slice(2, 4)), total(slice(0, 4)), strict=True)
    for first, second, both in parts:
        np.testing.assert_allclose(first + second, both, atol=1e-6)


class Rolling(NoPrivacySumQuery):
    """Rolls every record along its last axis."""

    def preprocess_record(self, params, record):
        return tf.nest.map_structure(lambda leaf: tf.roll(leaf, 1, -1), record)


@pytest.mark.parametrize("engine", ["vectorized", "bookkeeping"])
def test_query_that_rolls_records(engine):
    query = Rolling()
    loss, variables, examples = problem(model_of(lambda: keras.layers.Dense(4), (4,)), normal(4))
    assert_sums_agree(*(by_engine(loss, variables, examples, query, e) for e in (engine, "loop")))


# Keras adds what is a vector but for axes of length 1 as a bias, along the last axis if that is as
# long. The axis of a batch of one is such an axis.
ADDED_ELSEWHERE = {
    "columns": lambda x: K.add(x, x[:, :, :1]),
    "pairs": lambda x: x + K.add(K.transpose(x[:, :, :1], (0, 2, 1)), x[:, :, 1:2]),
    "by_a_layer": lambda x: L.Add()([x, K.mean(x, -1, keepdims=True)]),
    "in_a_loop": lambda x: tf.while_loop(
        lambda i, _: i < 2, lambda i, y: [i + 1, K.add(y, y[:, :, :1])], [0, x]
    )[1],
}
ADDED_THERE = {
    "rows": lambda x: K.add(x, x[:, :1]),
    "as_it_broadcasts": lambda x: x + x[:, :, :1],
    "by_subtraction": lambda x: K.subtract(x, -x[:, :, :1]),
    "of_another_length": lambda x: K.add(x[:, :, :3], x[:, :, :1]),
    "twice": lambda x: K.add(K.add(y := x[:, :, :1], K.tanh(y)), K.add(y, K.sin(y))),
}


@pytest.mark.parametrize("engine", ["vectorized", "bookkeeping", "loop"])
@pytest.mark.parametrize("name", sorted(ADDED_ELSEWHERE))
def test_numbers_that_are_added_elsewhere_for_one_record_are_refused(name, engine):
    make = lambda: L.Lambda(ADDED_ELSEWHERE[name])  # noqa: E731
    loss, variables, examples = problem(model_of(make, (4, 4)), normal(4, 4))
    query = GaussianSumQuery(l2_norm_clip=0.3, stddev=1.0)
    with pytest.raises(UnsupportedModelError, match=r"keras\.ops\.subtract"):
        by_engine(loss, variables, examples, query, engine)


@pytest.mark.parametrize("engine", ["vectorized", "bookkeeping"])
@pytest.mark.parametrize("name", sorted(ADDED_THERE))
def test_numbers_that_are_added_in_the_same_place(name, engine):
    make = lambda: L.Lambda(ADDED_THERE[name])  # noqa: E731
    loss, variables, examples = problem(model_of(make, (4, 4)), normal(4, 4))
    query = GaussianSumQuery(l2_norm_clip=0.3, stddev=1.0)
    assert_sums_agree(*(by_engine(loss, variables, examples, query, e) for e in (engine, "loop")))


def test_a_model_that_runs_on_the_batch_adds_as_keras_does():
    def model(added):
        keras.utils.set_random_seed(1)
        x = keras.Input((4, 4))
        h, column = L.Dense(4)(x), L.Dense(1)(x)
        return keras.Model(x, L.Dense(2)(L.Flatten()(added(h, column))))

    query = GaussianSumQuery(l2_norm_clip=0.3, stddev=1.0)
    sums = []
    for added in (lambda h, c: h + c, lambda h, c: h - (-c)):
        loss, variables, examples = problem(model(added), normal(4, 4))
        for v in variables:  # They come in another order.
            v.assign(0.3 * np.random.default_rng(list(v.shape)).normal(size=v.shape))
        total = by_engine(loss, variables, examples, query, "bookkeeping")
        sums.append(sorted(total, key=lambda leaf: leaf.shape))  # All shapes differ.
    assert_sums_agree(*sums)


FIRST_AXIS = {
    "conv1d": (lambda: L.Conv1D(2, 2, data_format="channels_first"), (3, 5)),
    "conv2d": (lambda: L.Conv2D(2, 2, data_format="channels_first"), (3, 4, 5)),
    "conv3d": (lambda: L.Conv3D(2, 2, data_format="channels_first"), (3, 4, 4, 4)),
    "einsum": (lambda: L.EinsumDense("abc,cd->abd", (5, 4), bias_axes="b"), (5, 3)),
}


@pytest.mark.parametrize("name", sorted(FIRST_AXIS))
def test_bias_along_the_first_axis(name):
    """TensorFlow vectorizes its gradient for images alone."""
    make, shape = FIRST_AXIS[name]
    loss, variables, examples = problem(model_of(make, shape), normal(*shape))
    query = GaussianSumQuery(l2_norm_clip=0.3, stddev=1.0)
    engines = ("vectorized", "bookkeeping")
    assert_sums_agree(*(by_engine(loss, variables, examples, query, e) for e in engines))
