"""Where the axis of records is after an operation: all small cases, held against its numbers."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from tfdp.gradients.moved_axes import Operand, axis_after
from tfdp.gradients.static_values import static_value

RECORDS = 5


def slices(rank):
    """Strided slices with each mask on each axis, whole or in part."""
    kinds = [slice(None), slice(0, 1), slice(None, None, -1), slice(1, None), 0, -1]
    for number in range(1, rank + 1):
        yield from itertools.product(kinds, repeat=number)
    yield (..., 0)
    yield from itertools.product([slice(None), np.newaxis, 0], repeat=min(rank + 1, 3))


def operations(rank):
    """Yields functions of a tensor of this rank."""
    for order in itertools.permutations(range(rank)):
        yield lambda x, order=order: tf.transpose(x, order)
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
    for axis in range(-rank, rank):
        yield lambda x, axis=axis: tf.reverse(x, [axis])
        yield lambda x, axis=axis: tf.roll(x, 1, axis)
        yield lambda x, axis=axis: tf.reduce_max(x, axis)
        yield lambda x, axis=axis: tf.reduce_mean(x, [axis], keepdims=True)
        yield lambda x, axis=axis: tf.stack([x, x], axis)
        yield lambda x, axis=axis: tf.concat([x, x], axis)
    yield tf.identity
    yield tf.floor
    yield lambda x: tf.maximum(x, x)
    yield lambda x: tf.reduce_max(x, [0, -1])


def operand(tensor, axis):
    return Operand(tensor.shape, axis, static_value(tensor) if axis is None else None)


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
                after = axis_after(op, [operand(t, axis if t is x else None) for t in op.inputs])
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
    assert known > 8 * rank and axes >= set(range(rank + 1))


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_axes_may_be_counted_from_the_end(order):
    """TensorFlow 2.18 ends the process where some such graphs run, so none does."""
    for axis in range(3):
        shape = [None if a == axis else 2 for a in range(3)]
        with tf.Graph().as_default():
            x = tf.compat.v1.placeholder(tf.float32, shape)
            results = tf.transpose(x, order), tf.transpose(x, [a - 3 for a in order])
            after = {
                axis_after(y.op, [operand(t, axis if t is x else None) for t in y.op.inputs])
                for y in results
            }
        assert after == {order.index(axis)}


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
        lambda x: tf.reduce_sum(x, 1),
        lambda x: tf.reduce_sum(x, [0, -2], keepdims=True),
        lambda x: x + tf.ones([RECORDS, 2]),
        lambda x: tf.nn.bias_add(tf.ones([2, RECORDS, 2]), x[0, :, 0]),
        lambda x: tf.cumsum(x, -2),
        lambda x: tf.roll(x, [1, 1], [0, 1]),
        lambda x: tf.concat([x, x], 1),
        lambda x: tf.matmul(tf.ones([4, RECORDS]), x),
        lambda x: tf.matmul(x, x, transpose_b=True),
        lambda x: tf.einsum("abc,abd->acd", x, x),
        lambda x: tf.einsum("abc,bcd->abcd", x, x),
        lambda x: tf.einsum("abc,bd->abcd", x, tf.ones([RECORDS, 2])),
    ],
)
def test_what_is_not_known_to_leave_the_axis_of_records_is_none(function):
    x = np.zeros([2, RECORDS, 2], np.float32)
    assert axes_and_results([function], x, 1) == []


def pairs(ranks):
    """Yields functions of two tensors of these ranks."""
    yield tf.add
    yield lambda x, y: tf.where(x > 0, x, y)
    yield lambda x, y: tf.nn.bias_add(x, y)
    for axis in range(-3, 3):
        yield lambda x, y, axis=axis: tf.concat([x, y], axis)
        yield lambda x, y, axis=axis: tf.stack([x, y], axis)
    for flips in itertools.product([False, True], repeat=2):
        yield lambda x, y, flips=flips: tf.matmul(x, y, *flips)
    terms = ("a", "b", "ab", "ba", "bc", "abc", "bac", "cab")
    operands = ([term for term in terms if len(term) == rank] for rank in ranks)
    for left, right, result in itertools.product(*operands, terms):
        letters = set(left + right)
        if set(result) <= letters:
            equation = f"{left},{right}->{result}"
            yield lambda x, y, equation=equation: tf.raw_ops.Einsum(
                inputs=[x, y], equation=equation
            )


def operands():
    """Yields (shape, axis of records or None) of a tensor."""
    for rank in (1, 2, 3):
        for axis in range(rank):
            yield [RECORDS if a == axis else 2 for a in range(rank)], axis
        yield [2] * rank, None
        for axis in range(rank):
            yield [1 if a == axis else 2 for a in range(rank)], None


def known_pairs(shapes, axes):
    """Returns (function, axis after it) of those of two tensors whose axis is known."""
    found = []
    open_shapes = [
        [None if a == axis else n for a, n in enumerate(shape)]
        for shape, axis in zip(shapes, axes, strict=True)
    ]
    with tf.Graph().as_default() as graph:
        tensors = [tf.compat.v1.placeholder(tf.float32, shape) for shape in open_shapes]
        for function in pairs(map(len, shapes)):
            before = len(graph.get_operations())
            try:
                function(*tensors)
            except ValueError:
                continue
            made = [op for op in graph.get_operations()[before:] if op.type != "Const"]
            op = made[-1]
            where = {t.name: axis for t, axis in zip(tensors, axes, strict=True)}
            if len(made) == 1 and all(t.name in where or t.op.type == "Const" for t in op.inputs):
                after = axis_after(op, [operand(t, where.get(t.name)) for t in op.inputs])
                if after is not None:
                    found.append((function, after))
    return found


def test_what_two_tensors_of_records_give_for_one_record_is_a_function_of_that_record():
    rng, known, axes_after = np.random.default_rng(0), 0, set()
    for (left, i), (right, j) in itertools.product(operands(), repeat=2):
        if i is None and j is None:
            continue
        for function, after in known_pairs((left, right), (i, j)):
            tensors = [rng.normal(size=shape).astype("float32") for shape in (left, right)]
            before = function(*tensors).numpy()
            for tensor, axis in zip(tensors, (i, j), strict=True):
                if axis is not None:
                    np.moveaxis(tensor, axis, 0)[0] += 1
            by_record, changed = (
                np.moveaxis(r, after, 0) for r in (before, function(*tensors).numpy())
            )
            assert len(changed) == RECORDS
            np.testing.assert_array_equal(changed[1:], by_record[1:])
            known += (changed[0] != by_record[0]).any()
            axes_after.add(after)
    assert known > 500 and axes_after == {0, 1, 2, 3}
