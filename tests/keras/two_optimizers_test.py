"""A private and a plain optimizer in one step: a discriminator and its generator."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
import toy

import tfdp

L = keras.layers
SIZE, STEPS = 3, 3
RNG = np.random.default_rng(0)
REAL = RNG.normal(size=(toy.N, SIZE)).astype("float32")
REAL[::2] *= 5
NOISE = RNG.normal(size=(STEPS, toy.N, 2)).astype("float32")
TARGETS = np.tile([[1.0, 0.0]], [toy.N, 1]).astype("float32")
CROSSENTROPY = keras.losses.BinaryCrossentropy(from_logits=True)


def models():
    keras.utils.set_random_seed(5)
    generator = keras.Sequential([keras.Input((2,)), L.Dense(4, activation="tanh"), L.Dense(SIZE)])
    discriminator = keras.Sequential(
        [keras.Input((SIZE,)), L.Dense(5, activation="elu"), L.Dense(1)]
    )
    return generator, discriminator


def train(stddev, in_graph):
    """Returns the weights of both after some steps, and the ledger."""
    generator, discriminator = models()
    real, made = keras.Input((SIZE,)), keras.Input((SIZE,))
    pair = keras.Model([real, made], L.Concatenate()([discriminator(real), discriminator(made)]))
    private, plain = toy.dp(stddev=stddev), keras.optimizers.SGD(0.1)
    plain.build(generator.trainable_variables)
    record_loss = tfdp.gradients.ModelLoss(pair, CROSSENTROPY)

    def step(noise):
        inputs = [tf.constant(REAL), generator(noise)]
        private.private_step(record_loss, discriminator.trainable_variables, (inputs, TARGETS))
        with tf.GradientTape() as tape:
            logits = discriminator(generator(noise))
            loss = CROSSENTROPY(tf.ones_like(logits), logits)
        variables = generator.trainable_variables
        plain.apply(tape.gradient(loss, [v.value for v in variables]), variables)

    if in_graph:
        step = tf.function(step, autograph=False)
    for noise in NOISE:
        step(tf.constant(noise))
    return toy.weights(generator), toy.weights(discriminator), private.ledger


def by_hand():
    """The same steps, each record's gradient clipped by itself, in a loop."""
    generator, discriminator = models()
    for noise in NOISE:
        made = generator(noise)

        def loss(i, made=made):
            logits = tf.concat(
                [discriminator(REAL[i : i + 1]), discriminator(made[i : i + 1])], axis=1
            )
            losses = tf.nn.sigmoid_cross_entropy_with_logits(TARGETS[i : i + 1], logits)
            return tf.reduce_mean(losses)

        variables = discriminator.trainable_variables
        records = [functools.partial(loss, i) for i in range(toy.N)]
        total, norms = toy.gradients_by_hand(variables, records)
        assert min(norms) < toy.CLIP < max(norms), "Some are clipped, and some are not."
        for variable, summed in zip(variables, total, strict=True):
            variable.assign_sub(0.5 * summed / 10)
        with tf.GradientTape() as tape:
            logits = discriminator(generator(noise))
            loss = tf.reduce_mean(tf.nn.softplus(-logits))
        variables = generator.trainable_variables
        gradients = tape.gradient(loss, [v.value for v in variables])
        for variable, gradient in zip(variables, gradients, strict=True):
            variable.assign_sub(0.1 * gradient)
    return toy.weights(generator), toy.weights(discriminator)


@pytest.mark.parametrize("in_graph", [False, True])
def test_steps_are_those_of_the_explicit_loop(in_graph):
    *found, ledger = train(0.0, in_graph)
    for ours, theirs in zip(found, by_hand(), strict=True):
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    assert ledger.total_count == STEPS


def test_only_the_private_optimizer_is_charged_and_its_noise_reaches_both():
    generator, discriminator, ledger = train(1.0, in_graph=True)
    assert ledger.total_count == STEPS
    assert ledger.epsilon(1e-5) < np.inf
    for noised, exact in zip((generator, discriminator), by_hand(), strict=True):
        assert any(not np.allclose(a, b, atol=1e-3) for a, b in zip(noised, exact, strict=True))
