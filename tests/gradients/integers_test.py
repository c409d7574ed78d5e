"""Integers of a record name places to read and write: whatever they are, records stay apart."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import op_def_pb2
from tensorflow.python.client import pywrap_tf_session as c_api

import tfdp
from tfdp.gradients import indices
from tfdp.gradients.indices import RecordDependentShapeError, in_range
from tfdp.gradients.rewriting import with_checks

ENGINES = ["bookkeeping", "vectorized", "loop"]
N, ROWS = 5, 7
CLIP = 0.25
HUGE = 2**31 - 1
BAD = [ROWS, -ROWS - 1, ROWS * N - 1, 10**6, HUGE, HUGE - 1, -HUGE - 1]


@tf.function
def _traced_before(table, ids):
    return tf.gather(table, ids)


# As a graph of its own that other graphs only call.
_traced_before.get_concrete_function(tf.TensorSpec([ROWS, 2]), tf.TensorSpec([1, 3], tf.int32))


def _in_a_loop(table, ids):
    def body(i, total):
        return i + 1, total + tf.gather(table, ids[0, i])

    # XLA differentiates only loops whose length is bounded.
    loop = tf.while_loop(lambda i, _: i < 3, body, (0, tf.zeros([2])), maximum_iterations=3)
    return loop[1]


def _in_a_branch(table, ids):
    order = tf.range(ROWS)[::-1]
    chosen = tf.cond(ids[0, 0] > 3, lambda: tf.gather(order, ids), lambda: ids)
    return tf.gather(table, chosen)


def _in_one_of_several(table, ids):
    order = tf.range(ROWS)[::-1]
    branches = [lambda: tf.gather(order, ids), lambda: ids, lambda: tf.gather(order, ids[:, ::-1])]
    return tf.gather(table, tf.switch_case(ids[0, 0] % 3, branches))


def _where_any(maxima):
    # Of nothing it is the lowest number.
    return tf.where(maxima < -1e9, 0.0, maxima)


# From a table [ROWS, 2] of weights and ids [1, 3] of a record to anything.
READS = {
    "gather": lambda table, ids: tf.gather(table, ids),
    "gather_along_last_axis": lambda table, ids: tf.gather(tf.transpose(table), ids, axis=-1),
    "gather_in_batches": lambda table, ids: tf.gather(table[None], ids, batch_dims=1),
    "take": lambda table, ids: keras.ops.take(table, ids, axis=0),
    "take_along_axis": lambda table, ids: keras.ops.take_along_axis(
        table[None], ids[..., None], axis=1
    ),
    "gather_nd": lambda table, ids: tf.gather_nd(table, ids[..., None]),
    "gather_nd_elements": lambda table, ids: tf.gather_nd(table, tf.stack([ids, ids % 2], -1)),
    "embedding_lookup": lambda table, ids: tf.nn.embedding_lookup(table, ids),
    "slice": lambda table, ids: tf.slice(table, [ids[0, 0], 0], [1, 2]),
    "item": lambda table, ids: table[ids[0, 0]],
    "item_of_last_axis": lambda table, ids: tf.transpose(table)[..., ids[0, 0]],
    "in_a_loop": _in_a_loop,
    "in_a_branch": _in_a_branch,
    "in_one_of_several": _in_one_of_several,
    "in_a_function": _traced_before,
    "bytes": lambda table, ids: tf.gather(table, tf.cast(tf.cast(ids, tf.uint8), tf.int32)),
    "wide": lambda table, ids: tf.gather(table, tf.cast(ids, tf.int64) * 2**20 // 2**20),
    "from_floats": lambda table, ids: tf.gather(
        table, tf.cast(1.0 * tf.cast(ids, "float32"), "int32")
    ),
    "two_steps": lambda table, ids: tf.gather(table, tf.gather(tf.range(ROWS)[::-1], ids)),
    "cross_entropy": lambda table, ids: tf.nn.sparse_softmax_cross_entropy_with_logits(
        ids[0], tf.repeat(tf.transpose(table)[:1], 3, 0)
    ),
}
# From rows of weights [3, 2], which are put at places.
WRITES = {
    "scatter_nd": lambda rows, ids: tf.scatter_nd(ids[0][:, None], rows, [ROWS, 2]),
    "tensor_scatter_add": lambda rows, ids: tf.tensor_scatter_nd_add(
        tf.ones([ROWS, 2]), ids[0][:, None], rows
    ),
    "tensor_scatter_update": lambda rows, ids: tf.tensor_scatter_nd_update(
        tf.ones([ROWS, 2]), ids[0][:, None], rows
    ),
    "tensor_scatter_max": lambda rows, ids: tf.tensor_scatter_nd_max(
        tf.ones([ROWS, 2]), ids[0][:, None], rows
    ),
    "segment_sum": lambda rows, ids: keras.ops.segment_sum(rows, ids[0], ROWS),
    "segment_max": lambda rows, ids: _where_any(keras.ops.segment_max(rows, ids[0], ROWS)),
    "segment_mean": lambda rows, ids: tf.math.unsorted_segment_mean(rows, ids[0], ROWS),
    "segment_prod": lambda rows, ids: tf.math.unsorted_segment_prod(rows, ids[0], ROWS),
}


OPERATIONS = {
    **{name: (read, [ROWS, 2]) for name, read in READS.items()},
    **{name: (write, [3, 2]) for name, write in WRITES.items()},
}


def _exists(name, place):
    """Returns whether TensorFlow or Keras document what a place out of range means."""
    if name == "bytes":
        return place % 256 < ROWS
    # Negative ones count from the end in Keras and in Python, and are left out of segments.
    lowest = -ROWS if name in ("take", "take_along_axis", "item", "item_of_last_axis") else 0
    return ("segment" in name and place < 0) or lowest <= place < ROWS


@pytest.mark.parametrize("name", OPERATIONS)
def test_checked_operation_is_the_same_in_range_and_nan_out_of_it(name):
    operation, shape = OPERATIONS[name]
    weights = tf.random.stateless_normal(shape, [1, 2])

    def value_and_gradient(record):
        with tf.GradientTape() as tape:
            tape.watch(weights)
            value = tf.reduce_sum(tf.square(operation(weights, record[0])))
        return value, tf.convert_to_tensor(tape.gradient(value, weights))

    checked = with_checks(value_and_gradient, [tf.TensorSpec([1, 3], tf.int32)])
    assert checked is not value_and_gradient
    compiled = tf.function(lambda ids: checked([ids]), autograph=False)
    for ids in ([0, 3, 3], [ROWS - 1, 1, 0]):
        ids = tf.constant([ids])
        for got, expected in zip(compiled(ids), value_and_gradient([ids]), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-6)
    for bad in BAD:
        value, gradient = compiled(tf.constant([[bad, 1, 2]]))
        assert np.isfinite(value) == _exists(name, bad), bad
        # No row is the largest where there is a NaN.
        assert "max" in name or np.isfinite(value) == np.isfinite(gradient).all(), bad


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.int32, np.uint32, np.int64])
@pytest.mark.parametrize(("lowest", "size"), [(0, 3), (-3, 3), (0, 200), (-200, 200), (0, 70_000)])
@pytest.mark.parametrize("as_tensor", [False, True])
def test_every_integer_is_in_range_or_replaced(dtype, lowest, size, as_tensor):
    """Bounds may be larger than the integers' own type holds."""
    limits = np.iinfo(dtype)
    edges = [
        limits.min,
        limits.max,
        lowest - 1,
        lowest,
        -1,
        0,
        1,
        size - 1,
        size,
        256 + 2,
        -(2**16),
    ]
    ids = np.array([e for e in edges if limits.min <= e <= limits.max], dtype)
    expected = (lowest <= ids.astype(object)) & (ids.astype(object) < size)
    safe, good = in_range(tf.constant(ids), tf.constant(size) if as_tensor else size, lowest, [])
    np.testing.assert_array_equal(good, expected.astype(bool))
    np.testing.assert_array_equal(safe.numpy()[good], ids[good])
    if lowest >= limits.min:
        np.testing.assert_array_equal(safe.numpy()[~good.numpy()], lowest)


def test_function_that_names_no_places_is_left_as_it_is():
    def fn(record):
        # Shapes are the same for all records.
        order = tf.gather(tf.range(2), tf.shape(record[0])[:1] % 2)
        return tf.nn.relu(record[0]) + tf.cast(tf.gather(order, 0), tf.float32)

    assert with_checks(fn, [tf.TensorSpec([1, 3])]) is fn


@pytest.mark.parametrize(
    "fn",
    [
        lambda ids: keras.ops.segment_sum(tf.ones([3]), ids[0], sorted=True),
        lambda ids: keras.ops.bincount(ids, minlength=ROWS),
        lambda ids: tf.ones([ROWS])[: ids[0, 0]],
        lambda ids: tf.slice(tf.ones([ROWS]), ids[0, :1], [-1]),
        lambda ids: tf.dynamic_partition(tf.ones([3]), ids[0], 2),
    ],
)
def test_shapes_that_follow_integers_are_refused(fn):
    checked = with_checks(lambda record: fn(record[0]), [tf.TensorSpec([1, 3], tf.int32)])
    with pytest.raises(ValueError, match="shape follows|slice|gather|bins"):
        tf.function(checked, autograph=False)([tf.zeros([1, 3], tf.int32)])


WEIGHTS = tf.random.stateless_normal([6], [3, 4])
# From an integer to a result that has a size or an axis, or is at a place, that the integer is.
SIZES = {
    "reshape": lambda n: tf.reshape(WEIGHTS, [n, -1])[0],
    "fill": lambda n: tf.fill([n], 1.0),
    "broadcast_to": lambda n: tf.broadcast_to(WEIGHTS, [n, 6]),
    "tile": lambda n: tf.tile(WEIGHTS, [n]),
    "repeat": lambda n: keras.ops.repeat(WEIGHTS, n),
    "range": lambda n: tf.range(n),
    "range_of_floats": lambda n: tf.range(0.0, 6.0, tf.cast(n, tf.float32)),
    "linspace": lambda n: tf.raw_ops.LinSpace(start=0.0, stop=1.0, num=n),
    "one_hot": lambda n: tf.one_hot(1, n),
    "eye": lambda n: tf.eye(n),
    "top_k": lambda n: tf.math.top_k(WEIGHTS, n)[0],
    "sequence_mask": lambda n: tf.cast(tf.sequence_mask(n), tf.float32),
    "draw": lambda n: tf.random.stateless_uniform([n], [1, 2]),
    "split": lambda n: tf.split(WEIGHTS, [n, 6 - n])[0],
    "band": lambda n: tf.linalg.band_part(tf.ones([3, 3]), n, 0),
    "diagonal": lambda n: tf.linalg.diag_part(tf.ones([3, 3]), k=n),
    "resize": lambda n: tf.image.resize(tf.ones([1, 2, 2, 1]), [n, n]),
    "number_of_segments": lambda n: tf.math.unsorted_segment_sum(WEIGHTS[:1], [0], n),
    "shape_to_scatter_to": lambda n: tf.scatter_nd([[0]], WEIGHTS[:1], [n]),
    "stitch": lambda n: tf.dynamic_stitch([[n]], [[1.0]]),
    "nth": lambda n: tf.raw_ops.NthElement(input=WEIGHTS, n=n),
    "sum": lambda n: tf.reduce_sum(WEIGHTS[None], n),
    "argmax": lambda n: tf.argmax(WEIGHTS, n),
    "cumsum": lambda n: tf.cumsum(WEIGHTS, n),
    "concat": lambda n: tf.concat([WEIGHTS, WEIGHTS], n),
    "expand": lambda n: tf.expand_dims(WEIGHTS, n),
    "transpose": lambda n: tf.transpose(WEIGHTS[None], [n, 1 - n]),
    "reverse": lambda n: tf.reverse(WEIGHTS, [n]),
    "slice_between": lambda n: tf.strided_slice(WEIGHTS, tf.stack([n]) * 1, tf.stack([n]) + 1),
    "loop": lambda n: tf.while_loop(lambda i: i < n, lambda i: [i + 1], [0])[0],
    "loop_that_begins_anywhere": lambda n: tf.while_loop(lambda i: i < 5, lambda i: [i + 1], [n])[
        0
    ],
    "in_a_function": lambda n: tf.function(tf.fill)([n], 1.0),
    "in_a_branch": lambda n: tf.cond(
        tf.size(WEIGHTS) > 3, lambda: tf.fill([n], 1.0), lambda: WEIGHTS
    ),
    "in_a_loop": lambda n: tf.map_fn(lambda w: tf.reduce_sum(tf.fill([n], w)), WEIGHTS),
}
SELECTIONS = {
    "where": lambda n: tf.where(tf.range(6) < n),
    "mask": lambda n: tf.boolean_mask(WEIGHTS, tf.range(6) < n),
    "unique": lambda n: tf.unique(tf.stack([n, 1]))[0],
    "difference": lambda n: tf.raw_ops.ListDiff(x=[1, 2, 3], y=tf.stack([n]))[0],
}


def refused(fn, *specs):
    """Returns the error that refuses a function of a record, or None."""
    checked = with_checks(lambda record: fn(record[0][0]), specs)
    try:
        tf.function(checked, autograph=False).get_concrete_function(list(specs))
    except RecordDependentShapeError as error:
        return str(error)
    return None


@pytest.mark.parametrize("name", [*SIZES, *SELECTIONS])
def test_sizes_and_axes_that_follow_integers_are_refused(name):
    error = refused({**SIZES, **SELECTIONS}[name], tf.TensorSpec([1], tf.int32))
    assert error is not None
    assert "from numbers of a record" in error or "slice whose length" in error


@pytest.mark.parametrize(
    "name",
    [n for n in SIZES if n not in ("loop", "loop_that_begins_anywhere", "sequence_mask")],
)
def test_tensorflow_ends_the_run_for_some_sizes(name):
    """Power: some small integer is an error of TensorFlow's, or makes other shapes."""

    def found(n):
        try:
            return tf.function(SIZES[name], autograph=False)(tf.constant(n)).shape
        except (tf.errors.OpError, ValueError):
            return "error"

    assert len({str(found(n)) for n in (-7, -1, 0, 1, 2, 3, 7)}) > 1


def test_every_integer_that_is_no_data_is_known():
    """Of all of TensorFlow's operations, by the names of their arguments."""
    words = "shape size dim dims axis depth num_segments multiples perm paddings reduction_indices"
    definitions = op_def_pb2.OpList()
    definitions.ParseFromString(c_api.TF_GetBuffer(c_api.TF_GetAllOpList()))
    integers = {t.as_datatype_enum for t in (tf.int32, tf.int64)}
    seen = set()
    for definition in definitions.op:
        types = {a.name: set(a.allowed_values.list.type) for a in definition.attr}
        for argument, is_size in indices._arguments(definition):
            if argument.name in words.split():
                kinds = types.get(argument.type_attr, {argument.type})
                if kinds <= integers and kinds:
                    assert is_size, (definition.name, argument.name)
                    seen.add(definition.name)
    assert len(seen) > 100
    assert {"Reshape", "Fill", "Sum", "ConcatV2", "Transpose"} <= seen


def test_functions_that_are_called_in_a_way_nobody_knows_are_refused():
    def of_each(n):
        one = tf.function(lambda place: tf.gather(WEIGHTS, place), autograph=False)
        return tf.raw_ops.MapDefun(
            arguments=[tf.stack([n, n])],
            captured_inputs=[],
            output_types=[tf.float32],
            output_shapes=[[]],
            f=one.get_concrete_function(tf.TensorSpec([], tf.int32)),
        )

    error = refused(of_each, tf.TensorSpec([1], tf.int32))
    assert "calls a function in a way that tfdp does not know" in error


def test_places_along_axes_that_nobody_knows_are_refused():
    def of_unknown_rank(n):
        return tf.compat.v1.placeholder_with_default(WEIGHTS, None)[n]

    def along_an_axis_of_its_own(n):
        return tf.gather(WEIGHTS, n, axis=tf.compat.v1.placeholder_with_default(0, []))

    spec = tf.TensorSpec([1], tf.int32)
    assert "slices a tensor of unknown rank" in refused(of_unknown_rank, spec)
    assert "an axis that is not fixed" in refused(along_an_axis_of_its_own, spec)


def test_lengths_of_what_is_reversed_are_checked():
    def fn(n):
        return tf.reverse_sequence(WEIGHTS[None], tf.reshape(n, [1]), seq_axis=1)

    checked = with_checks(lambda record: fn(record[0][0]), [tf.TensorSpec([1], tf.int32)])
    compiled = tf.function(checked, autograph=False)
    for n in (0, 4, 6):
        np.testing.assert_array_equal(compiled([tf.constant([n])]), fn(tf.constant(n)))
    for n in (-1, 7, HUGE):
        assert np.isnan(compiled([tf.constant([n])])).all()


def test_sizes_that_come_into_a_branch_from_elsewhere_are_taken():
    def of_branches(n):
        size = tf.shape(tf.compat.v1.placeholder_with_default(WEIGHTS, [None]))[0]
        return tf.cond(n > 2, lambda: tf.fill([size], 1.0), lambda: tf.fill([size], 2.0))

    assert refused(of_branches, tf.TensorSpec([1], tf.int32)) is None


def _reads_an_array(n):
    array = tf.TensorArray(tf.float32, 6, element_shape=[]).unstack(WEIGHTS)
    return array.read(n)


def _writes_to_an_array(n):
    array = tf.TensorArray(tf.float32, 6, element_shape=[]).unstack(WEIGHTS)
    return tf.reduce_sum(array.write(n, 1.0).stack())


@pytest.mark.parametrize("fn", [_reads_an_array, _writes_to_an_array])
def test_places_in_arrays_are_checked(fn):
    checked = with_checks(lambda record: fn(record[0][0]), [tf.TensorSpec([1], tf.int32)])
    compiled = tf.function(checked, autograph=False)
    for n in (0, 5):
        np.testing.assert_allclose(compiled([tf.constant([n])]), fn(n), rtol=1e-6)
    for n in (-1, 6, HUGE):
        assert np.isnan(compiled([tf.constant([n])]))
        with pytest.raises(tf.errors.OpError):
            tf.function(fn, autograph=False)(tf.constant(n))


def _array(number):
    return tf.raw_ops.TensorListFromTensor(tensor=[number], element_shape=tf.constant([], tf.int32))


def _array_of_a_branch(n):
    return tf.cond(n > 2, lambda: _array(99), lambda: _array(0))


def _array_of_a_loop(n):
    def body(i, array):
        return i + 1, tf.raw_ops.TensorListSetItem(input_handle=array, index=0, item=99)

    return tf.while_loop(lambda i, _: (i < n) & (i < 5), body, (0, _array(0)))[1]


@pytest.mark.parametrize("make", [_array_of_a_branch, _array_of_a_loop])
def test_what_is_in_an_array_follows_what_decides_about_it(make):
    """Both numbers in the array are fixed, and which of them is there follows the record."""

    def fn(n):
        place = tf.raw_ops.TensorListGetItem(
            input_handle=make(n), index=0, element_shape=[], element_dtype=tf.int32
        )
        return tf.gather(WEIGHTS, place)

    checked = with_checks(lambda record: fn(record[0][0]), [tf.TensorSpec([1], tf.int32)])
    compiled = tf.function(checked, autograph=False)
    assert compiled([tf.constant([0])]) == WEIGHTS[0]
    assert np.isnan(compiled([tf.constant([3])]))
    with pytest.raises(tf.errors.OpError):
        tf.function(fn, autograph=False)(tf.constant(3))


def _rounds(n, bound, step=1):
    """Loops for n rounds, which a bound may end before."""

    def goes_on(i, _):
        return (i < n) if bound is None else (i < n) & (i < bound)

    # Its gradient is a loop of as many rounds.
    def body(i, total):
        return i + step, total * tf.reduce_sum(tf.reshape(WEIGHTS * total, [2, -1])[0])

    return tf.while_loop(goes_on, body, (0, 1.0))[1]


def test_only_loops_without_a_bound_are_refused():
    spec = tf.TensorSpec([1], tf.int32)

    def with_gradient(fn):
        def call(n):
            with tf.GradientTape() as tape:
                tape.watch(WEIGHTS)
                value = fn(n)
            return value, tape.gradient(value, WEIGHTS)

        return call

    assert refused(with_gradient(lambda n: _rounds(n, 5)), spec) is None
    assert "number of iterations" in refused(lambda n: _rounds(n, None), spec)
    assert "number of iterations" in refused(lambda n: _rounds(n, n + 1), spec)
    assert "number of iterations" in refused(lambda n: _rounds(n, 5, step=-1), spec)

    def of_another_number(n):
        # What stands below the bound is each time one more than a number that stays.
        return tf.while_loop(lambda i, j: (i < n) & (i < 5), lambda i, j: (j + 1, j), (0, 0))[0]

    assert "number of iterations" in refused(of_another_number, spec)

    # No counter is below a number that stays.
    for goes_on in (
        lambda i, n: (i < n) & (i > -1),
        lambda i, n: (i < n) & (i + 1 < 5),
    ):
        loop = lambda n, go=goes_on: tf.while_loop(lambda i: go(i, n), lambda i: [i + 1], [0])[0]  # noqa: E731
        assert "number of iterations" in refused(loop, spec)


def _growing(n):
    """An array of which one branch makes more places."""
    array = tf.TensorArray(tf.float32, 3, dynamic_size=True, element_shape=[])
    return tf.cond(n > 2, lambda: array.write(7, 1.0), lambda: array.write(0, 1.0))


def _growing_in_a_loop(n):
    array = tf.TensorArray(tf.float32, 3, dynamic_size=True, element_shape=[])
    body = lambda i, a: [i + 1, a.write(7, 1.0)]  # noqa: E731
    return tf.while_loop(lambda i, _: (i < n) & (i < 5), body, [0, array])[1]


def _concatenated(n):
    return tf.while_loop(
        lambda i, _: (i < n) & (i < 5),
        lambda i, x: [i + 1, tf.concat([x, x], 0)],
        [0, tf.ones([1])],
        shape_invariants=[tf.TensorShape([]), tf.TensorShape([None])],
    )[1]


# Which branch runs, or how often a loop does, decides about a size that nobody gives.
DECIDED = {
    "branch": lambda n: tf.cond(n > 2, lambda: WEIGHTS, lambda: WEIGHTS[:1]),
    "branches": lambda n: tf.switch_case(
        n, [lambda: WEIGHTS, lambda: WEIGHTS, lambda: WEIGHTS[:1]]
    ),
    "ranks": lambda n: tf.cond(n > 2, lambda: WEIGHTS, lambda: WEIGHTS[0]),
    "loop": _concatenated,
    "size_of_an_array": lambda n: tf.gather(WEIGHTS, _growing(n).size()),
    "array": lambda n: _growing(n).stack(),
    "array_of_a_loop": lambda n: _growing_in_a_loop(n).stack(),
}


@pytest.mark.parametrize("name", sorted(DECIDED))
def test_sizes_that_branches_and_loops_decide_about_are_refused(name):
    error = refused(DECIDED[name], tf.TensorSpec([1], tf.int32))
    assert "takes its 'size of a result' from numbers of a record" in error


def _grown_inside(n):
    """The array is a branch's own."""
    array = tf.TensorArray(tf.float32, 1, dynamic_size=True, element_shape=[])
    return tf.cond(n > 2, lambda: array.write(0, 1.0).write(5, 1.0).stack()[0], lambda: 0.0)


def _grown_and_kept(n):
    """The same, and the branch gives an array of a size that is fixed."""
    array = tf.TensorArray(tf.float32, 3, element_shape=[])
    return tf.cond(n > 2, lambda: array.write(0, 1.0), lambda: array.write(1, 2.0)).stack()


def _concatenated_thrice(n):
    shapes = [tf.TensorShape([]), tf.TensorShape([None])]
    body = lambda i, x: [i + 1, tf.concat([x, x], 0)]  # noqa: E731
    start = [0, tf.cast(tf.reshape(n, [1]), tf.float32)]
    return tf.while_loop(lambda i, _: i < 3, body, start, shape_invariants=shapes)[1]


# What decides follows no record, or decides about numbers alone.
NOT_DECIDED = {
    "branch_of_weights": lambda n: tf.cond(
        WEIGHTS[0] > 0, lambda: WEIGHTS, lambda: WEIGHTS[:1] * tf.cast(n, tf.float32)
    ),
    "grown_inside": _grown_inside,
    "array_of_a_fixed_size": _grown_and_kept,
    "loop_of_a_fixed_number": _concatenated_thrice,
}


@pytest.mark.parametrize("name", sorted(NOT_DECIDED))
def test_sizes_that_no_record_decides_about_are_taken(name):
    def with_a_place(n):  # So that all is looked at, and made anew.
        return NOT_DECIDED[name](n), tf.gather(WEIGHTS, n)

    assert refused(with_a_place, tf.TensorSpec([1], tf.int32)) is None


@pytest.mark.filterwarnings("ignore:Gradients are computed one example at a time")
@pytest.mark.parametrize("engine", ["vectorized", "loop"])
def test_a_loss_whose_branches_have_other_sizes_is_refused_before_any_record(engine):
    """Power: the same loss with branches of one size is taken."""
    weights = tf.Variable(tf.ones([6]))

    def total(size):
        def loss(record):
            found = tf.cond(record[0] > 2, lambda: weights[:size] ** 2, lambda: weights[:6])
            return tf.reduce_sum(found * weights)

        query = tfdp.GaussianSumQuery(1.0, 0.0)
        records = tf.constant([1, 1])
        return tfdp.clipped_gradient_sum(loss, [weights], records, query, engine=engine)

    with pytest.raises(RecordDependentShapeError, match="size of a result"):
        total(5)
    np.testing.assert_allclose(total(6).sample_state[0], [2 * 6**-0.5] * 6, rtol=1e-5)


def _fixed_in_a_loop(n):
    """Sizes and places are the loop's own, and what is computed follows the record."""
    array = tf.TensorArray(tf.float32, 3, element_shape=[], clear_after_read=False)
    array = array.unstack(WEIGHTS[:3])

    def body(i, total, length):
        row = tf.reshape(WEIGHTS * total, [length // 3, -1])[0, i]
        return i + 1, total + row * array.read(i) * tf.cast(n, tf.float32), length

    return tf.while_loop(lambda i, *_: i < 3, body, (0, 1.0, tf.size(WEIGHTS)))[1]


def _fixed_in_branches(n):
    """The gradient of a branch finds shapes that the branch has kept."""
    return tf.cond(
        n > 2,
        lambda: tf.reduce_sum(tf.square(tf.reshape(WEIGHTS * WEIGHTS, [2, -1])[0])),
        lambda: tf.reduce_mean(tf.tile(WEIGHTS * WEIGHTS, [3])),
    )


@pytest.mark.parametrize("fn", [_fixed_in_a_loop, _fixed_in_branches])
def test_fixed_sizes_are_taken_wherever_they_are(fn):
    def value_and_gradient(record):
        with tf.GradientTape() as tape:
            tape.watch(WEIGHTS)
            value = fn(record[0][0])
        return value, tape.gradient(value, WEIGHTS)

    # What reads at a place that follows the record needs a check, and with it all is made anew.
    def with_a_place(record):
        place = tf.gather(tf.ones([ROWS]), record[0])[0]
        return [place * result for result in value_and_gradient(record)]

    checked = with_checks(with_a_place, [tf.TensorSpec([1], tf.int32)])
    for n in (0, 3):
        record = [tf.constant([n])]
        for got, expected in zip(
            tf.function(checked, autograph=False)(record), value_and_gradient(record), strict=True
        ):
            np.testing.assert_allclose(got, expected, rtol=1e-5)


@pytest.mark.parametrize("engine", ["vectorized", "loop"])
def test_a_loss_with_a_size_of_the_record_is_refused_before_any_record(engine):
    """Power: the same loss with a bound that is fixed is taken."""
    weights = tf.Variable(tf.ones([6]))

    def total(maxlen):
        def loss(length):
            mask = tf.sequence_mask(length[0], maxlen, tf.float32)
            return tf.reduce_sum(weights[: tf.shape(mask)[0]] * mask)

        query = tfdp.GaussianSumQuery(1.0, 0.0)
        lengths = tf.constant([2, 2, 2])
        return tfdp.clipped_gradient_sum(loss, [weights], lengths, query, engine=engine)

    with pytest.raises(RecordDependentShapeError, match="numbers of a record"):
        total(None)
    half = 3 * 2**-0.5
    np.testing.assert_allclose(total(6).sample_state[0], [half, half, 0, 0, 0, 0], rtol=1e-5)


def summing(loss_fn, variables, engine, jit_compile, **kwargs):
    """Returns a function of examples that gives the clipped sum as one vector."""
    query = tfdp.GaussianSumQuery(CLIP, 0.0)

    @tf.function(jit_compile=jit_compile, autograph=False)
    def total(examples, mask):
        clipped = tfdp.clipped_gradient_sum(
            loss_fn, variables, examples, query, mask=mask, engine=engine, **kwargs
        )
        return tf.concat([tf.reshape(s, [-1]) for s in clipped.sample_state], 0)

    def of_arrays(x, y, mask):
        return total((tf.constant(x), tf.constant(y)), tf.constant(mask)).numpy()

    return of_arrays


def assert_attackers_move_nothing(total, x, y, attacked, rows):
    """Asserts that a record with a bad integer contributes nothing, and that a good one does."""
    everybody = np.ones(len(x), bool)
    others = {row: total(x, y, everybody & (np.arange(len(x)) != row)) for row in rows}
    for row, left in others.items():
        assert np.linalg.norm(total(x, y, everybody) - left) > 0.1 * CLIP
        for x_bad, y_bad in attacked(row):
            sums = total(x_bad, y_bad, everybody)
            np.testing.assert_allclose(sums, left, rtol=1e-6, atol=1e-7)


class Looks(keras.layers.Layer):
    """Reads and writes at places that the record names, each operation with ids of its own."""

    def __init__(self, names):
        super().__init__()
        self.names = names

    def build(self, shape):
        shapes = [OPERATIONS[name][1] for name in self.names]
        self.parts = [self.add_weight(shape=s, initializer="random_normal") for s in shapes]

    def call(self, inputs):
        total = 0.0
        for i, name in enumerate(self.names):
            found = OPERATIONS[name][0](tf.convert_to_tensor(self.parts[i]), inputs[:, i])
            total += tf.reduce_sum(tf.square(1.0 + found))
        return tf.reshape(total, [1, 1])


READING = ("gather", "take_along_axis", "segment_sum")
WRITING = ("item", "scatter_nd", "cross_entropy")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "names, jit_compile", [(READING, False), (WRITING, False), (READING, True)]
)
def test_places_that_do_not_exist_make_a_record_contribute_nothing(names, engine, jit_compile):
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((len(names), 3), dtype="int32"), Looks(names)])
    loss = tfdp.gradients.ModelLoss(model, lambda y, p: tf.reduce_sum(p))
    total = summing(loss, model.trainable_variables, engine, jit_compile)
    rng = np.random.default_rng(0)
    x = rng.integers(0, ROWS, (N, len(names), 3)).astype("int32")
    y = np.zeros([N, 1], "float32")

    def attacked(row):
        for (at, name), bad in itertools.product(enumerate(names), [*BAD, rng.integers(HUGE)]):
            if not _exists(name, bad):
                bad_x = x.copy()
                bad_x[row, at, 0] = bad
                yield bad_x, y

    assert_attackers_move_nothing(total, x, y, attacked, (0, N - 1))


def _embedding(positions):
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Embedding(ROWS, 2), keras.layers.GlobalMaxPooling1D()]
    inputs = keras.Input((positions,), dtype="int32")
    return keras.Sequential([inputs, *layers, keras.layers.Dense(4)])


@pytest.mark.parametrize(
    "engine, jit_compile, positions",
    [("bookkeeping", True, 3), ("bookkeeping", False, 3), ("bookkeeping", True, 160)]
    + [("bookkeeping", False, 160), ("vectorized", True, 3), ("loop", False, 3)],
)
def test_ids_and_labels_out_of_range(engine, jit_compile, positions):
    model = _embedding(positions)
    loss = tfdp.gradients.ModelLoss(model, keras.losses.SparseCategoricalCrossentropy(True))
    total = summing(loss, model.trainable_variables, engine, jit_compile)
    rng = np.random.default_rng(0)
    x = rng.integers(-ROWS, ROWS, (N, positions)).astype("int32")
    y = rng.integers(0, 4, (N,)).astype("int32")

    def attacked(row):
        for bad in [*BAD, rng.integers(ROWS, HUGE)]:
            bad_x, bad_y = x.copy(), y.copy()
            bad_x[row, rng.integers(positions)] = bad_y[row] = bad
            yield bad_x, y
            yield x, bad_y
        bad_x = x.copy()
        bad_x[row] = rng.integers(ROWS, 2 * N * ROWS, positions)
        yield bad_x, y

    assert_attackers_move_nothing(total, x, y, attacked, (0, N - 1))


def _frozen():
    table, dense = keras.layers.Embedding(ROWS, 2, trainable=False), keras.layers.Dense(1)
    return keras.Sequential([keras.Input((3,)), table, keras.layers.Flatten(), dense])


def _low_rank():
    table = keras.layers.Embedding(ROWS, 2)
    model = keras.Sequential([keras.Input((3,)), table, keras.layers.Flatten()])
    table.enable_lora(1)
    table.lora_embeddings_b.assign(np.ones([1, 2]))
    return model


def _reversible():
    table = keras.layers.ReversibleEmbedding(ROWS, 2)
    inputs = keras.Input((3,))
    return keras.Model(inputs, keras.layers.Flatten()(table(table(inputs), reverse=True)))


def _encoded(mode):
    layers = [keras.layers.CategoryEncoding(ROWS, output_mode=mode), keras.layers.Dense(1)]
    return keras.Sequential([keras.Input((3,)), *layers])


@pytest.mark.parametrize("engine", ["bookkeeping", "loop"])
@pytest.mark.parametrize("dtype", ["int64", "float32"])
@pytest.mark.parametrize("build", [_frozen, _low_rank, _reversible])
def test_every_kind_of_embedding_and_of_ids(build, dtype, engine):
    keras.utils.set_random_seed(1)
    model = build()
    loss = tfdp.gradients.ModelLoss(model, lambda y, p: tf.reduce_sum(tf.square(p - 1.0)))
    total = summing(loss, model.trainable_variables, engine, False)
    x = np.random.default_rng(0).integers(-ROWS, ROWS, (N, 3)).astype(dtype)
    y = np.zeros([N, 1], "float32")
    beyond = [2**40, -(2**63)] if dtype == "int64" else [np.inf, np.nan, -1e30]

    def attacked(row):
        for bad in [ROWS, -ROWS - 1, N * ROWS, *beyond]:
            bad_x = x.copy()
            bad_x[row, 1] = bad
            yield bad_x, y

    assert_attackers_move_nothing(total, x, y, attacked, (N - 1,))


def test_wide_ids_are_not_made_narrow():
    keras.utils.set_random_seed(1)
    inputs = keras.Input((3,), dtype="int64")
    model = keras.Model(inputs, keras.layers.Flatten()(keras.layers.Embedding(ROWS, 2)(inputs)))
    loss = tfdp.gradients.ModelLoss(model, lambda y, p: tf.reduce_sum(tf.square(p - 1.0)))
    total = summing(loss, model.trainable_variables, "bookkeeping", False)
    x = np.random.default_rng(0).integers(0, ROWS, (N, 3))
    y, bad_x = np.zeros([N, 1], "float32"), x.copy()
    bad_x[0, 1] = 2**32  # Zero, in 32 bits.
    assert_attackers_move_nothing(total, x, y, lambda row: [(bad_x, y)], (0,))


@pytest.mark.parametrize("mode", ["count", "multi_hot"])
def test_negative_categories(mode):
    keras.utils.set_random_seed(1)
    model = _encoded(mode)
    loss = tfdp.gradients.ModelLoss(model, lambda y, p: tf.reduce_sum(tf.square(p - 1.0)))
    total = summing(loss, model.trainable_variables, "bookkeeping", False)
    x = np.random.default_rng(0).integers(0, ROWS, (N, 3)).astype("int32")
    bad_x = x.copy()
    bad_x[0, 1] = -1
    assert_attackers_move_nothing(
        total,
        x,
        np.zeros([N, 1], "float32"),
        lambda row: [(bad_x, np.zeros([N, 1], "float32"))],
        (0,),
    )


class _Powers(keras.layers.Layer):
    """Without a rule; its code is looked at."""

    def call(self, inputs):
        return 2**inputs


@pytest.mark.parametrize("power", [lambda x: keras.ops.power(x + 2, x), _Powers()])
def test_negative_exponents(power):
    keras.utils.set_random_seed(1)
    inputs = keras.Input((3,), dtype="int32")
    outputs = keras.layers.Dense(1)(keras.ops.cast(power(inputs), "float32"))
    loss = tfdp.gradients.ModelLoss(
        keras.Model(inputs, outputs), lambda y, p: tf.reduce_sum(tf.square(p - 1.0))
    )
    total = summing(loss, loss.model.trainable_variables, "bookkeeping", False)
    x = np.random.default_rng(0).integers(0, 3, (N, 3)).astype("int32")
    y, bad_x = np.zeros([N, 1], "float32"), x.copy()
    bad_x[0, 1] = -1
    assert_attackers_move_nothing(total, x, y, lambda row: [(bad_x, y)], (0,))


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("engine", ENGINES)
def test_examples_of_microbatches_that_are_not_there_are_left_out(engine, jit_compile):
    model = _embedding(3)
    loss = tfdp.gradients.ModelLoss(model, keras.losses.SparseCategoricalCrossentropy(True))
    rng = np.random.default_rng(0)
    x = rng.integers(0, ROWS, (N, 3)).astype("int32")
    y = rng.integers(0, 4, (N,)).astype("int32")
    ids = tf.constant([-1, 1, 1, 0, 2])
    groups = {"num_microbatches": 2, "microbatch_ids": ids}
    total = summing(loss, model.trainable_variables, engine, jit_compile, **groups)
    left = total(x, y, np.array([False, True, True, True, False]))
    np.testing.assert_allclose(total(x, y, np.ones(N, bool)), left, atol=1e-7)
