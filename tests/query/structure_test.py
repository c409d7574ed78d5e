"""Structures: what a prefix matches, and what is refused with both structures shown."""

import collections

import pytest
import tensorflow as tf

from tfdp.query.structure import describe, flatten_up_to, paths_of

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


def test_structures_are_shown_by_dtype_and_shape():
    assert describe([tf.zeros([2, 3]), {"a": 1.0}]) == "[\"<dtype: 'float32'>(2, 3)\", {'a': '.'}]"
