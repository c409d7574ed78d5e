"""Which operations are known to keep the records apart."""

import numpy as np
import pytest
import tensorflow as tf

from tfdp.gradients.record_wise_operations import Kinds, MixesError

APART = {
    "last_axis": lambda x: tf.reduce_sum(x, -1),
    "kept_rows": lambda x: tf.reshape(x, [-1, 16]),
    "product": lambda x: tf.matmul(x, x),
    "slice": lambda x: x[:, 1],
    "swapped_positions": lambda x: tf.transpose(x, [0, 2, 1]),
}
MIXED = {
    "all_axes": tf.reduce_sum,
    "broadcast_to_their_number": lambda x: tf.broadcast_to(
        x[:, 0, :1], [tf.shape(x)[0], tf.shape(x)[0]]
    ),
    "condition": lambda x: tf.cond(tf.reduce_all(x[:, 0, 0] > 0), lambda: x, lambda: -x),
    "draws": lambda x: x * tf.random.uniform(tf.shape(x)),
    "gathered": lambda x: tf.gather(x, [0]),
    "softmax": lambda x: tf.nn.softmax(x, 0),
    "transposed_product": lambda x: tf.raw_ops.BatchMatMulV2(
        x=x[:, 0], y=tf.ones([1, 2]), adj_x=True
    ),
    "unstacked": lambda x: tf.unstack(tf.ensure_shape(x, [4, 4, 4])),
    "constant_of_records": lambda x: x * tf.reshape(tf.range(4.0), [4, 1, 1]),
    "first_axis": lambda x: tf.reduce_sum(x, -3),
    "first_record": lambda x: x + x[:1],
    "lined_up_with_positions": lambda x: x + x[:, 0],
    "moved_rows": lambda x: tf.reshape(x, [-1, 4]),
    "reversed": lambda x: tf.reverse(x, [0]),
    "swapped": lambda x: tf.transpose(x, [1, 0, 2]),
}


def look_at(function):
    graph = tf.Graph()
    with graph.as_default():
        x = tf.compat.v1.placeholder(tf.float32, [None, 4, 4])
        kinds = Kinds()
        kinds.add_records(x)
        function(x)
        for op in graph.get_operations()[1:]:
            kinds.add(op)


@pytest.mark.parametrize("name", sorted(APART))
def test_knows_what_keeps_records_apart(name):
    look_at(APART[name])


@pytest.mark.parametrize("name", sorted(MIXED))
def test_refuses_what_could_mix_records(name):
    with pytest.raises(MixesError):
        look_at(MIXED[name])


def _programs(rng, count):
    """Yields functions of [n, 4, 4] that take random operations with random axes and shapes."""

    def axis(x):
        return int(rng.integers(-x.shape.rank, x.shape.rank))

    def order(x):
        rank = x.shape.rank
        kept = [0, *(1 + rng.permutation(rank - 1))]
        return [int(i) for i in (kept if rng.random() < 0.7 else rng.permutation(rank))]

    def shape(x):
        sizes = [4] * (x.shape.rank - 1)
        rows = tf.shape(x)[0]
        choices = [[rows, *sizes], [-1, *sizes], [rows, 4 ** len(sizes)], [-1, 4], [rows, rows]]
        return choices[rng.integers(len(choices))]

    def constant(x):
        sizes = [4] * int(rng.integers(0, x.shape.rank + 1))
        return tf.constant(rng.normal(size=sizes))

    def part(x):
        index = [slice(None)] * x.shape.rank
        index[axis(x)] = [0, slice(1), tf.newaxis, slice(None, None, -1)][rng.integers(4)]
        return x[tuple(index)]

    operations = [
        lambda x, y: x + constant(x),
        lambda x, y: x * y,
        lambda x, y: x - tf.reduce_mean(x, axis(x), keepdims=True),
        lambda x, y: tf.reduce_max(x, axis(x)),
        lambda x, y: tf.nn.softmax(x, axis(x)),
        lambda x, y: tf.transpose(x, order(x)),
        lambda x, y: tf.reshape(x, shape(x)),
        lambda x, y: tf.broadcast_to(x[..., :1], shape(x)),
        lambda x, y: tf.concat([x, x], axis(x)),
        lambda x, y: tf.matmul(x, y),
        lambda x, y: tf.matmul(x, x, transpose_a=True),
        lambda x, y: tf.matmul(x, constant(x)),
        lambda x, y: tf.matmul(constant(x), x),
        lambda x, y: tf.expand_dims(x, axis(x)),
        lambda x, y: part(x),
        lambda x, y: tf.reverse(x, [axis(x)]),
        lambda x, y: tf.tanh(x),
    ]
    for _ in range(count):
        chosen = rng.integers(len(operations), size=rng.integers(1, 5))

        def program(x, chosen=chosen):
            start = x
            for i in chosen:
                x = operations[i](x, start)
            return x

        yield program


def test_programs_that_are_accepted_keep_records_apart():
    rng = np.random.default_rng(0)
    # As many records as any other axis is long, one, and more.
    rows = {n: rng.normal(size=(n, 4, 4)) for n in (1, 4, 6)}
    accepted = 0
    for program in _programs(rng, 600):
        graph = tf.Graph()
        with graph.as_default():
            x = tf.compat.v1.placeholder(tf.float64, [None, 4, 4])
            kinds = Kinds()
            kinds.add_records(x)
            try:
                y = program(x)
                for op in graph.get_operations()[1:]:
                    kinds.add(op)
                if not kinds.is_records(y):
                    raise MixesError
            except (MixesError, ValueError, tf.errors.InvalidArgumentError):
                continue
        with tf.compat.v1.Session(graph=graph) as session:
            for n, records in rows.items():
                try:
                    found = session.run(y, {x: records})
                except tf.errors.InvalidArgumentError:  # For this number of records only.
                    continue
                assert len(found) == n
                alone = [session.run(y, {x: records[i : i + 1]})[0] for i in range(n)]
                np.testing.assert_allclose(
                    found, np.stack(alone), rtol=1e-9, atol=1e-9 * np.max(np.abs(found))
                )
                accepted += 1
    assert accepted > 300
