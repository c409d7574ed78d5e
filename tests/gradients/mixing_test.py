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


def masks_replaced():
    """A layer of Keras whose method somebody has replaced."""
    layer = L.Masking()
    layer.compute_mask = AboveMean().compute_mask
    return layer


@pytest.mark.parametrize("layer", [AboveMean, NoMask, masks_replaced])
def test_masks_are_computed_record_by_record(layer):
    register_rule(Chain, RecordWise())
    keras.utils.set_random_seed(1)
    model = Chain(layer())
    model.output_shape = model(normal(5, 4)).shape
    assert_engines_agree(*problem(model, normal(5, 4)))
