"""What is said of every layer, and why one runs record by record."""

import functools
import pathlib
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tests.gradients import blocks_test
from tests.gradients.blocks_test import RECORD_BY_RECORD, Code, dense, nested
from tests.gradients.problems import BATCH, built, model_of
from tests.gradients.recording_test import Borrows, Compares, Subclassed
from tfdp.gradients import UnsupportedModelError, explain

L, K = keras.layers, keras.ops


def line_of(make, shape=(BATCH, 4), name="block"):
    lines = explain(model_of(make, shape)).split("\n")
    return next(line for line in lines if line.startswith(f"{name}:"))


# A reason, which names the operation and the line of code that makes it.
REASONS = {
    "by_length": "it does something else with a batch of one",
    "counted": "BroadcastTo (blocks_test.py, line N) moves the axis of records",
    "cumulative": "Cumsum (blocks_test.py, line N) is not known to keep records apart",
    "mean": "Mean (blocks_test.py, line N) is not known to keep records apart",
    "number_of_records": "Cast (blocks_test.py, line N) uses the number of records",
    "own_gradient": "IdentityN (blocks_test.py, line N) has a gradient of its own",
}
SOURCE = pathlib.Path(blocks_test.__file__).read_text(encoding="utf-8").split("\n")


def without_line(text):
    return re.sub(r"line \d+", "line N", text)


@pytest.mark.parametrize("name", sorted(REASONS))
def test_reason_why_a_block_runs_record_by_record(name):
    line = line_of(dense(RECORD_BY_RECORD[name]))
    assert without_line(line) == f"block: record by record: {REASONS[name]}"


@pytest.mark.parametrize("name", ["cumulative", "mean"])
def test_line_is_that_of_the_code(name):
    number = int(re.search(r"line (\d+)", line_of(dense(RECORD_BY_RECORD[name])))[1])
    assert f'"{name}": ' in SOURCE[number - 1]


@pytest.mark.parametrize("kind", ["constant", "variable"])
def test_layer_called_on_something_that_holds_no_records(kind):
    constant = tf.ones([4])

    class Shift(L.Layer):
        def call(self, inputs, shift):
            return inputs + K.convert_to_tensor(shift)

    def code(block, x):
        return block.shift(block.dense(x), constant if kind == "constant" else block.dense.bias)

    line = line_of(lambda: Code(code, dense=L.Dense(4), shift=Shift(name="shift")))
    name = "a constant" if kind == "constant" else "bias"
    expected = f"shift is called on {name}, which holds no records"
    assert line == f"block: record by record: {expected}"


def test_layer_called_in_a_loop():
    def code(block, x):
        def turn(i, h):
            return i + 1, block.dense(h)

        return tf.while_loop(lambda i, h: i < 2, turn, (0, block.dense(x)))[1]

    expected = "dense is called in a loop or branch of TensorFlow"
    assert line_of(dense(code)).split(": ")[2].endswith(expected.removeprefix("dense"))


class Cell(L.SimpleRNNCell):
    def call(self, inputs, states, training=False):
        return inputs, states


def test_cell_without_a_rule():
    make = lambda: L.RNN(Cell(4), name="block", return_sequences=True)  # noqa: E731
    assert line_of(make) == "block: record by record: there is no rule for RNN of Cell"


class Renamed(L.Dense):
    def __call__(self, inputs, *args, **kwargs):
        return super().__call__(inputs, *args, **kwargs)


class CallsIt(keras.Model):
    def __init__(self):
        super().__init__()
        self.part = Code(lambda b, x: b.dense(x), dense=Renamed(3, name="renamed"))

    def call(self, inputs):
        return self.part(inputs)


def test_layer_in_a_model_that_has_its_own_call():
    model = CallsIt()
    model(tf.zeros([1, 4]))
    with pytest.raises(UnsupportedModelError, match="renamed .*has its own __call__"):
        explain(model, tf.zeros([1, 4]))


def test_layers_in_a_block_follow_it():
    keras.backend.clear_session()  # Names are numbered anew.
    assert explain(model_of(nested, (BATCH, 4))).split("\n")[1:-1] == [
        "block: block, on the batch",
        "block/layer_normalization: LayerNormalizationRule",
        "block/block: block, on the batch",
        "block/block/dense: DenseRule",
    ]


def test_integers_that_a_layer_keeps():
    """TensorFlow captures tensors that were made eagerly, but for small ones."""
    kept = tf.constant([0, 2] * 100, tf.int64)
    make = dense(lambda b, x: b.dense(x) + K.sum(K.take(x, kept, 2), 2, keepdims=True))
    assert line_of(make) == "block: block, on the batch"


def test_layer_in_a_block_that_runs_record_by_record():
    def make():
        inner = Code(RECORD_BY_RECORD["mean"], dense=L.Dense(4))
        return Code(lambda b, x: b.inner(x) + x, inner=inner)

    lines = explain(model_of(make, (BATCH, 4))).split("\n")
    assert "block: block, on the batch" in lines
    assert f"block/block: record by record: {REASONS['mean']}" in map(without_line, lines)
    # What is in it is a part of its own call.
    assert len(lines) == 4


class WithBlock(Subclassed):
    """A subclassed model with a promise, and a block."""

    def __init__(self):
        super().__init__()
        self.second = Code(lambda b, x: b.dense(x), dense=L.Dense(2))
        self.second.built = True

    def build(self, shape):
        self.first.build(shape)
        self.second.dense.build(shape)


tfdp.gradients.register_rule(WithBlock, tfdp.gradients.RecordWise())


class OwnCall(L.Layer):
    def __init__(self):
        super().__init__(name="inner")

    def __call__(self, inputs):
        return 2 * super().__call__(inputs)

    def call(self, inputs):
        return inputs


WHY = {
    "loop": (
        lambda: L.GRU(3, activation=tf.math.lgamma, name="block"),
        "Lgamma (Lgamma) is not known to keep",
    ),
    "own_call": (
        lambda: Code(lambda b, x: b.i(x), i=OwnCall()),
        "inner in it has its own __call__",
    ),
    "promise": (lambda: L.UnitNormalization(axis=0, name="block"), "is not known to keep"),
}


@pytest.mark.parametrize("name", sorted(WHY))
def test_why_a_layer_is_no_block(name):
    make, reason = WHY[name]
    assert reason in line_of(make)
    assert "record by record: " in line_of(make)


def test_call_for_which_a_promise_does_not_hold():
    x = keras.Input((4, 4))
    model = keras.Model(x, L.Dense(2)(L.Flatten()(L.RandomFlip(name="flip")(L.Dense(4)(x)))))
    assert "flip: record by record: its promise does not hold for" in explain(model)


def test_layer_that_is_treated_in_two_ways_has_one_line():
    flip, flat = L.RandomFlip(name="flip"), L.Flatten()
    x = keras.Input((4, 4, 1))
    y = L.Dense(1, name="first")(x)
    both = K.concatenate([flat(flip(y)), flat(flip(y[..., 0])), flat(flip(y[..., 0]))], axis=1)
    lines = explain(keras.Model(x, L.Dense(2, name="head")(both))).split("\n")
    assert [line.split(":")[0] for line in lines] == ["first", "flip", "head"]


def test_lengths_that_a_model_leaves_open_are_those_of_the_inputs():
    def code(block, x):
        return K.cumsum(block.dense(x), 0 if x.shape[1] is None else 1)

    x = keras.Input((None, 4))
    block = Code(code, dense=L.Dense(4))
    block.dense.build((None, None, 4))
    block.built = True
    model = keras.Model(x, L.Dense(2)(block(x)))
    for inputs in (np.zeros((2, 5, 4), "float32"), tf.zeros([1, 5, 4]), keras.Input((5, 4))):
        assert "block: block, on the batch" in explain(model, inputs)


class ShortTable(L.Layer):
    """Adds a table of five positions."""

    def build(self, shape):
        self.table = self.add_weight(shape=(5, shape[-1]), name="table")

    def call(self, inputs):
        length = K.shape(inputs)[1]
        return inputs + K.slice(self.table, (0, 0), (length, inputs.shape[-1]))


def test_open_lengths_are_some_that_the_model_takes():
    x = keras.Input((None, 4))
    model = keras.Model(x, L.Dense(2, name="head")(ShortTable(name="short")(x)))
    expected = "short: on the batch, with weights of its own: table\nhead: DenseRule"
    assert explain(model) == expected == explain(model, tf.zeros([1, 5, 4]))
    with pytest.raises(ValueError, match="ShortTable"):
        explain(model, tf.zeros([1, 6, 4]))


def test_subclassed_model_is_traced_if_inputs_are_given():
    model = built(WithBlock())
    assert "block: record by record, unless its code is seen to" in explain(model)
    assert "block: block, on the batch" in explain(model, tf.zeros([1, 4]))
    model = built(Subclassed())
    assert explain(model).startswith(f"{model.name}: record by record, unless its code is seen to")
    assert explain(model, tf.zeros([1, 4])).startswith(f"{model.name}: block, on the batch\n")
    with pytest.raises(UnsupportedModelError, match="Cumsum .*register_rule"):
        explain(built(Compares()), tf.zeros([1, 4]))


def test_use_of_a_weight_of_another_layer_is_named():
    lines = explain(built(Borrows()), tf.zeros([1, 4]))
    assert "record by record: it uses a weight of another layer" in lines
    assert "(recording_test.py, line" in lines


def test_a_variable_that_keras_does_not_know_is_no_weight():
    factor = tf.Variable(2.0)

    class Reads(L.Layer):
        def call(self, inputs):
            return inputs * factor

    x = keras.Input((4,))
    lines = explain(keras.Model(x, L.Dense(2)(Reads(name="reads")(x))))
    assert "reads: record by record: it reads a tf.Variable, and no weight of Keras (expl" in lines


@pytest.mark.parametrize("inputs", [None, tf.zeros([1, 4])], ids=["none", "batch"])
def test_model_that_is_not_built_is_refused(inputs):
    for model in (Subclassed(), keras.Sequential([L.Dense(2)])):
        with pytest.raises(ValueError, match=f"built model. Give '{model.name}' an Input"):
            explain(model, inputs)


def test_advice_on_a_private_model_names_the_class_in_it():
    model = built(Compares())
    with pytest.raises(UnsupportedModelError, match=r"register_rule\(Compares,"):
        explain(tfdp.keras.make_private(model), tf.zeros([1, 4]))


def test_private_model_is_explained_as_the_model():
    model = model_of(nested, (BATCH, 4))
    assert explain(tfdp.keras.make_private(model)) == explain(model)


def test_inputs_of_several_names():
    inputs = {"a": keras.Input((4,), name="a"), "b": keras.Input((4,), dtype="int32", name="b")}
    embedded = L.Flatten()(L.Embedding(3, 2, name="embedding")(inputs["b"]))
    model = keras.Model(inputs, L.Dense(2, name="head")(K.concatenate([inputs["a"], embedded], 1)))
    assert explain(model) == "embedding: EmbeddingRule\nhead: DenseRule"


def test_nothing_is_left_behind():
    model = model_of(functools.partial(L.Dropout, 0.5), (BATCH, 4))
    before = [v.numpy() for v in model.variables]
    explain(model)
    for old, new in zip(before, model.variables, strict=True):
        np.testing.assert_array_equal(old, new.numpy())
