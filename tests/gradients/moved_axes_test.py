"""Where the axis of records is after an operation: all small cases, held against its numbers."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from tfdp.gradients.moved_axes import axis_after
from tfdp.gradients.static_values import static_value

RECORDS = 5


def slices(rank):
    """Strided slices with each mask on each axis, whole or in part."""
    kinds = [slice(None), slice(0, 1), slice(None, None, -1), slice(1, None), 0, -1]
    for number in range(1, rank + 1):
        yield from itertools.product(kinds, repeat=number)
    yield (..., 0)
    yield (np.newaxis, slice(None))


def operations(rank):
    """Yields functions of a tensor of this rank."""
    for order in itertools.permutations(range(rank)):
        yield lambda x, order=order: tf.transpose(x, order)
        yield lambda x, order=order: tf.transpose(x, [a - rank for a in order])
    for axis in range(-rank - 1, rank + 1):
        yield lambda x, axis=axis: tf.expand_dims(x, axis)
    for axis in range(-rank, rank):
        yield lambda x, axis=axis: tf.unstack(x, x.shape[axis] or RECORDS, axis)[0]
        yield lambda x, axis=axis: tf.split(x, [1, -1], axis)[0]
        yield lambda x, axis=axis: tf.split(x, x.shape[axis] or RECORDS, axis)[0]
        yield lambda x, axis=axis: tf.squeeze(x[..., tf.newaxis], axis)
    for number in range(rank):
        for axes in itertools.combinations(range(rank), number):
            yield lambda x, axes=axes: tf.squeeze(x, axes)
    for where in slices(rank):
        yield lambda x, where=where: x[where]
    yield lambda x: tf.reverse(x, [0])
    yield lambda x: tf.reduce_sum(x, 0, keepdims=True)
    yield tf.identity


def axes_and_results(functions, x, axis):
    """Returns (axis after it, what it gives) of each function that is one operation whose axis is
    known, from one graph.
    """
    shape = [None if a == axis else n for a, n in enumerate(x.shape)]
    axes = []

    @tf.function(autograph=False)
    def run(x):
        graph, results = tf.compat.v1.get_default_graph(), []
        for function in functions:
            before = len(graph.get_operations())
            try:
                result = function(x)
            except ValueError:  # No such slice, or nothing to squeeze.
                continue
            made = graph.get_operations()[before:]
            made = [op for op in made if op.type not in ("Const", "Placeholder")]
            if len(made) == 1:
                op, *_ = made
                others = [static_value(t) for t in op.inputs if t is not x]
                after = axis_after(op, x, others, axis)
                if after is not None:
                    axes.append(after)
                    results.append(result)
        return results

    results = run.get_concrete_function(tf.TensorSpec(shape, tf.float32))(tf.constant(x))
    return list(zip(axes, results, strict=True))


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_records_are_along_the_axis_that_is_said(rank):
    known, axes = 0, set()
    for axis in range(rank):
        for length in (1, 2):
            shape = [RECORDS if a == axis else length for a in range(rank)]
            numbers = np.arange(RECORDS, dtype=np.float32)
            x = np.broadcast_to(
                np.expand_dims(numbers, [a for a in range(rank) if a != axis]), shape
            )
            for after, result in axes_and_results(operations(rank), x, axis):
                known += 1
                axes.add(after)
                by_record = np.moveaxis(np.asarray(result), after, 0)
                assert len(by_record) == RECORDS
                for record, part in enumerate(by_record):
                    assert (part == record).all()
    assert known > 8 * rank and axes == set(range(rank + 1))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: tf.squeeze(x),  # Takes away the axis of records where there is one record.
        lambda x: x[:, 0],
        lambda x: x[:, :2],
        lambda x: x[:, ::-1],
        lambda x: x[:, 1:],
        lambda x: tf.unstack(x, RECORDS, 1)[0],
        lambda x: tf.split(x, RECORDS, 1)[0],
        lambda x: x[..., 0],
        lambda x: x[tf.newaxis],
        lambda x: x + x,
        lambda x: tf.reduce_sum(x, 0),
    ],
)
def test_what_is_not_known_to_leave_the_axis_of_records_is_none(function):
    x = np.zeros([2, RECORDS, 2], np.float32)
    assert axes_and_results([function], x, 1) == []
