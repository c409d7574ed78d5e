"""Values that TensorFlow Privacy publishes for its optimizers and models, by the same arguments."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp

OPTIMIZERS = [
    tfdp.keras.DPKerasSGDOptimizer,
    tfdp.keras.DPKerasAdamOptimizer,
    tfdp.keras.DPKerasAdagradOptimizer,
]


# Clipped norms are some 1e-6 below the clip, so that rounding cannot pass it.


def _gradients(optimizer, starts, data, microbatches):
    """Returns the gradients of sum_i |data_i - variable_i|^2 / 2 over consecutive microbatches."""
    variables = [tf.Variable(start) for start in starts]
    data = [tf.constant(values) for values in data]
    n = len(data[0])

    def loss(record):
        errors = zip(record, variables, strict=True)
        return 0.5 * tf.add_n([tf.reduce_sum(tf.square(x - v)) for x, v in errors])

    ids = tf.range(n) // (n // microbatches)
    gradients = optimizer.private_gradients(loss, variables, data, microbatch_ids=ids)
    return [g.numpy() for g in gradients]


@pytest.mark.parametrize("make", OPTIMIZERS)
@pytest.mark.parametrize("microbatches", [1, 2, 4])
def test_no_clip_and_no_noise(make, microbatches):
    optimizer = make(100.0, 0.0, microbatches, learning_rate=2.0)
    data = [[[3.0, 4.0], [5.0, 6.0], [7.0, 8.0], [-1.0, 0.0]], [[8.0], [2.0], [3.0], [1.0]]]
    gradients = _gradients(optimizer, [[1.0, 2.0], [3.0]], data, microbatches)
    np.testing.assert_allclose(gradients[0], [-2.5, -2.5], rtol=1e-6)
    np.testing.assert_allclose(gradients[1], [-0.5], rtol=1e-6)


@pytest.mark.parametrize(
    ("microbatches", "restart_period", "restart_warmup"),
    [(1, None, None), (2, 2, 1), (4, 1, None), (4, 4, 2)],
)
def test_no_clip_and_no_noise_of_a_tree(microbatches, restart_period, restart_warmup):
    starts = [[1.0, 2.0], [3.0]]
    optimizer = tfdp.keras.DPFTRLTreeAggregationOptimizer(
        l2_norm_clip=100.0,
        noise_multiplier=0.0,
        var_list_or_model=[tf.Variable(start) for start in starts],
        num_microbatches=microbatches,
        restart_period=restart_period,
        restart_warmup=restart_warmup,
        learning_rate=2.0,
        period=1,
        num_steps=None if restart_period else 10,
    )
    data = [[[3.0, 4.0], [5.0, 6.0], [7.0, 8.0], [-1.0, 0.0]], [[8.0], [2.0], [3.0], [1.0]]]
    gradients = _gradients(optimizer, starts, data, microbatches)
    np.testing.assert_allclose(gradients[0], [-2.5, -2.5], rtol=1e-6)
    np.testing.assert_allclose(gradients[1], [-0.5], rtol=1e-6)


@pytest.mark.parametrize("microbatches", [1, 2, 4])
def test_linear_regression_finds_its_weights(microbatches):
    rng, truth = np.random.default_rng(0), np.array([[-5.0], [4.0], [3.0], [2.0]], np.float32)
    x = rng.normal(scale=3.0, size=(1000, 4)).astype(np.float32)
    y = x @ truth + 6.0
    kernel, bias = tf.Variable(tf.zeros([4, 1])), tf.Variable(tf.zeros([1]))
    optimizer = tfdp.keras.DPKerasSGDOptimizer(1e4, 0.0, microbatches, learning_rate=0.05)

    def loss(record):
        return 0.5 * tf.reduce_sum((record[0] @ kernel + bias - record[1]) ** 2)

    ids = tf.range(8) // (8 // microbatches)

    @tf.function
    def step(x, y):
        optimizer.private_step(loss, [kernel, bias], (x, y), microbatch_ids=ids)

    for i in range(125):
        step(x[8 * i : 8 * i + 8], y[8 * i : 8 * i + 8])
    np.testing.assert_allclose(kernel, truth, atol=0.05)
    np.testing.assert_allclose(bias, [6.0], atol=0.05)


def test_gradient_of_rows_that_are_gathered():
    optimizer = tfdp.keras.DPKerasSGDOptimizer(100.0, 0.0, 4, learning_rate=2.0)
    variable = tf.Variable([1.0, 2.0])
    data = tf.constant([[3.0, 4.0], [5.0, 6.0], [7.0, 8.0], [-1.0, 0.0]])
    (gradient,) = optimizer.private_gradients(
        lambda record: 0.5 * tf.reduce_sum((record - tf.gather(variable, [0, 1])) ** 2),
        [variable],
        data,
    )
    np.testing.assert_allclose(gradient, [-2.5, -2.5], rtol=1e-6)


def test_clip():
    optimizer = tfdp.keras.DPKerasSGDOptimizer(1.0, 0.0, 1, learning_rate=2.0)
    gradients = _gradients(optimizer, [[0.0, 0.0]], [[[3.0, 4.0], [6.0, 8.0]]], 1)
    np.testing.assert_allclose(gradients[0], [-0.6, -0.8], rtol=1e-5)


@pytest.mark.parametrize("microbatches", [1, 2, 4])
def test_clip_of_several_variables(microbatches):
    optimizer = tfdp.keras.DPKerasSGDOptimizer(2.5, 0.0, microbatches, learning_rate=2.0)
    data = [[[3.0, 6.0], [5.0, 6.0], [4.0, 8.0], [-1.0, 0.0]], [[8.0], [2.0], [3.0], [1.0]]]
    gradients = _gradients(optimizer, [[1.0, 2.0], [3.0]], data, microbatches)
    records = np.array([1.0, 2.0, 3.0]) - np.concatenate(data, axis=1)
    means = records.reshape(microbatches, -1, 3).mean(axis=1)
    norms = np.linalg.norm(means, axis=1, keepdims=True)
    expected = (means * 2.5 / np.maximum(norms, 2.5)).mean(axis=0)
    np.testing.assert_allclose(np.concatenate(gradients), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("clip", "noise", "microbatches"), [(2.0, 4.0, 1), (4.0, 1.0, 4), (3.0, 2.0, 2)]
)
def test_noise(clip, noise, microbatches):
    optimizer = tfdp.keras.DPKerasSGDOptimizer(clip, noise, microbatches, learning_rate=2.0)
    zeros = np.zeros(4000, np.float32)
    gradient = _gradients(optimizer, [zeros], [np.tile(zeros, (4, 1))], microbatches)[0]
    # The deviation of 4000 draws is known to 1.1 %; 7 % away is beyond six of those.
    assert np.std(gradient) == pytest.approx(clip * noise / microbatches, rel=0.07)


X = np.array([[2.0, 3.0], [4.0, 5.0], [6.0, 7.0], [8.0, 9.0]], np.float32)
Y = np.array([[1.0], [3.0], [-2.0], [-4.0]], np.float32)


@pytest.mark.parametrize("clip", [10.0, 40.0, 200.0])
@pytest.mark.parametrize("cls", [tfdp.keras.DPSequential, tfdp.keras.DPModel])
def test_weight_comes_before_the_clip(cls, clip):
    # The gradient at zero is (-90, -120, -30), times 0.18.
    dense, inputs = keras.layers.Dense(1, kernel_initializer="zeros"), keras.Input((2,))
    if cls is tfdp.keras.DPModel:
        model = cls(inputs=inputs, outputs=dense(inputs))
    else:
        model = cls(layers=[inputs, dense])
    optimizer = tfdp.keras.DPKerasSGDOptimizer(clip, 0.0, 1, learning_rate=0.01)
    model.compile(optimizer, "mse", run_eagerly=True)
    optimizer.set_batch_size(1)
    x, y = np.array([[3.0, 4.0]]), np.array([[15.0]])
    model.train_on_batch(x, y, sample_weight=np.array([0.18]))
    gradient = 0.18 * np.array([90.0, 120.0, 30.0])
    gradient *= min(1.0, clip / np.linalg.norm(gradient))
    got = np.concatenate([w.flatten() for w in model.get_weights()])
    np.testing.assert_allclose(got, 0.01 * gradient, rtol=1e-5)


@pytest.mark.parametrize("weights", [None, [0.1, 0.2, 0.3, 0.4]])
@pytest.mark.parametrize("cls", [tfdp.keras.DPSequential, tfdp.keras.DPModel])
@pytest.mark.parametrize("microbatches", [1, 4])
def test_microbatches_of_a_model(microbatches, cls, weights):
    dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    inputs = keras.Input((2,))
    if cls is tfdp.keras.DPModel:
        model = cls(inputs=inputs, outputs=dense(inputs))
    else:
        model = cls(layers=[inputs, dense])
    optimizer = tfdp.keras.DPKerasSGDOptimizer(1.0, 0.0, microbatches, learning_rate=1.0)
    model.compile(optimizer, "mse", run_eagerly=True)
    optimizer.set_batch_size(4)
    sample_weight = None if weights is None else np.array(weights)
    model.train_on_batch(X, Y, sample_weight=sample_weight)
    records = -2 * X * Y * (1.0 if weights is None else np.array(weights)[:, None])
    means = records.reshape(microbatches, -1, 2).mean(axis=1)
    norms = np.linalg.norm(means, axis=1, keepdims=True)
    expected = -(means / np.maximum(norms, 1.0)).mean(axis=0)
    np.testing.assert_allclose(np.squeeze(model.get_weights()[0]), expected, rtol=1e-5)


def test_weight_decay_is_part_of_the_gradient():
    penalty = keras.regularizers.L2(0.025)
    dense = keras.layers.Dense(
        1, kernel_initializer="ones", use_bias=False, kernel_regularizer=penalty
    )
    model = tfdp.keras.make_private(
        keras.Sequential([keras.Input((10,)), dense, keras.layers.Rescaling(0.0)])
    )
    optimizer = tfdp.keras.DPKerasSGDOptimizer(1e9, 0.0, 2, learning_rate=1.0)
    model.compile(optimizer, "mse", run_eagerly=True)
    optimizer.set_batch_size(2)
    model.train_on_batch(np.arange(20.0).reshape(2, 10), np.zeros((2, 1)))
    np.testing.assert_allclose(model.get_weights()[0], np.full((10, 1), 0.95), rtol=1e-6)


def test_two_outputs_with_weighted_losses_train_as_without_privacy():
    def make(private):
        inputs = {key: keras.Input((10,), name=key) for key in ("foo", "bar")}
        outputs = {
            key: keras.layers.Dense(1, kernel_initializer="ones", name=f"dense_{key}")(x)
            for key, x in inputs.items()
        }
        model = keras.Model(inputs, outputs)
        optimizer = keras.optimizers.SGD(1.0)
        if private:
            model = tfdp.keras.make_private(model)
            optimizer = tfdp.keras.DPKerasSGDOptimizer(1e9, 0.0, 4, learning_rate=1.0)
            optimizer.set_batch_size(4)
        losses = {"foo": keras.losses.MeanSquaredError(), "bar": keras.losses.MeanAbsoluteError()}
        weights = {"foo": 0.4, "bar": 0.6}
        model.compile(optimizer, losses, loss_weights=weights, run_eagerly=True)
        return model

    x = np.arange(40.0, dtype=np.float32).reshape(4, 10)
    y = {"foo": np.zeros((4, 1)), "bar": np.ones((4, 1))}
    trained = [make(private) for private in (True, False)]
    for model in trained:
        model.train_on_batch({"foo": x, "bar": 2 * x}, y)
    for got, expected in zip(*(m.get_weights() for m in trained), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4)
