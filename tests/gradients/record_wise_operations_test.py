"""Which operations are known to keep the records apart."""

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
