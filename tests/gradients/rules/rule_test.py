"""Which rule a layer has, and that code which is not its class's own takes it away."""

import keras
import pytest
import tensorflow as tf

import tfdp.gradients as tg
from tfdp.gradients.keras_internals import AROUND_CALL
from tfdp.gradients.rules.dense import DenseRule
from tfdp.gradients.rules.rule import (
    _RULES,
    Around,
    RecordWise,
    class_of,
    has_own,
    innermost,
    is_of_keras,
    is_patched,
    own_around_call,
    rule_for,
)

L = keras.layers


class Derived(L.Dense):
    """A class derived from Dense may do something else with its kernel."""

    def call(self, inputs, training=None):
        return super().call(inputs - tf.reduce_mean(inputs, 0), training=training)


def test_rule_holds_for_exactly_its_class():
    assert isinstance(rule_for(L.Dense(2)), DenseRule)
    assert rule_for(Derived(2)) is None


@keras.saving.register_keras_serializable("tests")
class Renamed(L.Dense):
    """Dense by another name, as KerasHub has layers of Keras."""


class Marked(L.Dense):
    activation = None


class MasksNothing:
    def compute_mask(self, *args):
        return None


class Mixed(L.Dense, MasksNothing):
    """Has code of another class, too."""


def test_a_class_that_adds_nothing_is_the_one_that_it_is_derived_from(monkeypatch):
    assert class_of(Renamed(2)) is L.Dense
    assert isinstance(rule_for(Renamed(2)), DenseRule)
    again = type("Again", (Renamed,), {})
    assert isinstance(rule_for(again(2)), DenseRule)
    assert class_of(Marked(2)) is Marked and rule_for(Marked(2)) is None
    assert class_of(Mixed(2)) is Mixed and rule_for(Mixed(2)) is None
    monkeypatch.setattr(Renamed, "call", Derived.call, raising=False)
    assert rule_for(Renamed(2)) is None and rule_for(again(2)) is None


def test_a_function_in_an_attribute_takes_the_rule_of_such_a_class_away():
    layer = Renamed(2)
    vars(layer)["transform"] = lambda x: x
    assert is_patched(layer)
    assert rule_for(layer) is None


def test_a_rule_of_its_own_goes_before(monkeypatch):
    promise = RecordWise()
    monkeypatch.setitem(_RULES, Renamed, promise)
    assert rule_for(Renamed(2)) is promise


def test_activation_that_is_not_known_takes_the_rule_away():
    assert isinstance(rule_for(L.Dense(2, activation="tanh")), DenseRule)
    assert rule_for(L.Dense(2, activation=lambda x: x - tf.reduce_mean(x, 0))) is None


def test_activation_may_be_a_layer_that_is_known():
    assert isinstance(rule_for(L.Dense(2, activation=L.ReLU())), DenseRule)
    assert rule_for(L.Dense(2, activation=L.BatchNormalization())) is None


@pytest.mark.parametrize("name", ["call", "__call__", "compute_mask", "compute_output_shape"])
def test_method_of_one_object_takes_the_rule_away(name):
    layer = L.Dense(2)
    assert not is_patched(layer)
    vars(layer)[name] = lambda *args, **kwargs: None
    assert is_patched(layer)
    assert rule_for(layer) is None


class Holder(keras.Model):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def call(self, inputs):
        return self.model(inputs)


def test_a_model_with_code_of_its_own_around_another_is_not_looked_through(monkeypatch):
    monkeypatch.setitem(_RULES, Holder, Around(lambda holder: holder.model))
    holder = Holder(keras.Sequential([keras.Input((4,)), L.Dense(2)]))
    assert innermost(Holder(holder)) is holder.model
    holder.call = holder.call
    assert innermost(Holder(holder)) is holder


def test_function_that_keras_does_not_keep_takes_the_rule_away():
    layer = L.Dense(2, kernel_initializer=lambda shape, dtype=None: tf.ones(shape, dtype))
    assert not is_patched(layer)  # An initializer never sees a batch.
    vars(layer)["transform"] = lambda x: x
    assert is_patched(layer)


class OwnConversion(keras.DTypePolicy):
    pass


def test_dtype_policy_of_ones_own_takes_the_rule_away():
    for policy in ("float32", "mixed_float16", keras.DTypePolicy("float64")):
        assert not is_patched(L.Dense(2, dtype=policy))
        assert own_around_call(L.Dense(2, dtype=policy)) is None
    layer = L.Dense(2, dtype=OwnConversion("float32"))
    assert is_patched(layer)
    assert own_around_call(layer) == "dtype_policy"


@pytest.mark.parametrize("name", AROUND_CALL)
def test_what_keras_runs_around_a_call(name):
    own = type("Own", (L.Dense,), {name: lambda *args, **kwargs: None})
    assert own_around_call(object.__new__(own)) == name


def test_methods_for_training_are_no_patch():
    model = keras.Sequential([keras.Input((2,)), L.Dense(2)])
    vars(model)["fit"] = lambda: None
    assert not is_patched(model)
    assert isinstance(rule_for(model), RecordWise)


def test_functional_models_run_as_keras_and_subclassed_ones_do_not():
    class Own(keras.Model):
        def call(self, x):
            return x

    inputs = keras.Input((2,))
    assert isinstance(rule_for(keras.Model(inputs, L.Dense(2)(inputs))), RecordWise)
    assert rule_for(Own()) is None
    assert has_own(Own(), "call")
    assert not has_own(L.Dense(2), "call")
    assert is_of_keras(L.Dense)
    assert not is_of_keras(Own)


def test_promise_holds_where_it_is_meant_to():
    wide = RecordWise(when=lambda layer: layer.units > 1, called_on=lambda layer, x: x.shape[1] > 1)
    assert wide.holds_for(L.Dense(2))
    assert not wide.holds_for(L.Dense(1))
    assert wide.looks_at_calls(L.Dense(2))
    assert wide.holds_on(L.Dense(2), tf.zeros([3, 2]))
    assert not wide.holds_on(L.Dense(2), tf.zeros([3, 1]))


def test_promise_for_ones_own_layer_is_meant_for_all_calls():
    class Own(L.Layer):
        pass

    with tf.Graph().as_default():
        one_number, several = (
            tf.compat.v1.placeholder(tf.float32, shape) for shape in ([None], [None, 2])
        )
        assert RecordWise().holds_on(Own(), one_number)
        assert not RecordWise().looks_at_calls(Own())
        # The last axis of [n] is that of records.
        assert not RecordWise().holds_on(L.ReLU(), one_number)
        assert RecordWise().holds_on(L.ReLU(), several)
        assert RecordWise().looks_at_calls(L.ReLU())


def test_parts_are_the_layers_inside():
    inner = L.Dense(2)
    model = keras.Sequential([keras.Input((2,)), inner])
    assert inner in RecordWise().parts(model)
    assert RecordWise().parts(L.ReLU()) == []


def test_bad_registrations_are_refused():
    with pytest.raises(TypeError, match="class of Keras layers"):
        tg.register_rule(int, RecordWise())
    with pytest.raises(TypeError, match="LayerRule or RecordWise"):
        tg.register_rule(Derived, "record-wise")
