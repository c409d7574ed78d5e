"""Code of one's own in and around layers that Keras knows: it may not run on a batch."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tests.gradients.problems import (
    assert_engines_agree,
    by_engine,
    model_of,
    normal,
    problem,
)
from tfdp.gradients import UnsupportedModelError
from tfdp.gradients.explaining import explain
from tfdp.gradients.rules import rule
from tfdp.gradients.rules.rule import LayerRule, RecordWise, register_rule, rule_for

L = keras.layers


def minus_mean(x):
    """Mixes records: what must never be run on a batch."""
    return x - tf.reduce_mean(x, axis=0, keepdims=True) / 2


# name -> (layer, given an activation; shape of its input)
LAYERS = {
    "activation": (L.Activation, (4,)),
    "conv": (lambda f: L.Conv1D(3, 2, activation=f), (5, 4)),
    "conv_transpose": (lambda f: L.Conv1DTranspose(3, 2, activation=f), (5, 4)),
    "dense": (lambda f: L.Dense(3, activation=f), (4,)),
    "depthwise": (lambda f: L.DepthwiseConv1D(2, activation=f), (5, 4)),
    "einsum": (lambda f: L.EinsumDense("abc,cd->abd", (5, 3), activation=f), (5, 4)),
    "separable": (lambda f: L.SeparableConv1D(3, 2, activation=f), (5, 4)),
}
MIXING = {
    "function": lambda: minus_mean,
    "known_function_along_records": lambda: functools.partial(keras.ops.log_softmax, axis=0),
    "layer_along_records": lambda: L.UnitNormalization(axis=0),
    "unknown_layer_in_a_model": lambda: keras.Sequential([L.ReLU(), L.Lambda(minus_mean)]),
}
KNOWN = {
    "keras": lambda: "gelu",
    "keras_along_last_axis": lambda: "softmax",
    "keras_with_arguments": lambda: functools.partial(keras.activations.gelu, approximate=True),
    "layer": lambda: L.LeakyReLU(0.2),
    "layers": lambda: keras.Sequential([L.ReLU(), L.Rescaling(2.0)]),
    "none": lambda: None,
    "operation": lambda: keras.ops.tanh,
    "tensorflow": lambda: tf.nn.relu,
}


@pytest.mark.parametrize("activation", sorted(MIXING))
def test_layer_whose_activation_mixes_records_has_no_rule(activation):
    for make, _ in LAYERS.values():
        assert rule_for(make(MIXING[activation]())) is None


@pytest.mark.parametrize(
    "layer, activation",
    [(layer, "function") for layer in sorted(LAYERS)]
    + [("dense", activation) for activation in sorted(MIXING) if activation != "function"],
)
def test_layer_whose_activation_mixes_records_runs_record_by_record(layer, activation):
    make, shape = LAYERS[layer]
    loss, variables, examples = problem(
        model_of(lambda: make(MIXING[activation]()), shape), normal(*shape)
    )
    assert_engines_agree(loss, variables, examples)


def test_running_it_on_a_batch_would_differ(monkeypatch):
    """Power: the test above fails without the check."""
    monkeypatch.setattr(LayerRule, "holds_for", lambda self, layer: True)
    make, shape = LAYERS["dense"]
    loss, variables, examples = problem(model_of(lambda: make(minus_mean), shape), normal(*shape))
    with pytest.raises(AssertionError):
        assert_engines_agree(loss, variables, examples)


@pytest.mark.parametrize("activation", sorted(KNOWN))
def test_known_activation_keeps_the_rule(activation):
    function = KNOWN[activation]()
    assert isinstance(rule_for(L.Dense(3, activation=function)), LayerRule)
    assert isinstance(rule_for(L.Activation(function)), RecordWise)


class Twice(L.Layer):
    def call(self, inputs):
        return 2 * inputs


def test_promised_activation_keeps_the_rule(monkeypatch):
    assert rule_for(L.Dense(3, activation=Twice())) is None
    monkeypatch.setitem(rule._RULES, Twice, RecordWise())
    assert isinstance(rule_for(L.Dense(3, activation=Twice())), LayerRule)


@pytest.mark.parametrize("activation", ["keras_along_last_axis", "layers"])
def test_known_activation_is_exact(activation):
    make, shape = LAYERS["dense"]
    loss, variables, examples = problem(
        model_of(lambda: make(KNOWN[activation]()), shape), normal(*shape)
    )
    assert_engines_agree(loss, variables, examples)


def called_with_another():
    """A Dense layer whose `call` somebody has replaced."""
    layer = L.Dense(3, name="replaced")
    call = layer.call
    layer.call = lambda inputs, training=None: minus_mean(call(inputs))
    return layer


def test_layer_with_another_call_runs_record_by_record():
    loss, variables, examples = problem(model_of(called_with_another, (4,)), normal(4))
    assert "replaced: record by record" in explain(loss.model)
    assert_engines_agree(loss, variables, examples)


@pytest.mark.parametrize(
    ("make", "method"),
    [
        (lambda: L.Conv1D(3, 2), "convolution_op"),
        (lambda: L.LSTM(3), "inner_loop"),
        (lambda: L.Masking(), "compute_mask"),
        (lambda: keras.Sequential([keras.Input((4,)), L.Dense(2)]), "call"),
        (lambda: functional(keras.Model), "_standardize_inputs"),
        (lambda: L.MultiHeadAttention(2, 3), "_compute_attention"),
        (lambda: L.GroupNormalization(2), "_apply_normalization"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_replaced_method_ends_the_rule(make, method):
    layer = make()
    assert rule_for(layer) is not None
    setattr(layer, method, getattr(layer, method))
    assert rule_for(layer) is None


def test_functions_of_weights_leave_the_rule():
    functions = {
        "kernel_initializer": lambda shape, dtype=None: keras.ops.ones(shape, dtype),
        "kernel_regularizer": lambda w: 0.1 * keras.ops.sum(w),
        "kernel_constraint": lambda w: w,
    }
    assert rule_for(L.Dense(3, **functions)) is not None


@pytest.mark.parametrize("method", ["fit", "summary", "save"])
def test_replaced_method_that_sees_no_batch_leaves_the_rule(method):
    model = keras.Sequential([keras.Input((4,)), L.Dense(2)])
    model.compile("sgd", "mse")
    setattr(model, method, getattr(model, method))
    assert rule_for(model) is not None


def attention_with_another_method():
    """Attention that somebody has made depend on the other records."""
    layer = L.MultiHeadAttention(2, 3, name="replaced")
    compute = layer._compute_attention
    layer._compute_attention = lambda query, key, value, *args, **kwargs: compute(
        query, key, minus_mean(value), *args, **kwargs
    )
    return layer


def attention_with_another_softmax():
    """The same, by a function in the place of a layer."""
    # With dropout, even one that drops nothing, Keras calls it.
    layer = L.MultiHeadAttention(2, 3, dropout=1e-12, name="replaced")
    layer.build((None, 4, 3), (None, 4, 3))
    layer._softmax = lambda scores, mask=None: minus_mean(scores)
    return layer


@pytest.mark.parametrize("make", [attention_with_another_method, attention_with_another_softmax])
def test_attention_with_another_part_runs_record_by_record(make):
    inputs = keras.Input((4, 3))
    model = keras.Model(inputs, make()(inputs, inputs))
    loss, variables, examples = problem(model, normal(4, 3))
    assert "replaced: record by record" in explain(loss.model)
    assert_engines_agree(loss, variables, examples)


# Of [n] the last axis is that of records.
ALONG_LAST_AXIS = {
    "activation": lambda: L.Activation("softmax"),
    "activation_is_a_layer": lambda: L.Activation(L.UnitNormalization()),
    "einsum": lambda: (
        lambda x: L.EinsumDense("ab,b->a", (), activation="softmax")(keras.ops.stack([x, 2 * x], 1))
    ),
    "frozen_einsum": lambda: (
        lambda x: L.EinsumDense("ab,b->a", (), activation="softmax", trainable=False)(
            keras.ops.stack([x, 2 * x], 1)
        )
    ),
    "layer_normalization": lambda: L.LayerNormalization(center=False, scale=False),
    "softmax": L.Softmax,
    "unit_normalization": L.UnitNormalization,
}


# Keras says so of a softmax of one number, which is right.
@pytest.mark.filterwarnings("ignore:You are using a softmax over axis")
@pytest.mark.parametrize("name", sorted(ALONG_LAST_AXIS))
def test_records_of_one_number_are_kept_apart(name):
    number = keras.Input(())
    mixed = ALONG_LAST_AXIS[name]()(number)
    model = keras.Model(number, L.Dense(2)(L.Reshape((1,))(mixed * number)))
    loss, variables, examples = problem(model, normal())
    assert_engines_agree(loss, variables, examples)


@pytest.mark.parametrize("axis", [0, -2, [0, 1]], ids=str)
def test_normalization_of_all_records_runs_record_by_record(axis):
    def make():
        return L.LayerNormalization(axis=axis, center=False, scale=False)

    loss, variables, examples = problem(
        keras.Sequential([keras.Input((4,)), make(), L.Dense(3)]), normal(4)
    )
    assert_engines_agree(loss, variables, examples)
    assert rule_for(make()) is None


@pytest.mark.parametrize("trainable", [True, False])
def test_einsum_that_exchanges_records_and_positions_runs_record_by_record(trainable):
    layer = L.EinsumDense("abc,cd->bad", (None, 3), trainable=trainable)
    layer.build((None, 4, 2))
    assert rule_for(layer) is None


class OwnCall(L.Dense):
    """Does something before Keras sees the inputs."""

    def __call__(self, inputs, **kwargs):
        mixed = inputs if isinstance(inputs, keras.KerasTensor) else minus_mean(inputs)
        return super().__call__(mixed, **kwargs)


def test_layer_with_its_own_double_underscore_call_is_refused():
    loss, variables, examples = problem(model_of(lambda: OwnCall(3), (4,)), normal(4))
    query = tfdp.GaussianSumQuery(0.3, 1.0)
    with pytest.raises(UnsupportedModelError, match="its own __call__"):
        by_engine(loss, variables, examples, query, "bookkeeping")
    expected = by_engine(loss, variables, examples, query, "loop")
    for a, e in zip(by_engine(loss, variables, examples, query, "auto"), expected, strict=True):
        np.testing.assert_allclose(a, e, atol=1e-6)


class MixingPolicy(keras.DTypePolicy):
    """Converts what a layer is called on, and mixes it."""

    def convert_input(self, x, autocast, dtype):
        x = super().convert_input(x, autocast, dtype)
        return minus_mean(x) if tf.is_tensor(x) and x.shape.rank == 2 else x


def policy_with_another_method():
    policy = keras.DTypePolicy("float32")
    policy.convert_input = MixingPolicy("float32").convert_input
    return policy


class MixingMetadata(L.ReLU):
    """Hangs a mask of all records on what the layer returns."""

    def _set_mask_metadata(self, inputs, outputs, previous_mask):
        if tf.is_tensor(outputs):
            outputs._keras_mask = minus_mean(outputs) > 0


AROUND = {
    "activation": (lambda: L.Activation("relu", dtype=MixingPolicy("float32")), "dtype_policy"),
    "dense": (lambda: L.Dense(3, dtype=MixingPolicy("float32")), "dtype_policy"),
    "dense_with_an_activation_of_ones_own": (
        lambda: L.Dense(3, activation=minus_mean, dtype=MixingPolicy("float32")),
        "dtype_policy",
    ),
    "frozen_dense": (
        lambda: L.Dense(3, trainable=False, dtype=MixingPolicy("float32")),
        "dtype_policy",
    ),
    "layer_without_a_rule": (
        lambda: Twice(dtype=MixingPolicy("float32")),
        "dtype_policy",
    ),
    "method_of_one_policy": (
        lambda: L.Dense(3, dtype=policy_with_another_method()),
        "dtype_policy",
    ),
    "masks": (MixingMetadata, "_set_mask_metadata"),
}


@pytest.mark.parametrize("name", sorted(AROUND))
def test_what_keras_runs_around_a_call_is_refused_where_it_is_not_keras(name):
    make, what = AROUND[name]
    # The input is no tensor of TensorFlow's default type, so Keras converts it.
    model = keras.Sequential(
        [keras.Input((4,)), L.Dense(4, dtype="float64"), make(), L.Dense(2, dtype="float32")]
    )
    loss, variables, examples = problem(model, normal(4))
    query = tfdp.GaussianSumQuery(0.3, 1.0)
    with pytest.raises(UnsupportedModelError, match=f"its own {what}"):
        by_engine(loss, variables, examples, query, "bookkeeping")
    expected = by_engine(loss, variables, examples, query, "loop")
    for a, e in zip(by_engine(loss, variables, examples, query, "auto"), expected, strict=True):
        np.testing.assert_allclose(a, e, atol=1e-6)


class CallsAnother(L.Layer):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def call(self, inputs):
        # Keras converts what a layer gets by name.
        return self.layer(inputs=inputs)


def test_policy_of_ones_own_in_a_block_makes_it_run_record_by_record():
    layer = L.Dense(3, name="inside", dtype=MixingPolicy("float32"))
    model = model_of(lambda: CallsAnother(layer), (4,))
    loss, variables, examples = problem(model, normal(4))
    assert "inside in it has its own dtype_policy" in explain(model)
    assert_engines_agree(loss, variables, examples)


@pytest.mark.parametrize("make", [L.LSTM, L.GRU, L.SimpleRNN])
def test_policy_of_ones_own_of_a_cell_takes_the_rule_away(make):
    layer = make(3)
    assert rule_for(layer) is not None
    vars(layer.cell)["_dtype_policy"] = MixingPolicy("float32")
    assert rule_for(layer) is None


class Standardizes(keras.Model):
    def _standardize_inputs(self, inputs):
        return [minus_mean(x) for x in super()._standardize_inputs(inputs)]


class RunsGraph(keras.Model):
    def _run_through_graph(self, *args, **kwargs):
        outputs = super()._run_through_graph(*args, **kwargs)
        return minus_mean(outputs) if tf.is_tensor(outputs) else outputs


class HasInside(keras.Sequential):
    @property
    def _functional(self):
        return vars(self).get("inside")

    @_functional.setter
    def _functional(self, functional):
        vars(self)["inside"] = functional


class HidesLayers(keras.Sequential):
    @property
    def layers(self):
        return super().layers


def sequential_with_another_inside():
    inputs = keras.Input((4,))
    model = keras.Sequential([keras.Input((4,)), L.Dense(3)])
    vars(model)["_functional"] = Standardizes(inputs, model.layers[0](inputs))
    return model


def functional(make):
    inputs = keras.Input((4,))
    return make(inputs, L.Dense(3)(inputs))


FORWARD = {
    "standardizes": lambda: functional(Standardizes),
    "runs_graph": lambda: functional(RunsGraph),
    "has_inside": lambda: HasInside([keras.Input((4,)), L.Dense(3)]),
    "hides_layers": lambda: HidesLayers([keras.Input((4,)), L.Dense(3)]),
    "another_inside": sequential_with_another_inside,
}


@pytest.mark.parametrize("name", sorted(FORWARD))
def test_model_whose_forward_pass_is_not_all_keras_runs_record_by_record(name):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), L.Dense(4), FORWARD[name](), L.Dense(2)])
    assert rule_for(model.layers[1]) is None
    assert_engines_agree(*problem(model, normal(4)))
    with pytest.raises(UnsupportedModelError, match="could do anything with a batch"):
        loss, variables, examples = problem(FORWARD[name](), normal(4))
        by_engine(loss, variables, examples, tfdp.GaussianSumQuery(0.3, 1.0), "bookkeeping")


class Trains(keras.Model):
    """Changes nothing that a batch goes through."""

    _of_my_own = 3

    def build(self, shape=None):
        super().build(shape)

    def compute_output_shape(self, shape):
        return super().compute_output_shape(shape)

    def train_step(self, data):
        return super().train_step(data)

    def _symbolic_build(self, *args, **kwargs):
        return super()._symbolic_build(*args, **kwargs)


def test_model_that_changes_only_how_it_trains_keeps_its_rule():
    assert isinstance(rule_for(functional(Trains)), RecordWise)


@pytest.mark.parametrize("axes", [(0, 1), (0, 2), (-4, -3)])
def test_attention_along_records_runs_record_by_record(axes):
    keras.utils.set_random_seed(1)
    x = keras.Input((3, 5, 4))
    h = L.Dense(4)(x)
    h = L.MultiHeadAttention(2, 3, attention_axes=axes, name="attention")(h, h)
    loss, variables, examples = problem(keras.Model(x, L.Dense(2)(L.Flatten()(h))), normal(3, 5, 4))
    assert "attention: record by record" in explain(loss.model)
    assert_engines_agree(loss, variables, examples)


def test_attention_along_other_axes_keeps_its_rules():
    for axes in (None, (1,), (1, 2)):
        layer = L.MultiHeadAttention(2, 3, attention_axes=axes)
        assert isinstance(rule_for(layer), RecordWise)


class AboveMean(L.Layer):
    """Masks steps by what all records together have."""

    supports_masking = True

    def call(self, inputs):
        return tf.identity(inputs)

    def compute_mask(self, inputs, mask=None):
        return inputs[..., 0] >= tf.reduce_mean(inputs[..., 0], 0, keepdims=True)


class NoMask(AboveMean):
    def compute_mask(self, inputs, mask=None):
        return None


class Chain(keras.Model):
    def __init__(self, layer):
        super().__init__()
        self.parts = [L.Dense(4), layer, L.GlobalAveragePooling1D(), L.Dense(2)]

    def call(self, inputs):
        for part in self.parts:
            inputs = part(inputs)
        return inputs


def masks_replaced(make=L.Masking):
    """A layer of Keras whose method somebody has replaced."""
    layer = make()
    layer.compute_mask = AboveMean().compute_mask
    return layer


def masks_that_count_replaced():
    """Keras asks this layer for its mask: `L.Masking` makes its own in its `call`."""
    return masks_replaced(L.ReLU)


@pytest.mark.parametrize("layer", [AboveMean, NoMask, masks_replaced, masks_that_count_replaced])
def test_masks_are_computed_record_by_record(layer):
    register_rule(Chain, RecordWise())
    keras.utils.set_random_seed(1)
    model = Chain(layer())
    model.output_shape = model(normal(5, 4)).shape
    assert_engines_agree(*problem(model, normal(5, 4)))
