"""What layers return, known from others like them while blocks are tried out."""

import keras
import pytest
import tensorflow as tf

import tfdp
from tests.gradients.problems import (
    BATCH,
    assert_engines_agree,
    by_engine,
    how_it_runs,
    model_of,
    normal,
    problem,
)
from tfdp.gradients import UnsupportedModelError
from tfdp.gradients.returned import Returned

L, K = keras.layers, keras.ops


def rows(*shape):
    return tf.compat.v1.placeholder(tf.float32, [None, *shape])


@pytest.mark.parametrize("number", [None, 1, 6])
def test_a_call_returns_the_same_for_any_number_of_rows(number):
    def call(x, factor, add):
        return {"sum": x[:, :2], "same": x, "none": None, "pair": (x > 0, add)}

    with tf.Graph().as_default():
        outputs, returned = Returned.by(call, (rows(4), 3.0), {"add": rows(5)})
        assert outputs["pair"][0].dtype == tf.bool
        x, add = (tf.compat.v1.placeholder(tf.float32, [number, size]) for size in (4, 5))
        again = returned.again((x, 3.0), {"add": add})
    assert again["none"] is None and not returned.are_records
    made = again["sum"], again["pair"][0], again["same"], again["pair"][1]
    assert [(t.dtype, t.shape) for t in made] == [
        (tf.float32, [number, 2]),
        (tf.bool, [number, 4]),
        (tf.float32, [number, 4]),
        (tf.float32, [number, 5]),
    ]
    # What was returned as it came is what comes, and nothing else is.
    sources = [t.op.inputs[0] if t.op.type == "Identity" else t for t in made]
    assert sources[2] is x and sources[3] is add
    assert all(t.op.type == "Placeholder" and t not in (x, add) for t in sources[:2])


def test_masks_are_returned_and_taken_away_again():
    def call(x, mask):
        x._keras_mask = None
        y = x + 1.0
        y._keras_mask = mask
        return y

    with tf.Graph().as_default():
        first, mask = rows(3, 2), tf.compat.v1.placeholder(tf.bool, [None, 3])
        first._keras_mask = mask
        _, returned = Returned.by(call, (first, mask), {})
        second, other = rows(3, 2), tf.compat.v1.placeholder(tf.bool, [None, 3])
        second._keras_mask = other
        outputs = returned.again((second, other), {})
    assert second._keras_mask is None and returned.are_records
    assert outputs._keras_mask is other


@pytest.mark.parametrize(
    ("call", "known"),
    [
        (lambda x: x, True),
        (lambda x: (x, [K.tanh(x), x[:, 0]]), True),
        (lambda x: (x, None), False),
        (lambda x: (x, 3), False),
        (lambda x: (x, tf.zeros([2])), False),
        (lambda x: K.mean(x), False),
        (lambda x: K.mean(x, axis=0, keepdims=True), False),
        (lambda x: tf.sparse.from_dense(x), False),
        (lambda x: (x, tf.TensorArray(tf.float32, 2)), False),
    ],
)
def test_only_records_are_known(call, known):
    with tf.Graph().as_default():
        assert Returned.by(call, (rows(4),), {})[1].are_records == known


class Counted(L.Layer):
    """Counts the calls of its code, by class."""

    def __init__(self):
        super().__init__()
        self.dense = L.Dense(4)

    def call(self, inputs):
        CALLS[type(self).__name__] += 1
        return self.code(inputs)


class Inner(Counted):
    def code(self, inputs):
        return inputs + K.tanh(self.dense(inputs))


class Middle(Counted):
    def __init__(self):
        super().__init__()
        self.parts = [Inner(), Inner()]

    def code(self, inputs):
        return self.dense(self.parts[0](inputs)) * self.parts[1](inputs)


class Outer(Counted):
    def __init__(self):
        super().__init__()
        self.parts = [Middle(), Middle(), Inner()]

    def code(self, inputs):
        for part in self.parts:
            inputs = part(inputs)
        return self.dense(inputs)


CALLS = dict.fromkeys(["Inner", "Middle", "Outer"], 0)


def test_code_is_tried_once_however_deep_it_is():
    model = model_of(lambda: keras.Sequential([Outer(), Outer()]), (BATCH, 4))
    loss, variables, examples = problem(model, normal(BATCH, 4))
    assert_engines_agree(loss, variables, examples)
    CALLS.update(dict.fromkeys(CALLS, 0))
    by_engine(loss, variables, examples, tfdp.GaussianSumQuery(0.3, 1.0), "bookkeeping")
    # Each kind twice, for a batch and for one record; then each layer once.
    assert CALLS == {"Outer": 2 + 2, "Middle": 2 + 4, "Inner": 2 + 10}


class Kind(L.Layer):
    """A layer whose configuration does not say its width."""

    def __init__(self, widths):
        super().__init__()
        self.widths = list(widths)

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], sum(self.widths)))
        self.built = True

    def get_config(self):
        return {}

    def call(self, inputs):
        return K.matmul(inputs, self.kernel)


class Unlike(L.Layer):
    def __init__(self):
        super().__init__()
        self.first, self.second = Kind([4]), Kind([1, 2])

    def call(self, inputs):
        return K.concatenate([self.first(inputs), self.second(inputs)], axis=-1)


def test_layers_of_other_weights_are_not_alike():
    model = model_of(Unlike, (BATCH, 4))
    assert_engines_agree(*problem(model, normal(BATCH, 4)))
    assert "record by record" not in "".join(how_it_runs(model))


class Positions(L.Layer):
    """Returns where the parts of a record stand, which is the same for all records."""

    def call(self, inputs):
        return K.arange(inputs.shape[1], dtype="float32")[None, :, None]


class Placed(L.Layer):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.dense = Positions(), Positions(), L.Dense(4)

    def call(self, inputs):
        return self.dense(inputs + self.first(inputs) + K.tanh(self.second(inputs)))


def test_constants_that_layers_return_stay_constants():
    model = model_of(Placed, (BATCH, 4))
    assert_engines_agree(*problem(model, normal(BATCH, 4)))
    assert how_it_runs(model)[0] == "block, on the batch"


def test_layers_with_rules_are_tried_once():
    calls = []

    def own(x):
        calls.append(x.shape[0])
        return K.tanh(x)

    def layers(number):
        return lambda: Around(lambda: L.Dense(4, activation=own), number)

    def count(number):
        model = model_of(layers(number), (BATCH, 4))
        loss, variables, examples = problem(model, normal(BATCH, 4))
        assert_engines_agree(loss, variables, examples)
        calls.clear()
        by_engine(loss, variables, examples, tfdp.GaussianSumQuery(0.3, 1.0), "bookkeeping")
        return len(calls)

    # Once where the block is tried, twice where the function is, and once where each layer runs.
    assert [count(number) for number in (1, 2, 5)] == [4, 5, 8]


class Mixing(L.Layer):
    def call(self, inputs):
        return inputs - K.mean(inputs, axis=0, keepdims=True)


class AddsLoss(L.Layer):
    def __init__(self):
        super().__init__()
        self.dense = L.Dense(4)

    def call(self, inputs):
        self.add_loss(K.mean(K.square(inputs), axis=(1, 2)))
        return self.dense(inputs)


class Around(L.Layer):
    """A block of like layers."""

    def __init__(self, make, number=2):
        super().__init__()
        self.parts = [make() for _ in range(number)]

    def call(self, inputs):
        for part in self.parts:
            inputs = K.tanh(part(inputs))
        return inputs


@pytest.mark.parametrize(("make", "reason"), [(Mixing, "Mean "), (AddsLoss, "it adds a loss")])
def test_layers_that_run_record_by_record_are_no_reason_for_the_block_around(make, reason):
    model = model_of(lambda: Around(make), (BATCH, 4))
    assert_engines_agree(*problem(model, normal(BATCH, 4)))
    block, *parts = how_it_runs(model)
    assert block == "block, on the batch" and len(parts) == 2
    assert all(part.startswith(f"record by record: {reason}") for part in parts)


class Columns(L.Layer):
    """A layer without weights whose configuration does not say what it returns."""

    def __init__(self, columns):
        super().__init__()
        self.columns = list(columns)

    def get_config(self):
        return {}

    def call(self, inputs):
        return tf.gather(inputs, self.columns, axis=-1)


class TakesColumns(L.Layer):
    def __init__(self, second):
        super().__init__()
        self.first, self.second, self.dense = Columns([0, 2]), Columns(second), L.Dense(4)

    def call(self, inputs):
        return self.dense(K.concatenate([self.first(inputs), self.second(inputs)], axis=-1))


@pytest.mark.parametrize("second", [[1], [1, 2, 3]])
def test_a_block_that_misjudges_what_layers_return_is_right(second):
    model = model_of(lambda: TakesColumns(second), (BATCH, 4))
    assert_engines_agree(*problem(model, normal(BATCH, 4)))
    assert how_it_runs(model)[0].startswith("record by record: its code fails")


def test_a_block_whose_layers_only_seem_alike_is_refused():
    model = model_of(lambda: TakesColumns([1, 3]), (BATCH, 4))
    loss, variables, examples = problem(model, normal(BATCH, 4))
    with pytest.raises(UnsupportedModelError, match="than another of its configuration"):
        by_engine(loss, variables, examples, tfdp.GaussianSumQuery(0.3, 1.0), "bookkeeping")
