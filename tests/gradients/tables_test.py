"""Tables that a layer's own code reads: gradients by record are rows of them."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tests.gradients.problems import (
    BATCH,
    assert_agrees_with_xla,
    assert_engines_agree,
    by_engine,
    head,
    problem,
)
from tfdp.gradients import recording
from tfdp.gradients.tables import RowsOfTable, gradient_of_record

L, K = keras.layers, keras.ops
VOCABULARY = 9
TOKENS = np.random.default_rng(0).integers(0, VOCABULARY, (BATCH, 5)).astype("int32")
TOKENS[0] = [1, 3, 1, 1, 3]  # Some rows are read several times.


class Bag(L.Embedding):
    """An embedding whose code adds up what it reads."""

    def call(self, tokens):
        return K.sum(super().call(tokens), axis=-2)

    def compute_output_shape(self, shape):
        return (*shape[:-1], self.output_dim)


class Reads(L.Layer):
    """Reads a table by its own code."""

    def __init__(self, read, rows=VOCABULARY):
        super().__init__()
        self.read, self.rows = read, rows

    def build(self, shape):
        self.table = self.add_weight(shape=(self.rows, 4), initializer="normal")

    def call(self, tokens):
        return self.read(self.table, tokens)


class Row(Reads):
    def compute_output_shape(self, shape):
        return (*shape[:-1], 4)


# What reads a table, and whether gradients are rows of it.
READS = {
    "bag": (lambda: Bag(VOCABULARY, 4), True),
    "as_many_as_there_are": (lambda: Reads(lambda w, t: tf.gather(w, t % 5), 5), False),
    "gathered": (lambda: Reads(lambda w, t: tf.gather(w, t)), True),
    "looked_up": (lambda: Reads(tf.nn.embedding_lookup), True),
    "places_of_64_bits": (lambda: Reads(lambda w, t: tf.gather(w, tf.cast(t, tf.int64))), True),
    "read_twice": (
        lambda: Reads(lambda w, t: tf.gather(w, t[:, :2]) * tf.gather(w, t[:, 3:])),
        True,
    ),
    "read_too_often": (
        lambda: Reads(lambda w, t: tf.gather(w, t) + tf.gather(w, 1 - t % 2)),
        False,
    ),
    "some_known_to_exist": (lambda: Reads(lambda w, t: tf.gather(w, K.clip(t, 0, 3))), True),
    "multiplied_too": (lambda: Reads(lambda w, t: tf.gather(w, t) @ tf.transpose(w)), False),
    "single_numbers": (lambda: Reads(lambda w, t: tf.gather(w[:, 0], t)), False),
    "columns": (
        lambda: Reads(lambda w, t: tf.transpose(tf.gather(w, t % 4, axis=1), [1, 2, 0])),
        False,
    ),
    "of_windows": (lambda: L.TimeDistributed(Row(lambda w, t: tf.gather(w, t[:, 0]))), True),
}


def model_of(make, shape=(5,)):
    keras.utils.set_random_seed(1)
    inputs = keras.Input(shape, dtype="int32")
    return keras.Model(inputs, head(make()(inputs)))


@pytest.fixture
def rows(monkeypatch):
    """Whether the gradients that TensorFlow found were rows, of each weight."""
    found, add = [], recording.Recording.add_found

    def noted(self, variable, gradients, *args):
        found.append(isinstance(gradients, RowsOfTable))
        return add(self, variable, gradients, *args)

    monkeypatch.setattr(recording.Recording, "add_found", noted)
    return found


@pytest.mark.parametrize("name", sorted(READS))
def test_gradients_of_tables(name, rows):
    make, are_rows = READS[name]
    tokens = TOKENS[..., None] if name == "of_windows" else TOKENS
    assert_engines_agree(*problem(model_of(make, tokens.shape[1:]), tokens))
    assert rows and set(rows) == {are_rows}


def test_gradients_of_tables_that_xla_compiles(rows):
    assert_agrees_with_xla(*problem(model_of(READS["bag"][0]), TOKENS))
    assert rows == [True]


@pytest.mark.parametrize("name", ["bag", "gathered"])
@pytest.mark.parametrize("place", [VOCABULARY, 2**31 - 1, -VOCABULARY - 1])
def test_a_record_without_a_row_contributes_nothing(name, place):
    tokens = TOKENS.copy()
    tokens[1, 2] = place
    loss, variables, (x, y) = problem(model_of(READS[name][0]), tokens)
    query = tfdp.GaussianSumQuery(0.3, 1.0)
    kept = np.arange(BATCH) != 1
    (actual, expected) = (
        by_engine(loss, variables, examples, query, "bookkeeping")
        for examples in ((x, y), (x[kept], y[kept]))
    )
    for a, e in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, e, atol=1e-6)


def test_slices_of_more_rows_than_the_table_has_are_added_up():
    slices = tf.IndexedSlices(tf.ones([3, 2]), tf.constant([0, 1, 0]), tf.constant([2, 2]))
    np.testing.assert_array_equal(
        gradient_of_record(slices, tf.TensorShape([2, 2])), [[2, 2], [1, 1]]
    )
    (rows, ids) = gradient_of_record(slices, tf.TensorShape([4, 2]))
    assert rows.shape == (3, 2) and ids.shape == (3,)
