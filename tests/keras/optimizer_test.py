"""A DPOptimizer: its noise, its sampling, its learning rate, and those with names of their own."""

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf
import toy
from toy import L

import tfdp
from tfdp.keras import DPOptimizer, wrapping
from tfdp.sampling import FullBatch, Poisson

# Noise.

WIDE = 1000


def noise_of_steps(stddev, steps, **kwargs):
    """Returns [kernel's, bias'] noise of each step: updates of a model whose gradients are zero."""
    query = tfdp.GaussianAverageQuery(1.0, stddev=stddev, denominator=4)
    optimizer = DPOptimizer(keras.optimizers.SGD(1.0), query, **kwargs)
    layers = [keras.Input((1,)), L.Dense(WIDE, bias_initializer="zeros")]
    model = tfdp.keras.make_private(keras.Sequential(layers))
    model.compile(optimizer, loss=lambda y, p: 0.0 * keras.ops.sum(p, axis=-1))
    x, noise = np.zeros([8, 1], "float32"), []
    for _ in range(steps):
        before = toy.weights(model)
        model.fit(x, x, batch_size=8, sampling=FullBatch(), verbose=0)
        noise.append([4 * (b - a).ravel() for b, a in zip(before, toy.weights(model), strict=True)])
    return model, noise


@pytest.mark.parametrize(
    "kwargs", [{}, {"physical_batch_size": 2}, {"physical_batch_size": 8}], ids=str
)
def test_noise_is_one_draw_of_the_same_scale_for_every_variable(
    kwargs, check_stddev, check_independent
):
    # Four chunks with noise each would have twice the standard deviation, which check_stddev would
    # reject.
    model, noise = noise_of_steps(1.5, 2, **kwargs)
    for step in noise:
        for variable in step:
            check_stddev(variable, 1.5)
        check_independent(step[0], step[1])  # Kernel and bias have the same number of coordinates.
    check_independent(noise[0][0], noise[1][0])
    assert model.ledger.total_count == 2
    assert {event.event for event in toy.events(model)} == {tfdp.GaussianSumEvent(1.0, 1.5)}


def test_noise_differs_between_functions_that_were_traced_again(check_independent):
    variable = tf.Variable(tf.zeros([WIDE]))
    optimizer = toy.dp(stddev=1.0)

    def draw():
        # A new function each time: a seed fixed at tracing would repeat itself.
        step = tf.function(
            lambda x: optimizer.private_gradients(
                lambda e: tf.reduce_sum(e * variable), [variable], x
            ),
            autograph=False,
        )
        return step(tf.zeros([2, WIDE]))[0].numpy()

    check_independent(draw(), draw())


def test_sampling_and_ledger_are_checked():
    optimizer = toy.dp()
    with pytest.raises(TypeError, match="tfdp.sampling"):
        optimizer.sampling = "poisson"
    with pytest.raises(TypeError, match="PrivacyLedger"):
        optimizer.ledger = []
    with pytest.raises(ValueError, match="Declare"):
        optimizer.sampling = Poisson()


def test_learning_rate_is_the_inner_optimizers():
    inner = keras.optimizers.SGD(0.5)
    optimizer = toy.dp(inner)
    assert float(optimizer.learning_rate) == 0.5
    optimizer.learning_rate = 0.25
    assert float(inner.learning_rate) == float(optimizer.learning_rate) == 0.25


@pytest.mark.parametrize(
    ("make", "inner_class"),
    [
        (tfdp.keras.DPKerasSGDOptimizer, keras.optimizers.SGD),
        (tfdp.keras.DPKerasAdamOptimizer, keras.optimizers.Adam),
        (tfdp.keras.DPKerasAdagradOptimizer, keras.optimizers.Adagrad),
    ],
)
def test_named_optimizers_are_compositions(make, inner_class):
    optimizer = make(l2_norm_clip=2.0, noise_multiplier=1.5, num_microbatches=8, learning_rate=0.25)
    assert type(optimizer) is DPOptimizer
    assert type(optimizer.inner_optimizer) is inner_class
    assert float(optimizer.learning_rate) == 0.25
    assert optimizer.num_microbatches == 8
    assert optimizer.query == tfdp.GaussianAverageQuery(2.0, stddev=3.0, denominator=8)
    optimizer = make(2.0, 1.5, denominator=32)
    assert optimizer.num_microbatches is None
    assert optimizer.query.denominator == 32
    with pytest.raises(TypeError, match="denominator"):
        make(2.0, 1.5)


# Layers of the model of a loop of one's own.


def adapted(trainable):
    layer = L.Normalization()
    layer.adapt(toy.X)
    layer.trainable = trainable
    return keras.Sequential([keras.Input((4,)), layer, L.Dense(2)])


def mixing(trainable):
    layer = L.BatchNormalization(trainable=trainable)
    return keras.Sequential([keras.Input((4,)), layer, L.Dense(2)])


LOOPS = {
    "private_step": DPOptimizer.private_step,
    "private_gradients": DPOptimizer.private_gradients,
}


@pytest.mark.parametrize("is_graph", [False, True])
@pytest.mark.parametrize("name", LOOPS)
@pytest.mark.parametrize(
    ("make", "text"), [(adapted, "holds raw statistics"), (mixing, "normalizes each record")]
)
def test_a_loop_refuses_the_layers_that_fit_refuses(make, text, name, is_graph):
    def run(trainable):
        model, optimizer = make(trainable), toy.dp()
        optimizer.build(model.trainable_variables)
        policy = Poisson().resolve(toy.N, 4)
        optimizer.sampling = policy
        loss = tfdp.gradients.ModelLoss(model, toy.LOGITS_LOSS)

        def step(batch):
            LOOPS[name](
                optimizer, loss, model.trainable_variables, (batch.x, batch.y), mask=batch.mask
            )

        step = tf.function(step, autograph=False, reduce_retracing=True) if is_graph else step
        try:
            for batch in tfdp.sampling.batches(toy.X, toy.Y, None, policy).take(2):
                step(batch)
        finally:
            charged.append(optimizer.ledger.total_count)

    charged = []
    with pytest.raises(tfdp.keras.NotPrivateError, match=text):
        run(True)
    run(False)
    assert charged == [0, 2]


@pytest.mark.parametrize("name", sorted(wrapping._OF_THE_INNER))
def test_what_the_inner_optimizer_reads_is_not_accepted_outside(name):
    with pytest.raises(AttributeError, match=f"{name} is the inner optimizer's"):
        setattr(toy.dp(), name, 0.5)


def test_these_are_all_that_keras_optimizers_have_in_common():
    of_sgd = set(inspect.signature(keras.optimizers.SGD).parameters) - {"momentum", "nesterov"}
    of_ours = {"learning_rate", "loss_scale_factor", "name", "kwargs"}
    assert of_sgd - of_ours == wrapping._OF_THE_INNER


def test_weights_are_excluded_from_the_decay_of_the_inner_optimizer():
    optimizer = toy.dp(keras.optimizers.SGD(0.1, weight_decay=0.5))
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    plain = keras.Sequential([keras.Input((4,)), L.Dense(2)])
    model = toy.private(plain, optimizer, loss=lambda y, p: 0.0 * p[:, 0])
    before = [w + 1.0 for w in toy.weights(model)]
    model.set_weights(before)
    model.fit(toy.data()[0], toy.data()[1], sampling=tfdp.sampling.FullBatch(), verbose=0)
    toy.assert_weights(model, [0.95 * before[0], before[1]])


def test_accumulation_that_is_asked_for_later_is_refused():
    model = toy.private(toy.linear())
    model.fit(*toy.data(), sampling=tfdp.sampling.FullBatch(), verbose=0)
    model.optimizer.inner_optimizer.gradient_accumulation_steps = 4
    with pytest.raises(ValueError, match="add noise, and charge, for every partial batch"):
        model.fit(*toy.data(), sampling=tfdp.sampling.FullBatch(), verbose=0)
    assert model.ledger.total_count == 1
