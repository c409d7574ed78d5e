"""Structures: what a prefix matches, and what is refused with both structures shown."""

import collections

import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tfdp.query import DistributedSkellamSumQuery
from tfdp.query.structure import add, describe, flatten_up_to, paths_of

Point = collections.namedtuple("Point", ["x", "y"])


def test_parts_stand_where_the_prefix_has_leaves():
    record = {"b": [1, [2, 3]], "a": (4, 5)}
    assert flatten_up_to({"a": 0, "b": [0, 0]}, record) == [(4, 5), 1, [2, 3]]
    assert flatten_up_to(0, record) == [record]


def test_lists_match_tuples():
    assert flatten_up_to([0, 0], (1, 2)) == [1, 2]


@pytest.mark.parametrize(
    ("prefix", "record"),
    [([0, 0], [1]), ([0], {"a": 1}), ({"a": 0}, {"b": 1}), ({"a": 0}, {"a": 1, "b": 2}), ([0], 1)],
)
def test_other_structures_are_refused_and_both_are_shown(prefix, record):
    with pytest.raises(ValueError, match=r"Expected: .*\n  Received: "):
        flatten_up_to(prefix, record)


def test_paths_lead_to_leaves_in_the_order_of_flatten():
    assert paths_of(7) == [()]
    assert paths_of({"b": Point(1, [2, 3]), "a": 4}) == [
        ("a",),
        ("b", "x"),
        ("b", "y", 0),
        ("b", "y", 1),
    ]


GAUSSIAN = tfdp.GaussianSumQuery(1.0, 0.0)
SHAPES = [([5], [1]), ([1], [5]), ([2, 3], [1, 3]), ([2, 3], [3, 2]), ([5], []), ([0], [1])]
# Adds something to a state: a record, another state, and what Grappler can fold zeros of.
ADD = {
    "record": lambda state, other: GAUSSIAN.accumulate_record(1.0, state, other),
    "state": GAUSSIAN.merge_sample_states,
    "zeros": lambda state, other: add(state, tf.where(other > 0, other, tf.zeros_like(other))),
    "shares": lambda state, other: (
        SHARES.accumulate_record(
            (),
            SHARES.initial_sample_state(tf.cast(state, tf.int64)),
            tf.cast(other, tf.int64),
        ).sum
    ),
}
SHARES = DistributedSkellamSumQuery(1e9, 1e6, 2.0)


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("name", [name for name in ADD if name != "shares"])
@pytest.mark.parametrize("known", [(False, False), (True, False), (False, True)])
def test_shapes_that_are_known_late_are_compared_and_nothing_is_repeated(name, known, jit):
    for shapes in SHAPES:
        specs = [
            tf.TensorSpec(shape if is_known else [None] * len(shape))
            for shape, is_known in zip(shapes, known, strict=True)
        ]
        if not specs[0].shape.is_compatible_with(specs[1].shape):
            continue  # Refused when the graph is built.
        step = tf.function(ADD[name], input_signature=specs, jit_compile=jit)
        with pytest.raises(tf.errors.InvalidArgumentError, match="same size and shape"):
            step(*(tf.ones(shape) for shape in shapes))
        wanted = ADD[name](tf.ones(shapes[0]), tf.ones(shapes[0]))
        if not known[1]:
            np.testing.assert_array_equal(step(tf.ones(shapes[0]), tf.ones(shapes[0])), wanted)


def test_a_share_is_no_longer_than_its_record():
    specs = [tf.TensorSpec([5]), tf.TensorSpec([None])]
    step = tf.function(ADD["shares"], input_signature=specs)
    assert step(tf.ones([5]), tf.ones([5])).shape == [5]
    with pytest.raises(tf.errors.InvalidArgumentError, match="same size and shape"):
        step(tf.ones([5]), tf.ones([1]))


@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("name", ["record", "state"])
def test_shapes_that_differ_are_refused_eagerly(name, shapes):
    with pytest.raises(ValueError, match="Shapes or dtypes differ"):
        ADD[name](*(tf.ones(shape) for shape in shapes))


def test_a_sum_of_unknown_shape_keeps_what_is_known_of_it():
    @tf.function(input_signature=[tf.TensorSpec([None, 3]), tf.TensorSpec([2, None])])
    def total(left, right):
        assert add(left, right).shape == [2, 3]
        return add(add(left, right), right)

    np.testing.assert_array_equal(total(tf.ones([2, 3]), tf.ones([2, 3])), 3 * np.ones([2, 3]))


def test_structures_are_shown_by_dtype_and_shape():
    assert describe(tf.TensorSpec(None)) == "<dtype: 'float32'><unknown>"
    assert describe([tf.zeros([2, 3]), {"a": 1.0}]) == "[\"<dtype: 'float32'>(2, 3)\", {'a': '.'}]"
