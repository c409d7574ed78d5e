"""Which models the book-keeping engine records, and which it refuses by name."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tests.gradients.problems import (
    assert_engines_agree,
    built,
    by_engine,
    frozen,
    normal,
    problem,
    shared_dense,
    squared_error,
    targets,
)
from tfdp.gradients import (
    Explicit,
    LayerRule,
    ModelLoss,
    RecordWise,
    UnsupportedModelError,
    explain,
    rules,
)
from tfdp.gradients.plan import plan
from tfdp.gradients.recording import Recording

L = keras.layers


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.first, self.second = L.Dense(4, activation="tanh"), L.Dense(2)

    def call(self, x):
        return self.second(self.first(x) + 1.0)

    output_shape = (None, 2)


class Compares(Subclassed):
    """Code that needs not keep the records apart."""

    def call(self, x):
        return super().call(tf.cumsum(x, 0))


class Registered(Subclassed):
    """The same, with a promise."""


class HiddenUse(Subclassed):
    """Uses a weight of a layer without calling the layer."""

    def call(self, x):
        return super().call(x) * tf.reduce_sum(self.first.kernel.value)


class EmbedsPositions(Subclassed):
    """Calls a layer on what is not a batch: positions, the same for every record."""

    def __init__(self):
        super().__init__()
        self.positions = L.Embedding(4, 4)

    def call(self, x):
        return super().call(x + self.positions(tf.range(4))[:1])


class Borrower(L.Layer):
    """A layer without a rule that uses a weight which is not its own."""

    def build(self, shape):
        self.own = self.add_weight(shape=(), initializer="ones")

    def call(self, x):
        return x * self.own * tf.reduce_sum(vars(self)["lender"].kernel.value)


class Borrows(Subclassed):
    def __init__(self):
        super().__init__()
        self.borrower = Borrower()
        vars(self.borrower)["lender"] = self.first  # As an attribute Keras would make it a part.

    def call(self, x):
        return self.borrower(super().call(x))


class Keeps(Subclassed):
    """Leaves the activations of all records lying about, and their mean."""

    def call(self, x):
        outputs = super().call(x)
        vars(self)["kept"] = {"all": outputs, "mean": tf.reduce_mean(outputs)}
        return outputs


tfdp.gradients.register_rule(Borrows, tfdp.gradients.RecordWise())
tfdp.gradients.register_rule(Keeps, tfdp.gradients.RecordWise())
tfdp.gradients.register_rule(EmbedsPositions, tfdp.gradients.RecordWise())
tfdp.gradients.register_rule(Registered, tfdp.gradients.RecordWise())
tfdp.gradients.register_rule(HiddenUse, tfdp.gradients.RecordWise())


def loss_with_weights():
    model = keras.Sequential([keras.Input((4,)), L.Dense(2)])

    def penalized(y, outputs):
        return squared_error(y, outputs) * tf.reduce_sum(tf.square(model.layers[0].kernel.value))

    return ModelLoss(model, penalized)


def loss_with_all_records(kept):
    model = built(Keeps())
    return ModelLoss(
        model, lambda y, outputs: squared_error(y, outputs) * tf.reduce_mean(model.kept[kept])
    )


def minus_mean_of_everything():
    x = keras.Input((4,))
    h = L.Dense(3)(x)
    return keras.Model(x, L.Dense(2)(h - keras.ops.mean(h)))


UNSUPPORTED = {
    "hidden_use_by_layer": (
        lambda: ModelLoss(built(Borrows()), squared_error),
        "outside of the layers",
    ),
    "loss_with_all_records": (lambda: loss_with_all_records("all"), "comes from all records"),
    "loss_with_their_mean": (lambda: loss_with_all_records("mean"), "comes from all records"),
    "mean_of_everything": (
        lambda: ModelLoss(minus_mean_of_everything(), squared_error),
        "without an axis of records",
    ),
    "subclassed": (
        lambda: ModelLoss(built(Compares()), squared_error),
        r"Compares could do anything with a batch \(Cumsum .*register_rule",
    ),
    "hidden_use": (lambda: ModelLoss(built(HiddenUse()), squared_error), "outside of the layers"),
    "embedded_positions": (lambda: ModelLoss(built(EmbedsPositions()), squared_error), "records"),
    "loss_with_weights": (loss_with_weights, "outside of the layers"),
}


class WithScale(Subclassed):
    """Has a weight of its own, beside its layers."""

    def build(self, shape):
        super().build(shape)
        self.scale = self.add_weight(shape=(4,), initializer="uniform")

    def call(self, x, training=None):
        return self.second(self.first(x * self.scale))


class Private(tfdp.keras.DPModel):
    """A private model with code of its own."""

    output_shape = (None, 2)

    def __init__(self):
        super().__init__()
        self.first, self.second = L.Dense(4, activation="tanh"), L.Dense(2)

    def call(self, x):
        h = self.first(x)
        return self.second(keras.ops.concatenate([h, keras.ops.flip(h, 1)], 1))


SUBCLASSED = {
    "of_keras": Subclassed,
    "of_tfdp": Private,
    "with_a_weight": WithScale,
    "wrapped": lambda: tfdp.keras.make_private(built(WithScale())),
}


@pytest.mark.parametrize("name", SUBCLASSED)
def test_code_of_a_subclassed_model_is_looked_at_like_that_of_a_block(name):
    keras.utils.set_random_seed(1)
    model = built(SUBCLASSED[name]())
    weights = model.trainable_variables
    examples = (tf.constant(normal(4)), tf.constant(targets(2)))
    assert_engines_agree(ModelLoss(model, squared_error), weights, examples)


@pytest.mark.parametrize("change", ["promise", "replaced"])
def test_code_of_a_model_that_something_else_speaks_for_is_not_looked_at(change, monkeypatch):
    model = built(SUBCLASSED[min(SUBCLASSED)]())
    explain(model, tf.zeros([1, 4]))
    if change == "promise":
        promise = RecordWise(when=lambda layer: False)
        monkeypatch.setitem(rules.rule._RULES, type(model), promise)
    else:
        model.call = model.call
    with pytest.raises(UnsupportedModelError, match="could do anything with a batch, so"):
        explain(model, tf.zeros([1, 4]))


class OwnLoop(keras.layers.RNN):
    """A loop of a class that has no rule."""

    of_my_own = True


def test_loop_without_a_rule_is_not_looked_at():
    loop = OwnLoop(keras.layers.SimpleRNNCell(2), unroll=True)
    model = keras.Sequential([keras.Input((3, 4)), loop])
    assert "record by record: there is no rule for OwnLoop" in explain(model)


def test_layer_that_is_recomputed_is_refused():
    with keras.RematScope(mode="full"):
        layer = keras.layers.Dense(2)
    model = keras.Sequential([keras.Input((4,)), layer])
    with pytest.raises(UnsupportedModelError, match="keras.RematScope, which recomputes it"):
        explain(model)


def test_model_whose_promise_does_not_hold_for_a_call_runs_record_by_record(monkeypatch):
    promise = RecordWise(called_on=lambda *args, **kwargs: False)
    monkeypatch.setitem(rules.rule._RULES, Compares, promise)
    keras.utils.set_random_seed(1)
    model = built(Compares())
    assert "its promise does not hold" in explain(model, tf.zeros([1, 4]))
    examples = (tf.constant(normal(4)), tf.constant(targets(2)))
    weights = model.trainable_variables
    assert_engines_agree(ModelLoss(model, squared_error), weights, examples)


@pytest.mark.parametrize("name", sorted(UNSUPPORTED))
def test_unsupported_model_is_refused_and_auto_vectorizes(name, caplog):
    keras.utils.set_random_seed(1)
    make, message = UNSUPPORTED[name]
    loss = make()
    variables = loss.model.trainable_variables
    examples = (tf.constant(normal(4)), tf.constant(targets(2)))
    query = tfdp.GaussianSumQuery(0.3, 1.0)
    with pytest.raises(UnsupportedModelError, match=message):
        by_engine(loss, variables, examples, query, "bookkeeping")
    with caplog.at_level("INFO", "tfdp"):
        actual = by_engine(loss, variables, examples, query, "auto")
    said = [record.getMessage() for record in caplog.records]
    (said,) = {text for text in said if text.startswith("Gradients are computed by")}
    assert re.search(message, said)
    # The sentence alone: Keras puts more around it, over several lines and in colours.
    assert "\n" not in said and "\x1b" not in said
    expected = by_engine(loss, variables, examples, query, "loop")
    for a, e in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-5, atol=1e-7)


def test_weights_of_lora_in_float64_are_refused_and_auto_vectorizes():
    # Keras makes them float32.
    keras.utils.set_random_seed(1)
    dense = L.Dense(2, dtype="float64")
    model = keras.Sequential([keras.Input((4,), dtype="float64"), dense])
    dense.enable_lora(1)
    if dense.lora_kernel_a.dtype == "float64":
        pytest.skip("This Keras makes them float64.")
    loss, variables, examples = problem(model, normal(4))
    query = tfdp.GaussianSumQuery(0.3, 1.0)
    with pytest.raises(UnsupportedModelError, match="lora_kernel_. is float32"):
        by_engine(loss, variables, examples, query, "bookkeeping")
    total = tfdp.clipped_gradient_sum(loss, variables, examples, query, physical_batch_size=2)
    assert [leaf.dtype for leaf in total.sample_state] == [v.dtype for v in variables]
    expected = by_engine(loss, variables, examples, query, "loop")
    for a, e in zip(total.sample_state, expected, strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-5, atol=1e-7)


def test_plain_variables_are_refused_and_auto_vectorizes():
    keras.utils.set_random_seed(1)
    loss, variables, examples = problem(
        keras.Sequential([keras.Input((4,)), L.Dense(2)]), normal(4)
    )
    plain, query = [v.value for v in variables], tfdp.GaussianSumQuery(0.3, 1.0)
    with pytest.raises(UnsupportedModelError, match="model.trainable_variables"):
        by_engine(loss, plain, examples, query, "bookkeeping")
    actual = by_engine(loss, plain, examples, query, "auto")
    expected = by_engine(loss, variables, examples, query, "loop")
    for a, e in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-5, atol=1e-7)


def test_registered_model():
    keras.utils.set_random_seed(1)
    loss, variables, examples = problem(built(Registered()), normal(4))
    assert_engines_agree(loss, variables, examples)


class Scale(L.Layer):
    """One factor for every feature."""

    def build(self, shape):
        self.factor = self.add_weight(shape=shape[-1:], initializer="ones", name="factor")

    def call(self, x):
        return x * self.factor

    def compute_output_shape(self, shape):
        return shape


class ScaleRule(LayerRule):
    def __init__(self, of_records, jointly):
        self.of_records, self.jointly = of_records, jointly

    def variables(self, layer):
        return [layer.factor]

    def record(self, recording, layer, call, x):
        tap = recording.watch(call(x))
        if self.jointly:
            of_taps = lambda taps: [self.of_records(taps[0] * x)]  # noqa: E731
            recording.add_joint([tap], [(layer.factor, [0])], of_taps)
        else:
            recording.add(tap, layer.factor, lambda g: Explicit(self.of_records(g * x)))
        return tap.tensor


RULES = {
    "of_all_records": lambda g: tf.reduce_sum(g, 0, keepdims=True),
    "of_all_records_for_each": lambda g: tf.reduce_sum(g, 0),
    "of_a_fixed_number_of_records": lambda g: tf.ensure_shape(g, [len(targets(2)), 4]),
    "of_fewer_features": lambda g: tf.reduce_sum(g, 1, keepdims=True),
    "without_an_axis_of_features": lambda g: g[:, 0],
}


@pytest.mark.parametrize("jointly", [False, True])
@pytest.mark.parametrize("steps", [False, True])
@pytest.mark.parametrize("name", [None, *sorted(RULES)], ids=str)
def test_rule_must_give_one_gradient_for_every_record(name, steps, jointly, monkeypatch):
    rule = ScaleRule(RULES.get(name, lambda g: g), jointly)
    monkeypatch.setitem(rules.rule._RULES, Scale, rule)
    layer = L.TimeDistributed(Scale()) if steps else Scale()
    shape = (3, 4) if steps else (4,)
    model = keras.Sequential([keras.Input(shape), layer, L.Flatten(), L.Dense(2)])
    loss, variables, examples = problem(model, normal(*shape))
    if name is None:
        assert_engines_agree(loss, variables, examples)
        return
    for engine in ("bookkeeping", "auto"):
        with pytest.raises(ValueError, match="gradients of .*factor by record, .n, 4."):
            by_engine(loss, variables, examples, tfdp.GaussianSumQuery(0.3, 1.0), engine)


def test_quantized_layer_is_refused():
    model = keras.Sequential([keras.Input((4,)), L.Dense(4), L.Dense(2)])
    model.layers[0].quantize("float8")
    loss, variables, examples = problem(model, normal(4))
    with pytest.raises(UnsupportedModelError, match="quantized"):
        by_engine(loss, variables, examples, tfdp.GaussianSumQuery(0.3, 1.0), "bookkeeping")


def test_frozen_layers_are_not_watched():
    model = frozen()
    wanted = {id(v) for v in model.trainable_variables}
    watched = [type(layer).__name__ for layer, _ in plan(model, wanted)]
    assert watched.count("Dense") == 3


def test_weights_are_read_by_operations_that_tensorflow_drops_where_nobody_uses_them():
    model = keras.Sequential([keras.Input((3,)), L.Embedding(9, 2), L.Dense(1)])
    found = []

    @tf.function
    def record():
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            readings = [Recording(tape, model.trainable_variables).aliases for _ in range(2)]
        found.extend(alias for reading in readings for _, alias in reading)
        return 0

    record.get_concrete_function()
    assert len({id(alias) for alias in found}) == 6
    assert {alias.op.type for alias in found} == {"ReadVariableOp"}


def test_layers_are_left_as_they_were():
    model = shared_dense()
    before = {layer.name: dict(vars(layer)) for layer in model.layers}
    loss, variables, examples = problem(model, normal(4))
    by_engine(loss, variables, examples, tfdp.GaussianSumQuery(0.3, 1.0), "bookkeeping")
    for layer in model.layers:
        assert "call" not in vars(layer)
        assert vars(layer).get("activation") is before[layer.name].get("activation")
