"""Losses that layers add (`add_loss`, activity regularizers), against Keras on single records."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tests.gradients.problems import (
    BATCH,
    assert_agrees_with_xla,
    assert_engines_agree,
    assert_sums_agree,
    by_engine,
    explicit_sum,
    head,
    normal,
    problem,
)
from tfdp.gradients import ModelLoss, UnsupportedModelError, explain
from tfdp.gradients.engines import bookkeeping

L, K = keras.layers, keras.ops
SQUARES = keras.regularizers.L2(0.3)


class WithAdded(ModelLoss):
    """The loss of a model, and what its layers add."""

    def loss(self, examples, outputs, scope):
        loss, aux = super().loss(examples, outputs, scope)
        return loss + sum(map(tf.reduce_sum, self.added())), aux

    def added(self):
        return self.model.losses


class OfOne(WithAdded):
    """With what one layer adds."""

    def added(self):
        return self.model.get_layer("one").losses


class Divergence(L.Layer):
    """Adds a loss of both its inputs, as the layer that draws in a variational autoencoder."""

    def call(self, inputs):
        mean, scale = inputs
        self.add_loss(K.mean(K.sum(K.square(mean) + K.exp(scale) - scale, axis=-1)))
        return mean + K.exp(scale)


class Balance(L.Layer):
    """Adds two losses, and passes on what it is called on."""

    def call(self, inputs):
        self.add_loss(0.2 * K.mean(K.square(inputs)))
        self.add_loss(K.sum(inputs**3))
        return inputs * 1.0

    def compute_output_shape(self, shape):
        return shape


class OwnLoss(L.Layer):
    """A block whose own code adds a loss, one number for each record."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense = L.Dense(4, "tanh", activity_regularizer=SQUARES)

    def build(self, shape):
        self.dense.build(shape)
        self.scale = self.add_weight(shape=(4,), initializer="ones")

    def call(self, inputs):
        outputs = self.dense(inputs) * self.scale
        self.add_loss(K.mean(K.square(outputs), axis=-1))
        return outputs


class Balanced(L.Layer):
    """A block with a layer in it that adds losses of what its code has made."""

    def __init__(self, scaled, **kwargs):
        super().__init__(**kwargs)
        self.dense, self.balance, self.scaled = L.Dense(4, "tanh"), Balance(), scaled

    def build(self, shape):
        self.dense.build(shape)
        if self.scaled:
            self.scale = self.add_weight(shape=(4,), initializer="ones")

    def call(self, inputs):
        outputs = self.dense(inputs) * (self.scale if self.scaled else 0.7)
        return outputs + self.balance(K.square(outputs))


class Reads(Balanced):
    """A block whose code makes something of the losses of a layer in it."""

    def call(self, inputs):
        outputs = super().call(inputs)
        return outputs * (1.0 + sum(map(K.sum, self.balance.losses)))


class OfItsOwn(L.Layer):
    """A layer without a rule, with a regularizer of its activity."""

    def __init__(self):
        super().__init__(activity_regularizer=SQUARES)

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], 4))

    def call(self, inputs):
        return K.cumsum(inputs @ self.kernel, axis=1 - len(inputs.shape))[..., ::-1]


def after(*layers, shape=(4,)):
    """A dense layer, these, and a dense layer."""
    keras.utils.set_random_seed(1)
    dense = L.Dense(shape[-1], name="first")
    return keras.Sequential([keras.Input(shape), dense, *layers, L.Flatten(), L.Dense(2)])


def divergence():
    keras.utils.set_random_seed(1)
    x = keras.Input((4,))
    h = L.Dense(4, "tanh")(x)
    return keras.Model(x, head(Divergence()([L.Dense(3)(h), L.Dense(3)(h)])))


def used_twice():
    keras.utils.set_random_seed(1)
    x, dense = keras.Input((4,)), L.Dense(4, "tanh", activity_regularizer=SQUARES)
    return keras.Model(x, head(dense(dense(x)) + Balance()(dense(2.0 * x))))


def used_in_a_layer_as_well():
    keras.utils.set_random_seed(1)
    x, own = keras.Input((4,)), OwnLoss()
    return keras.Model(x, head(own(x) + L.Dense(4)(own.dense(2.0 * x))))


def nested():
    keras.utils.set_random_seed(1)
    inner = after(Balance(), L.Dense(3, activity_regularizer=SQUARES))
    x = keras.Input((4,))
    return keras.Model(x, head(inner(L.Dense(4)(x))))


MODELS = {
    "dense": lambda: after(L.Dense(3, activity_regularizer=SQUARES)),
    "dense_on_sequences": lambda: after(
        L.Dense(3, "tanh", activity_regularizer="l1"), shape=(3, 4)
    ),
    "convolution": lambda: after(L.Conv1D(3, 2, activity_regularizer=SQUARES), shape=(4, 2)),
    "recurrent": lambda: after(L.GRU(3, activity_regularizer=SQUARES), shape=(3, 2)),
    "in_both_directions": lambda: after(
        L.Bidirectional(L.GRU(3, activity_regularizer=SQUARES)), shape=(3, 2)
    ),
    "normalization": lambda: after(L.LayerNormalization(activity_regularizer=SQUARES)),
    "activation": lambda: after(L.Activation("tanh", activity_regularizer=SQUARES)),
    "own_activation": lambda: after(
        L.Dense(3, lambda x: K.softmax(x) * K.tanh(x), activity_regularizer=SQUARES)
    ),
    "regularization": lambda: after(L.ActivityRegularization(0.1, 0.2), shape=(3, 4)),
    "frozen": lambda: after(L.Dense(3, activity_regularizer=SQUARES, trainable=False)),
    "divergence": divergence,
    "two_losses": lambda: after(Balance()),
    "block_with_a_loss": lambda: after(OwnLoss()),
    "layer_in_a_block": lambda: after(Balanced(False)),
    "layer_in_a_block_with_weights": lambda: after(Balanced(True), shape=(3, 4)),
    "block_with_a_regularizer": lambda: after(
        Balanced(True, activity_regularizer=SQUARES), shape=(3, 4)
    ),
    "layer_without_a_rule": lambda: after(OfItsOwn(), shape=(3, 4)),
    "used_twice": used_twice,
    "used_in_a_layer_as_well": used_in_a_layer_as_well,
    "nested": nested,
}


def problem_of(model, make=WithAdded):
    loss, variables, examples = problem(model, normal(*model.input_shape[1:]))
    return make(model, loss._loss), variables, examples


@pytest.mark.parametrize("name", sorted(MODELS))
def test_losses_are_those_of_single_records(name):
    model = MODELS[name]()
    loss, variables, examples = problem_of(model)
    assert_engines_agree(loss, variables, examples)
    # They matter.
    without, expected = (
        explicit_sum(of, variables, examples, 0.3) for of in (ModelLoss(model, loss._loss), loss)
    )
    with pytest.raises(AssertionError):
        assert_sums_agree(without, expected, 1e-3)


@pytest.mark.parametrize("name", ["dense", "divergence", "layer_in_a_block_with_weights"])
def test_with_xla(name):
    assert_agrees_with_xla(*problem_of(MODELS[name]()))


@pytest.mark.parametrize("name", ["dense", "divergence", "block_with_a_loss", "recurrent"])
def test_microbatches(name):
    loss, variables, examples = problem_of(MODELS[name]())
    assert_engines_agree(loss, variables, examples, num_microbatches=2, microbatch_ids=[1, 0, 1, 1])


def test_losses_are_those_of_their_layer():
    dense = L.Dense(3, activity_regularizer=SQUARES, name="one")
    model = after(Balance(), dense, L.ActivityRegularization(0.1), OwnLoss())
    assert_engines_agree(*problem_of(model, OfOne))
    own = OwnLoss(name="one")
    assert_engines_agree(*problem_of(after(Balance(), own), OfOne))


def test_a_loss_that_asks_for_none_gets_none():
    for name in ("dense", "divergence", "block_with_a_loss"):
        loss, variables, examples = problem_of(MODELS[name](), ModelLoss)
        assert_engines_agree(loss, variables, examples)


def test_keras_adds_none_of_what_time_distributed_calls():
    inner = L.Dense(3, activity_regularizer=SQUARES)
    model = after(L.TimeDistributed(inner), shape=(3, 4))
    model(normal(3, 4))
    assert model.losses == []
    assert_engines_agree(*problem_of(model))


class Known(set):
    """Identities of tensors that are gone, among which are those of any tensors made later."""

    known = True

    def __contains__(self, identity):
        return self.known or super().__contains__(identity)

    def clear(self):
        super().clear()
        self.known = False


class AfterOthers(WithAdded):
    """As after the losses of another graph."""

    def forward(self, examples, scope):
        outputs = super().forward(examples, scope)
        for layer in self.model._flatten_layers() if scope is not None else ():
            vars(layer)["_loss_ids"] = Known(layer._loss_ids)  # Keras makes a set of its own.
        return outputs


def test_losses_are_not_taken_for_those_of_other_layers():
    """Keras knows them by the identity of tensors, which others may have had before."""
    loss, variables, examples = problem_of(nested(), AfterOthers)
    assert_engines_agree(loss, variables, examples)


def test_only_layers_that_add_them_run_record_by_record():
    """Or none, for what a regularizer gives follows from what its layer returns."""
    lines = {
        name: [line for line in explain(MODELS[name]()).split("\n") if "record by" in line]
        for name in ("divergence", "block_with_a_loss", "layer_in_a_block_with_weights", "dense")
    }
    assert [len(found) for found in lines.values()] == [1, 1, 1, 0]
    assert lines["divergence"][0].endswith(": record by record: it adds a loss of its own")
    assert "has an activity regularizer" in lines["block_with_a_loss"][0]
    assert "/balance" in lines["layer_in_a_block_with_weights"][0]


def test_a_block_that_reads_losses_is_right_or_refused():
    loss, variables, examples = problem_of(after(Reads(True)))
    query = tfdp.GaussianSumQuery(l2_norm_clip=0.3, stddev=1.0)
    with pytest.raises(UnsupportedModelError):
        by_engine(loss, variables, examples, query, "bookkeeping")
    actual = by_engine(loss, variables, examples, query, "auto")
    assert_sums_agree(actual, explicit_sum(loss, variables, examples, 0.3))


class AddsTwice(L.Dense):
    def add_loss(self, loss):
        super().add_loss(loss)
        super().add_loss(loss)


class Whole(keras.Model):
    """A model with code of its own, in which a layer has a regularizer."""

    def __init__(self):
        super().__init__()
        self.first = L.Dense(4, activity_regularizer=SQUARES)
        self.last = L.Dense(2)

    def call(self, inputs):
        return self.last(self.first(inputs))


class OnSteps(keras.Model):
    """A promise that holds of all but what a layer without weights is called on."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.last = layer, L.Dense(2)

    def call(self, inputs):
        self.layer(K.reshape(inputs, (-1, 2)))
        return self.last(inputs)


class Promised(Whole):
    """A promise that does not hold of the loss that its code adds."""

    def call(self, inputs):
        self.add_loss(K.mean(inputs**2))
        return super().call(inputs)


class Twice(L.Layer):
    """A promise, and code that makes something of what its regularizer gives."""

    def __init__(self):
        super().__init__(activity_regularizer=SQUARES)

    def call(self, inputs):
        self.add_loss(2.0 * self.activity_regularizer(inputs))
        return K.tanh(inputs)


def with_a_weight():
    """A regularizer that uses a weight of another layer."""
    first = L.Dense(4)
    last = L.Dense(2, activity_regularizer=lambda y: K.sum(y**2) * K.sum(first.kernel))
    keras.utils.set_random_seed(1)
    return keras.Sequential([keras.Input((4,)), first, last])


tfdp.gradients.register_rule(Twice, tfdp.gradients.RecordWise())
tfdp.gradients.register_rule(OnSteps, tfdp.gradients.RecordWise())
tfdp.gradients.register_rule(Promised, tfdp.gradients.RecordWise())


class StepsOf(L.Layer):
    """A promised layer without weights, in which a layer adds losses of steps."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def call(self, inputs):
        self.layer(K.reshape(inputs, (-1, 2)))
        return inputs * 1.0

    def compute_output_shape(self, shape):
        return shape


tfdp.gradients.register_rule(StepsOf, tfdp.gradients.RecordWise())


def test_losses_that_are_not_one_for_each_record_end_the_step(monkeypatch):
    """Were a promise not looked at, their gradient would fit no records."""
    monkeypatch.setattr(bookkeeping, "check_promises", lambda *args, **kwargs: None)
    loss, variables, examples = problem_of(after(StepsOf(Balance())))
    query = tfdp.GaussianSumQuery(l2_norm_clip=0.3, stddev=1.0)
    # Of losses and of gradients, whichever TensorFlow computes first.
    with pytest.raises(tf.errors.InvalidArgumentError, match="[Rr]eshape|Incompatible shapes"):
        by_engine(loss, variables, examples, query, "bookkeeping")


def built(model):
    keras.utils.set_random_seed(1)
    model(tf.zeros([1, 4]))
    return model


REFUSED = {
    "in_time_distributed": lambda: after(L.TimeDistributed(Balance()), shape=(3, 4)),
    "add_loss_of_its_own": lambda: after(AddsTwice(3, activity_regularizer=SQUARES)),
    "model_with_code_of_its_own": lambda: built(Whole()),
    "promised_layer_that_adds_one": lambda: after(Twice()),
    "regularizer_with_a_weight": with_a_weight,
    "promised_code_that_adds_one": lambda: built(Promised()),
    "regularizer_on_steps": lambda: built(OnSteps(L.ActivityRegularization(0.1))),
    "loss_of_steps_in_a_layer": lambda: after(StepsOf(Balance())),
    "regularizer_on_steps_in_a_layer": lambda: after(StepsOf(L.ActivityRegularization(0.1))),
    "loss_of_steps": lambda: built(OnSteps(Balance())),
}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_others_are_refused_and_vectorized(name):
    keras.utils.set_random_seed(1)
    model = REFUSED[name]()
    variables = model.trainable_variables
    shape = getattr(model, "input_shape", None) or (None, 4)
    x = tf.constant(normal(*shape[1:]))
    loss = WithAdded(model, "mse")
    examples = x, tf.constant(np.random.default_rng(1).normal(size=(BATCH, 2)), tf.float32)
    query = tfdp.GaussianSumQuery(l2_norm_clip=0.3, stddev=1.0)
    with pytest.raises(UnsupportedModelError, match="vectorized|register_rule"):
        by_engine(loss, variables, examples, query, "bookkeeping")
    actual = by_engine(loss, variables, examples, query, "auto")
    assert_sums_agree(actual, explicit_sum(loss, variables, examples, 0.3))
