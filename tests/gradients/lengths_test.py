"""What operations make of lengths, against what TensorFlow computes for several batches."""

import numpy as np
import pytest
import tensorflow as tf

from tfdp.gradients.lengths import LENGTHS_AFTER, Rows, lengths_after

BATCHES = (1, 2, 3, 200)
RAW = tf.raw_ops


def _two(function):
    return lambda rng, a, b: function(a, b)


def _sliced(rng, a, b):
    begin, end, stride = rng.integers(-4, 5), rng.integers(-4, 5), rng.choice([-2, -1, 1, 2])
    masks = {f"{name}_mask": int(rng.integers(4)) for name in ("begin", "end")}
    if a.shape.rank == 1 and rng.random() < 0.3:
        begin, stride = int(rng.integers(-a.shape[0], a.shape[0])), 1
        masks = {"shrink_axis_mask": 1}
    return RAW.StridedSlice(input=a, begin=[begin], end=[end], strides=[stride], **masks)


# From a generator and two tensors of lengths, each of rank 0, 1 or 2.
STEPS = {
    "add": _two(tf.add),
    "cast": lambda rng, a, b: tf.cast(a, tf.int32 if a.dtype == tf.int64 else tf.int64),
    "cast_to_few_bits": lambda rng, a, b: tf.cast(a, tf.int8),
    "divide": _two(tf.math.floordiv),
    "expand": lambda rng, a, b: tf.expand_dims(a, int(rng.integers(0, a.shape.rank + 1))),
    "flatten": lambda rng, a, b: tf.reshape(a, [-1]),
    "gather": lambda rng, a, b: tf.gather(
        a, int(rng.integers(-1, 2)), axis=int(rng.integers(a.shape.rank))
    ),
    "gather_two": lambda rng, a, b: tf.gather(a, [1, 0]),
    "join": lambda rng, a, b: tf.concat([a, b], int(rng.integers(a.shape.rank))),
    "maximum": _two(tf.maximum),
    "multiply": _two(tf.multiply),
    "product": lambda rng, a, b: tf.reduce_prod(a),
    "product_along_none": lambda rng, a, b: tf.reduce_prod(a, axis=[]),
    "product_kept": lambda rng, a, b: tf.reduce_prod(a, axis=0, keepdims=True),
    "slice": _sliced,
    "squeeze": lambda rng, a, b: tf.squeeze(a),
    "stack": lambda rng, a, b: tf.stack([a, b], int(rng.integers(a.shape.rank + 1))),
    "subtract": _two(tf.subtract),
}


def _program(seed, steps=30):
    """Returns tensors of lengths, and what they are said to hold, from a placeholder of records."""
    rng = np.random.default_rng(seed)
    records = tf.compat.v1.placeholder(tf.float32, [None, 3, 4])
    shape = tf.shape(records)
    known = {shape.name: [Rows(1), 3, 4]}
    tensors = [shape, tf.constant(1), tf.constant(2), tf.constant([2, 1]), tf.constant([3, 1, 4])]
    known |= {t.name: list(np.reshape(tf.get_static_value(t), -1).tolist()) for t in tensors[1:]}
    made = []
    while steps:
        name = rng.choice(list(STEPS))
        chosen = [tensors[min(int(rng.exponential(3)), len(tensors) - 1)] for _ in range(2)]
        steps -= 1
        try:
            result = STEPS[name](rng, *chosen)
        except (ValueError, TypeError):  # Ranks, lengths or types do not fit.
            continue
        op = result.op
        if not all(t.name in known or t.op.type == "Const" for t in op.inputs):
            continue  # It comes from what was not known.
        lists = [
            known[t.name] if t.name in known else np.reshape(tf.get_static_value(t), -1).tolist()
            for t in op.inputs
        ]
        after = lengths_after(op, lists)
        if after is not None:
            known[result.name] = after
            tensors.insert(0, result)
            made.append((str(name), result, after))
    return records, made


@pytest.mark.parametrize("seed", range(40))
def test_lengths_are_those_that_tensorflow_computes(seed):
    with tf.Graph().as_default():
        records, made = _program(seed)
        with tf.compat.v1.Session() as session:
            for batch in BATCHES:
                values = session.run([t for _, t, _ in made], {records: np.zeros([batch, 3, 4])})
                for (name, _, after), value in zip(made, values, strict=True):
                    said = [n.times * batch if isinstance(n, Rows) else n for n in after]
                    assert value.ndim < 2 and value.reshape(-1).tolist() == said, name


def test_every_rule_is_tried():
    kinds: set[str] = set()
    of_records: set[str] = set()
    for seed in range(40):
        with tf.Graph().as_default():
            made = _program(seed)[1]
        kinds |= {t.op.type for _, t, _ in made}
        of_records |= {t.op.type for _, t, after in made if any(isinstance(n, Rows) for n in after)}
    # The number of records is never added to.
    assert kinds == set(LENGTHS_AFTER)
    assert of_records == set(LENGTHS_AFTER) - {"AddV2", "Sub"}
