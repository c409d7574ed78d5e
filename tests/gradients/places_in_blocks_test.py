"""Blocks that read at places that records name, which need not exist."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tests.gradients.integers_test import assert_attackers_move_nothing
from tests.gradients.problems import (
    BATCH,
    assert_agrees_with_xla,
    assert_engines_agree,
    assert_sums_agree,
    explicit_sum,
    head,
    normal,
    problem,
    traced_sum,
)

L, K = keras.layers, keras.ops
ROWS, LENGTH = 6, 3
HUGE = 2**31 - 1


class Reads(L.Layer):
    """A block whose code is a function of its weights and layers, numbers [n, 4, 4] and places."""

    def __init__(self, code, shapes=None, **layers):
        super().__init__()
        self.code, self.shapes = code, shapes or {}
        for name, layer in layers.items():
            setattr(self, name, layer)

    def build(self, *_):
        for name, shape in self.shapes.items():
            setattr(self, name, self.add_weight(shape=shape, initializer="uniform", name=name))

    def call(self, h, ids):
        return self.code(self, h, ids)


def masked_tokens(b, h, ids):
    """What a head for masked tokens does."""
    found = b.dense(K.take_along_axis(K.repeat(h, 2, axis=1)[:, :ROWS], ids[..., None], axis=1))
    return K.matmul(found, K.transpose(b.table)) + b.bias


def of_each_row(b, h, ids):
    """Reads for rows of records."""
    rows = K.reshape(ids, (-1,))
    codes = K.reshape(K.arange(4.0 * ROWS) / 24, (ROWS, 4))
    found = K.reshape(b.dense(K.take(codes, rows, axis=0)), (-1, LENGTH, 4))
    return found * K.sum(h, axis=1, keepdims=True)


def in_turn(b, h, ids):
    """Reads places at places."""
    order = K.flip(K.arange(ROWS, dtype="int32"))
    return K.take(b.table, K.take(order, ids, axis=0), axis=0) * h[:, :LENGTH]


def of_inner_blocks(b, h, ids):
    return b.outer(h, ids) * b.dense(b.inner(h, ids)) * h[:, :LENGTH]


TABLE = {"table": (ROWS, 4)}


def inner():
    return Reads(lambda b, h, ids: tf.gather(b.table, ids), TABLE)


# name -> (a block's code, its weights, its layers, whether -1 is the last place)
READS = {
    "columns": (
        lambda b, h, ids: h * (K.take(b.a, ids[:, 0], 0) + K.take(b.b, ids[:, 1], 0))[:, None],
        {"a": (ROWS, 4), "b": (ROWS, 4)},
        {},
        True,
    ),
    "computed": (
        lambda b, h, ids: h[:, :LENGTH] * tf.gather(b.table, ids + 1),
        {"table": (ROWS + 1, 4)},
        {},
        False,
    ),
    "in_turn": (in_turn, TABLE, {}, True),
    "inner_blocks": (
        of_inner_blocks,
        {},
        {"outer": inner, "inner": inner, "dense": lambda: L.Dense(4)},
        False,
    ),
    "masked_tokens": (
        masked_tokens,
        {"table": (5, 4), "bias": (5,)},
        {"dense": lambda: L.Dense(4)},
        True,
    ),
    "of_each_row": (of_each_row, {}, {"dense": lambda: L.Dense(4)}, True),
    "one_of_a_record": (
        lambda b, h, ids: b.dense(tf.gather(K.repeat(h, 2, 1)[:, :ROWS], ids[:, 0], batch_dims=1)),
        {},
        {"dense": lambda: L.Dense(4)},
        False,
    ),
    "short_numbers": (
        lambda b, h, ids: tf.gather(b.table, K.cast(K.clip(ids, -99, 99), "int16")) * h[:, :LENGTH],
        TABLE,
        {},
        False,
    ),
    "table": (lambda b, h, ids: tf.gather(b.table, ids) * h[:, :LENGTH], TABLE, {}, False),
}


def model_that_reads(name, dtype="int32"):
    code, shapes, layers, _ = READS[name]
    keras.utils.set_random_seed(1)
    numbers, ids = keras.Input((4, 4)), keras.Input((LENGTH,), dtype=dtype)
    block = Reads(code, shapes, **{k: make() for k, make in layers.items()})
    places = ids if dtype == "int32" else K.cast(ids, "int32")
    model = keras.Model([numbers, ids], head(block(L.Dense(4, name="first")(numbers), places)))
    rng = np.random.default_rng(4)
    for v in model.trainable_variables:
        v.assign(rng.normal(size=v.shape))
    return model


def ids_of(rows=BATCH):
    return np.random.default_rng(0).integers(0, ROWS - 1, (rows, LENGTH)).astype("int32")


@pytest.mark.parametrize("name", sorted(READS))
def test_blocks_that_read_at_places_of_records_are_exact_on_the_batch(name, record_by_record):
    assert_engines_agree(*problem(model_that_reads(name), (normal(4, 4), ids_of())))
    assert not record_by_record


def test_with_xla():
    assert_agrees_with_xla(*problem(model_that_reads("masked_tokens"), (normal(4, 4), ids_of())))


def test_numbers_that_are_made_places(record_by_record):
    """Nobody knows which integers they become."""
    model = model_that_reads("table", "float32")
    assert_engines_agree(*problem(model, (normal(4, 4), ids_of().astype("float32"))))
    assert not record_by_record


@pytest.mark.parametrize("name", sorted(READS))
def test_a_record_that_names_a_place_that_does_not_exist_contributes_nothing(
    name, record_by_record
):
    loss, variables, (x, y) = problem(model_that_reads(name), (normal(4, 4), ids_of()))
    numbers, ids = (np.asarray(part) for part in x)
    of_examples = traced_sum(loss, variables, tfdp.GaussianSumQuery(0.25, 0.0))

    def total(ids, y, mask):
        sums = of_examples(((tf.constant(numbers), tf.constant(ids)), y), tf.constant(mask))
        return np.concatenate([np.ravel(part) for part in sums])

    from_the_end = READS[name][3]

    def attacked(row):
        for bad in (ROWS, -1 - ROWS if from_the_end else -2, 10**4 + ROWS, HUGE, -HUGE - 1):
            bad_ids = ids.copy()
            bad_ids[row, 0] = bad
            yield bad_ids, y

    assert_attackers_move_nothing(total, ids, y, attacked, (0, BATCH - 1))
    assert not record_by_record


@pytest.mark.parametrize("name", ["in_turn", "masked_tokens", "of_each_row"])
def test_places_may_be_counted_from_the_end(name):
    model = model_that_reads(name)
    assert_engines_agree(*problem(model, (normal(4, 4), ids_of() - ROWS)))


def test_of_what_nobody_knows_the_length_runs_record_by_record(record_by_record):
    keras.utils.set_random_seed(1)
    table, ids = keras.Input((None, 2)), keras.Input((LENGTH,), dtype="int32")
    block = Reads(lambda b, h, ids: tf.gather(h, ids, axis=1, batch_dims=1))
    model = keras.Model([table, ids], head(block(L.Dense(2)(table), ids)))
    loss, variables, (x, y) = problem(model, (normal(ROWS, 2), ids_of()))
    query = tfdp.GaussianSumQuery(l2_norm_clip=0.3, stddev=1.0)
    specs = tf.TensorSpec([None, None, 2]), tf.TensorSpec([None, LENGTH], tf.int32)
    signature = (specs, tf.TensorSpec([None, *y.shape[1:]])), tf.TensorSpec([None], tf.bool)
    total = tf.function(traced_sum(loss, variables, query), input_signature=signature)
    sums = total((x, y), tf.ones([BATCH], tf.bool))
    assert_sums_agree(sums, explicit_sum(loss, variables, (x, y), 0.3))
    assert record_by_record == [block.name]
