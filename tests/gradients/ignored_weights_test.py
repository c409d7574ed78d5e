"""A weight that the loss ignores is refused by its name, by every engine."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tfdp.gradients import ModelLoss, explain

L = keras.layers
ENGINES = ["auto", "bookkeeping", "vectorized", "loop"]


class Block(L.Layer):
    """Two layers; no rule knows it. `way` says what is done with them.

    With an operation that is not known to keep records apart, it runs record by record.
    """

    def __init__(self, way, is_known):
        super().__init__()
        self.way, self.is_known = way, is_known
        self.used = L.Dense(3, name="used")
        self.ignored = L.Dense(3, name="ignored")

    def build(self, shape):
        self.used.build(shape)
        self.ignored.build(shape)
        super().build(shape)

    def call(self, inputs, others=None):
        if not self.is_known:
            inputs = tf.math.bessel_i0e(inputs)
        if self.way == "not called":
            return self.used(inputs)
        if self.way == "called for nothing":
            self.ignored(inputs)
            return self.used(inputs)
        if self.way == "stopped":
            return self.used(inputs) + tf.stop_gradient(self.ignored(inputs))
        if self.way == "second output":
            return self.used(inputs), self.ignored(inputs)
        if self.way == "integers":
            return self.used(inputs), tf.cast(self.ignored(inputs), tf.int32)
        return self.used(inputs)


def within(way, is_known):
    inputs = keras.Input((2,))
    outputs = Block(way, is_known)(inputs)
    outputs = outputs[0] if isinstance(outputs, (list, tuple)) else outputs
    return keras.Model(inputs, L.Dense(1, name="head")(outputs))


class Takes(L.Layer):
    """Uses one of its two inputs only. No rule knows it, and it may run record by record."""

    def __init__(self, second, is_known):
        super().__init__()
        self.second, self.is_known = second, is_known

    def call(self, inputs):
        first, second = inputs
        if not self.is_known:
            first = tf.math.bessel_i0e(first)
        return (first, tf.square(second)) if self.second else tf.square(first)


def before(second, is_known):
    inputs = keras.Input((2,))
    branches = [L.Dense(3, name="used")(inputs), L.Dense(3, name="ignored")(inputs)]
    outputs = Takes(second, is_known)(branches)
    return keras.Model(inputs, L.Dense(1, name="head")(outputs[0] if second else outputs))


def beside():
    inputs = keras.Input((2,))
    used = L.Dense(3, name="used")(inputs)
    # Both are outputs of the model, and the loss looks at the first one.
    return keras.Model(inputs, [used, L.Dense(3, name="ignored")(inputs)])


HOW = {"on the batch": True, "record by record": False}
MODELS = {
    **{
        f"in a block {how}: {way}": functools.partial(within, way, is_known)
        for way in ("not called", "called for nothing", "stopped", "second output", "integers")
        for how, is_known in HOW.items()
    },
    **{
        f"before {what}, {how}": functools.partial(before, second, is_known)
        for what, second in [("a layer that ignores it", False), ("an ignored output", True)]
        for how, is_known in HOW.items()
    },
    "at an output that the loss ignores": beside,
}


@pytest.mark.parametrize("case", MODELS)
def test_cases_run_as_they_say(case):
    treated = str(explain(MODELS[case]()))
    assert ("record by record" in treated) == ("record by record" in case)


def total(model, engine):
    return tfdp.clipped_gradient_sum(
        ModelLoss(model, lambda y, outputs: tf.reduce_sum(tf.nest.flatten(outputs)[0])),
        model.trainable_variables,
        (tf.ones([3, 2]), tf.zeros([3])),
        tfdp.GaussianSumQuery(1.0, 1.0),
        engine=engine,
    )


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", MODELS)
def test_weight_that_the_loss_ignores_is_refused_by_name(case, engine):
    with pytest.raises(ValueError, match="does not depend on.*ignored/kernel.*trainable = False"):
        total(MODELS[case](), engine)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", MODELS)
def test_frozen_it_may_be_ignored(case, engine):
    model = MODELS[case]()
    for layer in model._flatten_layers():
        if layer.name == "ignored":
            layer.trainable = False
    sums = total(model, engine).sample_state
    assert len(sums) == len(model.trainable_variables) > 0
    assert all(np.isfinite(one).all() and np.any(one) for one in sums)
