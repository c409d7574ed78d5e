"""Graphs that may corrupt memory are recognised, and only those."""

import pytest
import tensorflow as tf

from tfdp.gradients.onednn import corrupts_memory, leaves_numbers_unwritten


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
    assert not corrupts_memory(graph_of([13, 1, 3, 4], [4, 16], harmless))


@pytest.mark.parametrize(
    ("channels", "strides", "windows", "expected"),
    [
        (1, (1, 3), 1, True),
        (1, (1, 1, 2), None, True),
        (1, (3, 1), 1, False),
        (1, (1, 3), 2, False),
        (2, (1, 3), 1, False),
        (1, (3,), 1, False),
    ],
)
def test_convolutions_that_leave_numbers_unwritten_are_recognised(
    channels, strides, windows, expected
):
    assert leaves_numbers_unwritten(channels, strides, windows) is expected
