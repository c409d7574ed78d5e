"""Graphs of one record for all records, and loops in them."""

import contextlib
import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdp.gradients import RefusedKernelError
from tfdp.gradients.graphs import LOOPS, functions_called, has
from tfdp.gradients.mapping import map_records
from tfdp.gradients.vectorizing import vectorized_outputs

L = keras.layers
RECORDS = np.linspace(-1.0, 1.5, 24, dtype="float32").reshape(4, 6)
WEIGHT = np.array([0.7, 0.9, -0.4, 1.1, 0.2, -0.8], "float32")


def test_vectorized_outputs():
    weight = tf.Variable([2.0, 3.0])
    one = tf.function(lambda x, y: (x * weight, tf.reduce_sum(x) + y, tf.zeros([2])))
    call = one.get_concrete_function(tf.TensorSpec([2]), tf.TensorSpec([]))

    @tf.function(autograph=False)
    def together(x, y):
        return vectorized_outputs(call.graph, call.graph.outputs, [x, y], tf.shape(x)[0])

    x, y = np.arange(6.0, dtype="float32").reshape(3, 2), np.array([1.0, 2.0, 3.0], "float32")
    expected = tf.vectorized_map(lambda record: one(*record), (x, y))
    for got, wanted in zip(together(x, y), expected, strict=True):
        np.testing.assert_array_equal(got, wanted)


def loop(body, *state, turns=3):
    """Returns the state after turns that are numbered."""
    return tf.while_loop(
        lambda i, *_: i < turns, lambda i, *state: [i + 1, *body(i, *state)], [0, *state]
    )[1:]


def _lists(x, w):
    """Writes states to a list, as recurrent layers do, and reads another one."""
    steps = tf.TensorArray(tf.float32, 3).unstack(tf.reshape(x, [3, 2]))
    states = tf.TensorArray(tf.float32, 3, element_shape=[2])

    def turn(i, state, states):
        state = tf.tanh(state * w[:2] + steps.read(i))
        return state, states.write(i, state)

    return loop(turn, w[2:4], states)[1].stack()


def _shared_list(x, w):
    """Reads a list that is the same for all records."""
    steps = tf.TensorArray(tf.float32, 3).unstack(tf.reshape(w, [3, 2]))
    return loop(lambda i, y: [tf.sin(y) * steps.read(i)], x[:2])[0]


def _grown_list(x, w):
    """Has a list that is longer after every turn."""
    none = tf.raw_ops.EmptyTensorList(
        element_shape=[6], max_num_elements=-1, element_dtype=tf.float32
    )

    def turn(i, y, found):
        y = tf.sin(y) * w
        return y, tf.raw_ops.TensorListPushBack(input_handle=found, tensor=y)

    found = loop(turn, x, none)[1]
    return tf.raw_ops.TensorListStack(
        input_handle=found, element_shape=[6], element_dtype=tf.float32, num_elements=3
    )


def _undeclared_list(x, w):
    """Writes to a list that does not know what it will hold."""
    states = tf.TensorArray(tf.float32, 3)
    return loop(lambda i, y, s: (tf.sin(y) * w, s.write(i, y)), x, states)[1].stack()


def _numbers(x, w):
    """Writes single numbers to a list that is as long as it has to be."""
    found = tf.TensorArray(tf.float32, 0, dynamic_size=True, element_shape=[])

    def turn(i, y, found):
        return tf.sin(y) * w, found.write(i, tf.reduce_sum(y * y))

    return loop(turn, x, found)[1].stack()


def _parts(x, w):
    """Reads some of a list, and another part in another order."""
    steps = tf.TensorArray(tf.float32, 6, clear_after_read=False).unstack(x)
    states = tf.TensorArray(tf.float32, 4, element_shape=[])
    states = loop(lambda i, s: [s.write(i, steps.read(i) * w[i])], states, turns=4)[0]
    return states.gather([3, 1]) * steps.gather([0, 5])


def _as_many_parts(x, w):
    """Reads as many elements of a list of records as there are records."""
    steps = tf.TensorArray(tf.float32, 6).unstack(x)
    return steps.gather([5, 0, 3, 3]) * w[:4]


def _matrices(x, w):
    """Likewise, of a list of matrices."""
    steps = tf.TensorArray(tf.float32, 2).unstack(tf.reshape(tf.stack([x, x * w]), [2, 3, 2]))
    return steps.gather([1, 0, 1, 1])


def _list_of_all(x, w):
    """Writes to a list what all records share, and then what is of the record."""
    found = tf.TensorArray(tf.float32, 4, element_shape=[6])
    found = loop(lambda i, y, s: (tf.sin(y), s.write(i, y)), w, found)[1]
    return found.write(3, x).stack()


def _masked(x, w):
    """Keeps the state where a record has no step, as recurrent layers do with a mask."""
    steps = tf.TensorArray(tf.float32, 3).unstack(tf.reshape(x, [3, 2]))
    masks = tf.TensorArray(tf.bool, 3).unstack(tf.reshape(x > -0.3, [3, 2]))
    states = tf.TensorArray(tf.float32, 3, element_shape=[2])

    def turn(i, state, output, states):
        new = tf.tanh(state * w[:2] + steps.read(i))
        mask = masks.read(i)
        output = tf.where(mask, new, output)
        return tf.where(mask, new, state), output, states.write(i, output)

    state, _, states = loop(turn, w[2:4], tf.zeros([2]), states)
    return states.stack() * state


def _backwards(x, w):
    """Reads a list in reverse, and makes one out of it."""
    steps = tf.TensorArray(tf.float32, 6).unstack(x)
    states = tf.TensorArray(tf.float32, 6, element_shape=[])
    total, states = loop(
        lambda i, y, s: (y + steps.read(5 - i) * w[i], s.write(5 - i, y)), 0.5, states, turns=6
    )
    return states.stack() + total


def _dropped(x, w):
    """Draws other numbers in every turn, from seeds of the record."""
    seed = tf.cast(x[:2] * 1000, tf.int32)
    return loop(lambda i, y: [y * w * tf.random.stateless_uniform([6], seed + i)], x)[0]


# Functions of a record and a weight, with loops of as many turns for all records, or with lists.
LOOPING = {
    "state_of_records": lambda x, w: loop(lambda i, y: [tf.sin(y) * w], x)[0],
    "state_of_all_at_first": lambda x, w: loop(lambda i, y: [tf.sin(y) * x + w], w)[0],
    # It takes several turns until both states follow the record.
    "states_by_and_by": lambda x, w: tf.add_n(
        loop(lambda i, a, b, c: [b * w, c + w, tf.sin(c) * x], w, 2 * w, w)
    ),
    "state_is_replaced": lambda x, w: tf.add_n(
        loop(lambda i, a, b: [tf.sin(b) * w, tf.zeros_like(w)], w * 2, x)
    ),
    "shared": lambda x, w: x * loop(lambda i, y: [tf.sin(y) * w], w)[0],
    "lists": _lists,
    "shared_list": _shared_list,
    "grown_list": _grown_list,
    "undeclared_list": _undeclared_list,
    "numbers": _numbers,
    "parts": _parts,
    "as_many_parts": _as_many_parts,
    "matrices": _matrices,
    "list_of_all": _list_of_all,
    "masked": _masked,
    "backwards": _backwards,
    "mapped": lambda x, w: tf.map_fn(lambda pair: tf.sin(pair[0]) * pair[1], (x, w), tf.float32),
    "scanned": lambda x, w: tf.scan(lambda y, e: tf.sin(y) * e[0] + e[1], (x, w), 0.5),
    "folded": lambda x, w: tf.foldl(lambda y, e: tf.sin(y) * w + e, x, w),
    "of_keras": lambda x, w: keras.ops.scan(
        lambda y, e: (tf.sin(y) * w[0] + e, tf.cos(y) * w[1]), w[2], x
    )[1],
    "turns_of_keras": lambda x, w: keras.ops.fori_loop(0, 3, lambda i, y: tf.sin(y) * w, x),
    "nested": lambda x, w: loop(
        lambda i, y: [loop(lambda j, z: [tf.sin(z) * w + y], y, turns=2)[0]], x
    )[0],
    "nested_by_number": lambda x, w: loop(
        lambda i, y: [loop(lambda j, z: [tf.sin(z) * w], y, turns=i)[0]], x
    )[0],
    "branch": lambda x, w: loop(
        lambda i, y: [tf.cond(i > 1, lambda: tf.sin(y) * w, lambda: y + w)], x
    )[0],
    "function": lambda x, w: tf.function(LOOPING["state_of_records"], autograph=False)(x, w),
    "of_a_function": lambda x, w: loop(
        lambda i, y: [tf.function(lambda z: tf.sin(z) * w, autograph=False)(y)], x
    )[0],
    "limited": lambda x, w: tf.while_loop(
        lambda y: True, lambda y: [tf.sin(y) * w], [x], maximum_iterations=3
    )[0],
    "squeezed": lambda x, w: loop(lambda i, y: [tf.squeeze(y[None]) * w], x)[0],
    "draws": _dropped,
}


def with_gradient(name):
    def of_one(record):
        x, weight = record[0][0], tf.constant(WEIGHT)
        with tf.GradientTape() as tape:
            tape.watch([x, weight])
            found = LOOPING[name](x, weight)
            loss = tf.reduce_sum(tf.exp(found))
        zero = tf.UnconnectedGradients.ZERO
        return found, *tape.gradient(loss, [x, weight], unconnected_gradients=zero)

    return of_one


# TensorFlow cannot vectorize these: their gradient has a branch, a list of lists, or a list that
# changes its length.
IN_TURN = {"branch", "nested", "nested_by_number", "numbers"}


def mapped(name, records, rows=None):
    expected = pytest.warns(UserWarning, match="computed one example at a time")
    with expected if name in IN_TURN else contextlib.nullcontext():  # Others would be errors.
        return map_records(with_gradient(name), [records], rows)[0]


@functools.cache
def one_by_one(name):
    return tf.function(lambda record: with_gradient(name)([record]), autograph=False)


@pytest.mark.parametrize("rows", [1, 4, None])
@pytest.mark.parametrize("name", sorted(LOOPING))
def test_loops_and_their_gradients(name, rows):
    records = tf.constant(RECORDS[:rows])
    call = mapped(name, records, rows)
    expected = zip(*(one_by_one(name)(record[None]) for record in records), strict=True)
    for actual, results in zip(call(records), map(tf.stack, expected), strict=True):
        np.testing.assert_allclose(actual, results, rtol=2e-5, atol=1e-6)


class OfMatrices(L.Layer):
    """A cell that multiplies matrices of each record."""

    state_size = output_size = 3

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], 3))

    def call(self, x, states):
        z = x @ self.kernel
        state = tf.squeeze(tf.tanh(states[0][:, :, None] + z[:, None]) @ z[..., None], -1)
        return tf.tanh(state), [state]


def test_matrices_of_records_in_a_loop_need_no_xla():
    """Their shapes are known in the loop: XLA would not compile it."""
    made = L.RNN(OfMatrices())
    records = tf.constant(RECORDS.reshape(4, 3, 2))
    made(records)

    def of_one(record):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(made(record[0]))
        return tape.gradient(loss, [made.cell.kernel.value])

    call, _ = map_records(of_one, [records])
    assert not call.function_def.attr["_XlaMustCompile"].b
    expected = [of_one([record[None]])[0] for record in records]
    np.testing.assert_allclose(call(records)[0], expected, rtol=1e-5, atol=1e-6)


def _partitions(op):
    """Returns whether an operation is a loop of TensorFlow's conversion: those have records that
    go on apart from those that do not.
    """
    return op.type in LOOPS and any(
        has(called, lambda inner: inner.type == "DynamicPartition" or inner.type in ("If", "Case"))
        for called in functions_called(op)
    )


@pytest.mark.parametrize(
    "name", sorted(LOOPING.keys() - IN_TURN - {"shared", "as_many_parts", "matrices"})
)
def test_loops_of_equal_length_have_no_branches(name):
    call = mapped(name, tf.constant(RECORDS))
    assert has(call.graph, lambda op: op.type in LOOPS)
    assert not has(call.graph, _partitions)


def test_loops_that_records_end_are_those_of_tensorflow():
    def of_one(record):
        x = record[0][0]
        return tf.while_loop(
            lambda y: tf.reduce_sum(tf.abs(y)) > 1, lambda y: [y * 0.5], [x], maximum_iterations=5
        )[0]

    records = tf.constant(RECORDS)
    call, _ = map_records(of_one, [records])
    assert has(call.graph, _partitions)
    expected = [of_one([record[None]]) for record in records]
    np.testing.assert_allclose(call(records), expected)


def _of_a_list(x, i):
    """Reads a list of the record's at a place of its own."""
    steps = tf.TensorArray(tf.float32, 3).unstack(tf.reshape(x, [3, 2]))
    return steps.read(i[0])


def _grown(x, i):
    found = tf.TensorArray(tf.float32, 0, dynamic_size=True, element_shape=[6])
    return found.write(0, x).write(1, 2 * x).stack()


def _cases(x, i):
    branches = [lambda k=k: (k * x, tf.fill([2], k * x[0])) for k in (1.0, 2.0, 3.0)]
    return tf.switch_case(i[0] * 2, branches)


def _rolled_list(x, i):
    of_all = tf.map_fn(lambda v: 2 * v, tf.constant([[0.0, 1.0, 2.0]]))
    return tf.roll(of_all, 1, -1) + x[0]


# Functions of a record's numbers and places, with operations of which TensorFlow's own conversions
# mix records, or raise for some, and whether records are computed one after the other.
PLACES = np.array([[0, 5], [1, 2], [2, 0], [1, 1]], "int32")
ELSEWHERE_WRONG = {
    "bias_of_a_record": (
        lambda x, i: tf.nn.bias_add(tf.zeros([2, 4, 3]), tf.tile(x[:2], [2]), "NCHW"),
        False,
    ),
    "bias_of_a_record_on_images": (
        lambda x, i: tf.nn.bias_add(tf.zeros([2, 4, 3, 2]), tf.tile(x[:2], [2]), "NCHW"),
        False,
    ),
    "cases": (_cases, False),
    "crossentropy_that_broadcasts": (
        lambda x, i: tf.raw_ops.SoftmaxCrossEntropyWithLogits(
            features=x[:1], labels=tf.nn.softmax(x)[None]
        )[0],
        True,
    ),
    "grown_list": (_grown, True),
    "list_at_its_own_place": (_of_a_list, True),
    "never_taken": (
        lambda x, i: tf.cond(
            i[0] > 5, lambda: tf.reshape(x, [3, 2]) @ WEIGHT[:2, None], lambda: tf.zeros([3, 1])
        ),
        False,
    ),
    "often_taken": (
        lambda x, i: tf.cond(
            i[0] > 0, lambda: [x[1:] * 2, tf.range(5)], lambda: [x[:5], 2 * tf.range(5)]
        ),
        False,
    ),
    "rolled_list": (_rolled_list, False),
    "sparse_segments": (
        lambda x, i: tf.sparse.segment_sum(tf.reshape(x, [3, 2]), [0, 2, 1], [0, 0, 1]),
        True,
    ),
    "text": (
        lambda x, i: tf.strings.length(tf.strings.format("{}", i[0] * 100)),
        True,
    ),
    "transposed_from_the_end": (
        lambda x, i: tf.transpose(tf.reshape(tf.tile(x, [2])[:8], [2, 4])[:, :2], [-1, 0]),
        False,
    ),
}


@pytest.mark.parametrize("rows", [4, None])
@pytest.mark.parametrize("name", sorted(ELSEWHERE_WRONG))
def test_what_tensorflow_would_get_wrong(name, rows):
    if name == "transposed_from_the_end" and tf.__version__.startswith("2.18."):
        pytest.skip("TensorFlow 2.18 ends the process where axes are counted from the end.")
    fn, is_in_turn = ELSEWHERE_WRONG[name]
    records = tf.constant(RECORDS[:rows]), tf.constant(PLACES)
    expected = pytest.warns(UserWarning, match="computed one example at a time")
    with expected if is_in_turn else contextlib.nullcontext():
        call, _ = map_records(lambda r: fn(r[0][0], r[1][0]), list(records), rows)
    alone = [fn(x, i) for x, i in zip(*records, strict=True)]
    for actual, results in zip(
        tf.nest.flatten(call(*records)), zip(*map(tf.nest.flatten, alone), strict=True), strict=True
    ):
        np.testing.assert_allclose(actual, tf.stack(results), rtol=1e-6)


@pytest.mark.parametrize("name", ["InplaceAdd", "InplaceSub", "InplaceUpdate"])
def test_what_writes_into_its_operand_is_refused(name):
    """The next record, and the next call, would find what a record has written."""

    def of_one(record):
        return getattr(tf.raw_ops, name)(x=tf.zeros([4]), i=[0, 2], v=record[0][0])

    with pytest.raises(RefusedKernelError, match=name):
        map_records(of_one, [tf.zeros([3, 2])])


def test_segments_that_there_are_none_of():
    """Under XLA they were those of the next record."""
    records = tf.constant([[1.0, 100.0], [2.0, 3.0]])
    call, _ = map_records(lambda r: tf.math.unsorted_segment_sum(r[0][0], [0, 2], 2), [records])
    compiled = tf.function(call, jit_compile=True)
    np.testing.assert_array_equal(compiled(records), [[1, 0], [2, 0]])


def test_lengths_that_are_not_known():
    squeezed, _ = map_records(lambda r: tf.squeeze(r[0][0]), [tf.TensorSpec([None, None, None, 1])])
    assert squeezed(tf.ones([1, 3, 1, 1])).shape == (1, 3)
    assert squeezed(tf.ones([2, 1, 4, 1])).shape == (2, 4)
    table = tf.reshape(tf.range(6.0), [3, 2])
    places = tf.constant([[[0], [1]], [[1], [1]]])
    for lengths in ([2, None], [None, None]):
        spec = tf.TensorSpec([2, *lengths], tf.int32)
        gathered, _ = map_records(lambda r: tf.gather_nd(table, r[0][0]), [spec])
        np.testing.assert_array_equal(gathered(places), tf.gather_nd(table, places))


# Functions of a record, the number of its axes, and whether it can be vectorized.
OF_MANY_AXES = {
    "softmax": (tf.nn.softmax, 5, True),
    "pad": (lambda x: tf.pad(x, [[1, 0]] * 6), 6, False),
    "argmax": (lambda x: x * tf.cast(tf.argmax(x, -1)[..., None], tf.float32), 7, False),
    "new_axis": (lambda x: x[..., None, :], 8, False),
    "product": (lambda x: x * x[..., :1], 7, True),
}


@pytest.mark.parametrize("name", sorted(OF_MANY_AXES))
def test_as_many_axes_as_tensorflow_takes(name):
    fn, rank, is_vectorized = OF_MANY_AXES[name]
    records = tf.random.stateless_normal([3, *[2] * (rank - 1)], [1, 2])

    def of_one(record):
        with tf.GradientTape() as tape:
            tape.watch(record[0])
            found = fn(record[0])
            loss = found * (found + 1)
        return found, tape.gradient(loss, record[0])

    expected = pytest.warns(UserWarning, match="takes no axis of records beside")
    with contextlib.nullcontext() if is_vectorized else expected:
        call, _ = map_records(of_one, [records])
    alone = tf.function(lambda record: of_one([record]), autograph=False)
    expected = zip(*(alone(record[None]) for record in records), strict=True)
    for actual, results in zip(call(records), map(tf.stack, expected), strict=True):
        np.testing.assert_allclose(actual, results, rtol=2e-5, atol=1e-6)


def test_a_loop_draws_for_every_record():
    one = tf.function(lambda x: loop(lambda i, y: [y + tf.random.uniform([6])], tf.zeros([6]))[0])
    graph = one.get_concrete_function(tf.TensorSpec([6])).graph

    @tf.function(autograph=False)
    def together(x):
        return vectorized_outputs(graph, graph.outputs, [x], tf.shape(x)[0])

    (drawn,) = together(tf.constant(RECORDS))
    assert len(np.unique(drawn)) == 24


@pytest.mark.parametrize(
    "layer", [keras.layers.GRU, keras.layers.LSTM, keras.layers.SimpleRNN, keras.layers.ConvLSTM1D]
)
def test_recurrent_layers(layer):
    keras.utils.set_random_seed(1)
    is_convolution = layer is keras.layers.ConvLSTM1D
    made = layer(2, 2, return_sequences=True) if is_convolution else layer(3, unroll=False)
    records = np.random.default_rng(0).normal(size=(3, 5, 4, 2)).astype("float32")
    records = tf.constant(records if is_convolution else records[..., 0])
    made.build(records.shape)

    def of_one(record):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(made(record[0])))
        return tape.gradient(loss, [v.value for v in made.trainable_variables])

    call, _ = map_records(of_one, [records])
    assert has(call.graph, lambda op: op.type in LOOPS)
    assert not has(call.graph, _partitions)
    alone = tf.function(lambda record: of_one([record]), autograph=False)
    expected = zip(*(alone(record[None]) for record in records), strict=True)
    for actual, results in zip(call(records), map(tf.stack, expected), strict=True):
        np.testing.assert_allclose(actual, results, rtol=1e-4, atol=1e-5)


def _by_length(x, w):
    return tf.cond(tf.shape(x)[0] > tf.shape(w)[0], lambda: x[:3] ** 2, lambda: tf.sin(x * w)[:3])


def _by_length_the_other_way(x, w):
    return tf.cond(tf.shape(x)[0] < 9, lambda: x * tf.exp(w), lambda: x)


def _by_number(number):
    def fn(x, w):
        branches = [lambda k=k: tf.sin(k * x * w) for k in (1.0, 2.0, 3.0)]
        return tf.switch_case(tf.size(x) - 6 + number, branches)

    return fn


@pytest.mark.parametrize(
    "fn", [_by_length, _by_length_the_other_way, *map(_by_number, (-1, 0, 1, 2, 5))]
)
def test_branches_that_lengths_decide_about(fn, recwarn):
    def of_one(record):
        with tf.GradientTape() as tape:
            tape.watch(record[0])
            results = fn(record[0][0], tf.constant(WEIGHT))
        return results, tape.gradient(results, record[0])

    call, _ = map_records(of_one, [tf.constant(RECORDS)])
    assert not [w for w in recwarn if "one example at a time" in str(w.message)]
    alone = [of_one([record[None]]) for record in tf.constant(RECORDS)]
    for actual, expected in zip(
        call(RECORDS), map(tf.stack, zip(*alone, strict=True)), strict=True
    ):
        np.testing.assert_allclose(actual, expected, rtol=1e-5)
