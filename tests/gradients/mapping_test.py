"""A function of one record for all records, and which tensors hold records."""

import numpy as np
import pytest
import tensorflow as tf

from tfdp.gradients import UnsupportedModelError
from tfdp.gradients.mapping import comes_from_records, holds_records, map_records, meets_records
from tfdp.gradients.onednn import corrupts_memory


def test_function_is_applied_to_batches_of_one():
    shapes = []

    def one(record):
        shapes.append(tuple(record[0].shape))
        return tf.reduce_sum(record[0]) * 2.0

    call, structure = map_records(one, [tf.zeros([3, 2])])
    np.testing.assert_allclose(call(tf.constant([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])), [6, 14, 22])
    assert set(shapes) == {(1, 2)}
    assert structure.shape.rank == 1


def test_structures_come_back_as_they_are():
    def one(record):
        return {"sum": tf.reduce_sum(record[0]), "none": None, "pair": (record[0][0], record[1][0])}

    leaves = [tf.constant([[1.0, 2.0], [3.0, 4.0]]), tf.constant([5, 6])]
    call, structure = map_records(one, leaves)
    found = call(*leaves)
    assert found["none"] is None and structure["none"] is None
    np.testing.assert_allclose(found["sum"], [3, 7])
    np.testing.assert_allclose(found["pair"][0], leaves[0])
    np.testing.assert_allclose(found["pair"][1], leaves[1])


@pytest.mark.parametrize(("n", "rows"), [(0, None), (1, None), (3, None), (0, 0), (1, 1), (3, 3)])
def test_any_number_of_records(n, rows):
    leaf = tf.reshape(tf.range(2.0 * n), [n, 2])
    call, _ = map_records(lambda record: record[0][0] * 2.0, [leaf], rows)
    np.testing.assert_allclose(call(leaf), 2 * leaf)


@pytest.mark.parametrize("rows", [1, None])
@pytest.mark.parametrize("squeezed", [tf.squeeze, lambda x: tf.squeeze(tf.reduce_sum(x)) * x[0]])
def test_one_record_keeps_its_axis(rows, squeezed):
    """TensorFlow's vectorized Squeeze drops every axis of length one. Keras squeezes biases."""
    leaf = tf.reshape(tf.range(6.0), [1, 6])
    call, structure = map_records(lambda record: squeezed(record[0]), [leaf], rows)
    np.testing.assert_array_equal(call(leaf), [squeezed(leaf)])
    assert structure.shape.as_list() == [rows, 6]


def test_a_function_is_traced_once():
    traces = []

    def one(record):
        traces.append(record)
        return tf.reduce_sum(record[0])

    map_records(one, [tf.zeros([3, 2])])
    assert len(traces) == 1


def test_a_mistake_of_the_caller_is_raised_as_it_is():
    def one(record):
        raise TypeError(f"a mistake in {record[0].dtype.name}")

    with pytest.raises(TypeError, match="^a mistake in float32"):
        map_records(one, [tf.zeros([3, 2])])  # A warning would be an error.


def test_what_is_printed_is_of_every_record(capfd):
    def one(record):
        tf.print("record", record[0][0, 0])
        return tf.reduce_sum(record[0])

    x = tf.constant([[1.0], [2.0]])
    map_records(one, [x])[0](x)
    assert capfd.readouterr().err.strip() == "record [1 2]"


def test_tensor_of_all_records_is_refused():
    @tf.function(autograph=False)
    def step(x):
        x = tf.compat.v1.placeholder_with_default(x, [None, 2])
        mean = tf.reduce_mean(x)
        return map_records(lambda record: tf.reduce_sum(record[0]) - mean, [x])[0](x)

    with pytest.raises(UnsupportedModelError, match="comes from all records"):
        step.get_concrete_function(tf.TensorSpec([3, 2]))


def test_records_are_an_axis_of_unknown_length():
    assert not holds_records(tf.zeros([3, 2]))
    with tf.Graph().as_default():
        records = tf.compat.v1.placeholder_with_default(tf.zeros([3, 2]), [None, 2])
        assert holds_records(records)
        assert comes_from_records(tf.reduce_mean(records))
        assert not comes_from_records(tf.zeros([3]) + 1.0)
        # [n, 2] meets records of rank 2, but positions of [n, t, 2].
        assert meets_records(records, 2)
        assert not meets_records(records, 3)
        # A constant of lower rank, or with one record, is the same for every record.
        assert meets_records(tf.zeros([2]), 2)
        assert meets_records(tf.zeros([1, 2]), 2)
        assert not meets_records(tf.zeros([3, 2]), 2)


def _below_one(x):
    return tf.reduce_sum(tf.abs(x)) < 1.0


# Of a record and a weight: what runs follows the record.
BY_RECORD = {
    "branch": lambda x, w: tf.cond(_below_one(x), lambda: tf.sin(x) * w, lambda: x * w * w),
    "branches": lambda x, w: tf.switch_case(
        tf.cast(_below_one(x), tf.int32), [lambda: x * w * w, lambda: tf.sin(x) * w]
    ),
    "turns": lambda x, w: tf.while_loop(
        lambda y: ~_below_one(y), lambda y: [y * y * w], [x], maximum_iterations=5
    )[0],
    "turns_in_a_function": lambda x, w: tf.function(BY_RECORD["turns"], autograph=False)(x, w),
    "branch_in_a_loop": lambda x, w: tf.while_loop(
        lambda i, _: i < 2, lambda i, y: [i + 1, BY_RECORD["branch"](y, w)], [0, x]
    )[1],
    "turns_with_an_array": lambda x, w: tf.while_loop(
        lambda i, y, _: (i < 3) & ~_below_one(y),
        lambda i, y, array: [i + 1, y * w * 0.5, array.write(i, tf.reduce_sum(y))],
        [0, x, tf.TensorArray(tf.float32, 3, element_shape=[])],
    )[2].stack(),
}
ROWS = {
    "all_turn": [[2.0, 1.0], [1.5, 1.0], [30.0, 1.0]],
    "one_turns": [[0.1, 0.2], [2.0, 1.0], [0.2, 0.3]],
    "none_turns": [[0.1, 0.2], [0.3, 0.1], [0.2, 0.3]],
}


@pytest.mark.filterwarnings("ignore:Gradients are computed one example at a time")
@pytest.mark.parametrize("name", sorted(BY_RECORD))
def test_gradients_of_what_runs_for_some_records(name):
    """TensorFlow vectorizes the gradient of a loop, and it ended the run for some records."""
    weight = tf.constant([0.7, 0.9])

    def one(record):
        with tf.GradientTape() as tape:
            tape.watch(weight)
            loss = tf.reduce_sum(tf.square(BY_RECORD[name](record[0], weight)))
        return loss, tape.gradient(loss, weight)

    call, _ = map_records(one, [tf.zeros([3, 2])])
    alone = tf.function(lambda record: one([record]), autograph=False)
    for rows in map(tf.constant, ROWS.values()):
        expected = [tf.stack(parts) for parts in zip(*(alone(r[None]) for r in rows), strict=True)]
        for actual, result in zip(call(rows), expected, strict=True):
            np.testing.assert_allclose(actual, result, rtol=1e-6)


def test_records_in_turn_are_warned_of():
    def one(record):
        with tf.GradientTape() as tape:
            tape.watch(record[0])
            value = BY_RECORD["branch"](record[0], 2.0)
        return tape.gradient(value, record[0])

    with pytest.warns(UserWarning, match="computed one example at a time, because TensorFlow"):
        map_records(one, [tf.zeros([3, 2])])


def test_what_runs_alike_for_all_records_is_vectorized():
    weight = tf.constant([0.7, 0.9])

    def one(record):
        with tf.GradientTape() as tape:
            tape.watch(weight)
            body = lambda i, y: [i + 1, y * weight]  # noqa: E731
            loop = tf.while_loop(lambda i, _: i < 3, body, [0, record[0]])
            loss = tf.reduce_sum(tf.cond(_below_one(weight), lambda: weight, lambda: weight**2))
            loss += tf.reduce_sum(loop[1])
        return tape.gradient(loss, weight)

    map_records(one, [tf.zeros([3, 2])])  # A warning would be an error.


@pytest.mark.parametrize("shape", [[3, 4], [4]])
def test_products_that_may_corrupt_memory_are_replaced(shape):
    weight = tf.ones([4, 2])
    call, _ = map_records(lambda record: tf.matmul(record[0], weight), [tf.ones([5, *shape])])
    assert not corrupts_memory(call.graph)
    assert not call.function_def.attr["_XlaMustCompile"].b
    np.testing.assert_array_equal(call(tf.ones([5, *shape])), tf.fill([5, 1, *shape[:-1], 2], 4.0))


def test_products_of_an_unknown_rank_are_compiled():
    weight = tf.ones([4, 2])

    def product(record):
        return tf.raw_ops.BatchMatMulV2(
            x=tf.raw_ops.PlaceholderWithDefault(input=record[0], shape=None), y=weight
        )

    call, _ = map_records(product, [tf.ones([5, 3, 4])])
    assert call.function_def.attr["_XlaMustCompile"].b
    np.testing.assert_array_equal(call(tf.ones([5, 3, 4])), tf.fill([5, 1, 3, 2], 4.0))
