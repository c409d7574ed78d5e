"""Batch normalization by statistics that are estimated privately, and by nothing else."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tfdp.keras import DPOptimizer, NotPrivateError, make_private
from tfdp.keras.batch_statistics import PrivateBatchNormalization, moments_of_records, update_moving
from tfdp.sampling import FullBatch

L = keras.layers
RNG = np.random.default_rng(0)
X = RNG.normal(1.0, 2.0, size=(12, 6, 6, 2)).astype("float32")
Y = (X[:, 0, 0, 0] > 1).astype("int32")
TINY = 1e-9  # So little noise that what is under it can be seen.


def _plain():
    keras.utils.set_random_seed(1)
    return keras.Sequential(
        [
            keras.Input((6, 6, 2)),
            L.Conv2D(3, 3, use_bias=False),
            L.BatchNormalization(momentum=0.8, name="first"),
            L.ReLU(),
            L.Flatten(),
            L.Dense(4),
            L.BatchNormalization(momentum=0.9, scale=False, name="second"),
            L.Dense(2),
        ]
    )


def _private(plain=None, noise=TINY, gradient_noise=TINY, engine="auto", clip=1.0, **kwargs):
    model = make_private(_plain() if plain is None else plain, batch_norm="private")
    query = tfdp.GaussianAverageQuery(clip, noise_multiplier=gradient_noise, denominator=len(X))
    optimizer = DPOptimizer(
        keras.optimizers.SGD(0.1), query, batch_norm_noise_multiplier=noise, engine=engine
    )
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(True), **kwargs)
    return model


def _fit(model, epochs=1, x=X, y=Y, **kwargs):
    return model.fit(x, y, epochs=epochs, sampling=FullBatch(), verbose=0, **kwargs)


def _norms(model):
    return [layer for layer in model.layers if isinstance(layer, L.BatchNormalization)]


def _moving(model):
    return [np.array(w) for norm in _norms(model) for w in (norm.moving_mean, norm.moving_variance)]


def by_hand(model, x):
    """Returns the moving statistics after a step without noise, from a loop over the records."""
    expected = []
    for norm in _norms(model):
        index = model.layers.index(norm)
        below = keras.Sequential([keras.Input(x.shape[1:]), *model.layers[:index]])
        mean, variance = np.float64(norm.moving_mean), np.float64(norm.moving_variance)
        unit = np.sqrt(variance + norm.epsilon)
        total = np.zeros(2 * len(mean))
        for record in x:
            inputs = np.float64(below(record[None])).reshape(-1, len(mean))
            u = (inputs - mean) / unit
            s = np.concatenate([u.mean(0), (u**2).mean(0) - 1])
            if np.all(np.isfinite(s)):
                total += s * min(1, math.sqrt(2 * len(mean)) / np.linalg.norm(s))
        first, second = np.split(total / len(X), 2)
        new_mean = mean + unit * first
        new_variance = np.maximum(unit**2 * (1 + second - first**2), 0)
        expected.append(norm.momentum * mean + (1 - norm.momentum) * new_mean)
        expected.append(norm.momentum * variance + (1 - norm.momentum) * new_variance)
    return expected


@pytest.mark.parametrize(
    ("engine", "jit_compile"),
    [("bookkeeping", False), ("bookkeeping", True), ("vectorized", False), ("loop", False)],
)
def test_moving_statistics_are_those_of_a_loop_over_records(engine, jit_compile):
    model = _private(engine=engine, jit_compile=jit_compile)
    for _ in range(2):
        expected = by_hand(model, X)
        _fit(model)
        for found, value in zip(_moving(model), expected, strict=True):
            np.testing.assert_allclose(found, value, rtol=2e-5, atol=2e-6)


def test_gradients_are_those_of_layers_with_constants():
    frozen = _plain()
    for norm in _norms(frozen):
        norm.moving_mean.assign(RNG.normal(size=norm.moving_mean.shape))
        norm.moving_variance.assign(RNG.uniform(0.5, 2.0, norm.moving_variance.shape))
    model = _private(frozen, engine="bookkeeping", clip=0.7)
    inference = [
        np.concatenate([np.ravel(g) for g in _gradients(frozen, X[i : i + 1], Y[i : i + 1])])
        for i in range(len(X))
    ]
    total = sum(g * min(1, 0.7 / np.linalg.norm(g)) for g in inference) / len(X)
    before = np.concatenate([np.ravel(v) for v in model.trainable_variables])
    _fit(model)
    after = np.concatenate([np.ravel(v) for v in model.trainable_variables])
    np.testing.assert_allclose(after, before - 0.1 * total, atol=2e-6)


def _gradients(model, x, y):
    with tf.GradientTape() as tape:
        loss = keras.losses.SparseCategoricalCrossentropy(True)(y, model(x, training=False))
    return tape.gradient(loss, [v.value for v in model.trainable_variables])


def test_event_holds_every_layer_and_all_of_them_cost_what_was_asked():
    model = _private(noise=5.0, gradient_noise=2.0)
    _fit(model)
    gradients, *moments = list(model.ledger)[0].event.event.events
    assert gradients == tfdp.GaussianSumEvent(1.0, 2.0)
    assert [m.l2_norm_bound for m in moments] == [math.sqrt(6), math.sqrt(8)]
    multipliers = [m.noise_stddev / m.l2_norm_bound for m in moments]
    assert sum(z**-2 for z in multipliers) == pytest.approx(5.0**-2)


def test_saved_model_is_keras_own_and_holds_the_noised_statistics(tmp_path):
    model = _private(noise=5.0, gradient_noise=2.0)
    released = []
    update = model.optimizer.move_statistics

    def watched(layers, values):
        released.append([tf.identity(v) for v in values])
        update(layers, values)

    model.optimizer.move_statistics = watched
    model.run_eagerly = True
    start = [(np.array(n.moving_mean), np.array(n.moving_variance)) for n in _norms(model)]
    _fit(model, 3)
    assert len(released) == 3
    for i, (norm, (mean, variance)) in enumerate(zip(_norms(model), start, strict=True)):
        copy = PrivateBatchNormalization(momentum=norm.momentum)
        copy.build((None, len(mean)))
        copy.set_weights([*copy.get_weights()[:2], mean, variance])
        bound, z = math.sqrt(2 * len(mean)), 5.0 * math.sqrt(2)
        for values in released:
            update_moving(copy, values[i], z * bound / len(X))
        np.testing.assert_allclose(norm.moving_mean, copy.moving_mean, rtol=1e-5)
        np.testing.assert_allclose(norm.moving_variance, copy.moving_variance, rtol=1e-5)
    path = tmp_path / "model.keras"
    model.save(path)
    loaded = keras.saving.load_model(path)
    assert [type(layer) for layer in _norms(loaded)] == [L.BatchNormalization] * 2
    for found, expected in zip(_moving(loaded), _moving(model), strict=True):
        np.testing.assert_array_equal(found, expected)
    np.testing.assert_allclose(loaded(X), model(X), atol=1e-6)


def test_nothing_but_the_step_moves_the_statistics():
    model = _private()
    before = _moving(model)
    model(X, training=True)
    model.evaluate(X, Y, verbose=0)
    model.predict(X, verbose=0)
    for found, expected in zip(_moving(model), before, strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("engine", ["bookkeeping", "loop"])
def test_one_record_moves_the_sums_by_their_bounds_at_most(engine):
    model = _private(engine=engine)
    variables = [*model.trainable_variables, *model.non_trainable_variables]
    start = [np.array(v) for v in variables]
    units = [np.sqrt(np.array(n.moving_variance) + n.epsilon) for n in _norms(model)]

    def moved(x):
        for variable, value in zip(variables, start, strict=True):
            variable.assign(value)
        tfdp.keras.declare_weights(model, "fresh_start")
        _fit(model, x=x)
        means = [np.array(norm.moving_mean) for norm in _norms(model)]
        assert all(np.all(np.isfinite(values)) for values in _moving(model))
        return [
            mean / (1 - norm.momentum) / unit
            for mean, norm, unit in zip(means, _norms(model), units, strict=True)
        ]

    found = []
    for value in (np.nan, np.inf, 1e30, -1e6, 3.0):
        x = X.copy()
        x[3] = value
        found.append(moved(x))
    # A record that is not finite counts as none (threads add in an order of their own).
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-6, atol=1e-7)
    for one in found[2:]:
        for with_it, without, unit in zip(one, found[0], units, strict=True):
            bound = math.sqrt(2 * len(unit)) / len(X)
            assert np.linalg.norm(with_it - without) <= bound * (1 + 1e-4)
    # What is bounded is not nothing.
    assert np.linalg.norm(found[4][0] - found[0][0]) > 1e-3


def test_positions_that_a_mask_leaves_out_do_not_count():
    layer = PrivateBatchNormalization()
    layer.build((None, None, 3))
    x = RNG.normal(size=(2, 5, 3)).astype("float32")
    mask = tf.constant([[True, True, False, False, False], [False] * 5])
    found = moments_of_records(layer, tf.constant(x), mask)
    expected = moments_of_records(layer, tf.constant(x[:1, :2]))
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5)
    np.testing.assert_array_equal(found[1], np.zeros(6))


def test_axis_of_channels_may_be_another():
    first, last = PrivateBatchNormalization(axis=1), PrivateBatchNormalization()
    first.build((None, 3, 4, 5))
    last.build((None, 4, 5, 3))
    x = RNG.normal(size=(2, 3, 4, 5)).astype("float32")
    np.testing.assert_allclose(
        moments_of_records(first, tf.constant(x)),
        moments_of_records(last, tf.constant(x.transpose(0, 2, 3, 1))),
        rtol=1e-5,
        atol=1e-6,
    )


def test_update_takes_off_the_square_of_the_noise():
    layer = PrivateBatchNormalization(momentum=0.0)
    layer.build((None, 20_000))
    noise = RNG.normal(0.0, 0.5, 40_000)
    update_moving(layer, tf.constant(noise, tf.float32), 0.5)
    # 1 + a - b^2 + 0.25 with a and b of variance 0.25: on average (1 + epsilon). Where variances
    # below zero count as zero that is a little more.
    unit = 1 + layer.epsilon
    expected = np.maximum(unit * (1 + noise[20_000:] - noise[:20_000] ** 2 + 0.25), 0).mean()
    assert float(np.mean(layer.moving_variance)) == pytest.approx(expected, rel=1e-4)
    assert expected == pytest.approx(unit, rel=0.03)


def test_works_beside_private_metrics():
    model = make_private(_plain(), batch_norm="private")
    query = tfdp.GaussianAverageQuery(1.0, noise_multiplier=TINY, denominator=len(X))
    optimizer = DPOptimizer(
        keras.optimizers.SGD(0.1),
        query,
        batch_norm_noise_multiplier=TINY,
        private_metrics=[tfdp.keras.PrivateAccuracy(noise_multiplier=TINY)],
    )
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(True))
    expected = by_hand(model, X)
    correct = np.mean(np.argmax(model(X), -1) == Y)
    history = _fit(model).history
    assert list(history) == ["accuracy"]
    assert history["accuracy"][0] == pytest.approx(correct, abs=1e-5)
    for found, value in zip(_moving(model), expected, strict=True):
        np.testing.assert_allclose(found, value, rtol=2e-5, atol=2e-6)


def test_weights_and_configuration_come_back(tmp_path):
    model = _private(noise=3.0, gradient_noise=1.0)
    _fit(model, 2)
    path = tmp_path / "model.weights.h5"
    model.save_weights(path)
    other = _private(noise=3.0, gradient_noise=1.0)
    other.load_weights(path)
    for found, expected in zip(_moving(other), _moving(model), strict=True):
        np.testing.assert_array_equal(found, expected)
    config = model.optimizer.get_config()
    assert DPOptimizer.from_config(config).batch_norm_noise_multiplier == 3.0


def test_budget_pays_for_the_statistics():
    arguments = {
        "batch_size": 10,
        "target_epsilon": 3.0,
        "target_delta": 1e-5,
        "population_size": 1000,
        "epochs": 2,
    }
    plain = DPOptimizer.for_budget(keras.optimizers.SGD(0.1), 1.0, **arguments)
    paid = DPOptimizer.for_budget(
        keras.optimizers.SGD(0.1), 1.0, batch_norm_noise_multiplier=6.0, **arguments
    )
    z, both = plain.query.numerator_query.stddev, paid.query.numerator_query.stddev
    assert both**-2 + 6.0**-2 == pytest.approx(z**-2)
    assert paid.batch_norm_noise_multiplier == 6.0


def _compile(model, **kwargs):
    query = tfdp.GaussianAverageQuery(1.0, noise_multiplier=1.0, denominator=12)
    model.compile(DPOptimizer(keras.optimizers.SGD(0.1), query, **kwargs), "mse")


WEIGHTED = tfdp.query.WeightedAverageQuery(
    1.0, noise_multiplier=1.0, denominator=12, max_weight=2.0
)


@pytest.mark.parametrize(
    ("act", "error", "message"),
    [
        (lambda: _compile(make_private(_plain())), NotPrivateError, 'batch_norm="private"'),
        (
            lambda: _compile(make_private(_plain(), batch_norm="private")),
            NotPrivateError,
            "noise of their own",
        ),
        (
            lambda: _compile(
                make_private(keras.Sequential([keras.Input((2,)), L.Dense(1)])),
                batch_norm_noise_multiplier=1.0,
            ),
            NotPrivateError,
            "is for a model with private batch normalization",
        ),
        (lambda: make_private(_plain(), batch_norm="batch"), ValueError, "batch_norm must be None"),
        (
            lambda: make_private(
                keras.Sequential([keras.Input((2,)), L.BatchNormalization(renorm=True)]),
                batch_norm="private",
            ),
            ValueError,
            "renorm",
        ),
        (
            lambda: make_private(
                keras.Sequential([keras.Input((3, 2)), L.TimeDistributed(L.BatchNormalization())]),
                batch_norm="private",
            ),
            ValueError,
            "cannot be replaced there",
        ),
        (lambda: _private(noise=0.0), ValueError, "batch_norm_noise_multiplier"),
        (
            lambda: make_private(_plain(), batch_norm="private").compile(
                DPOptimizer(keras.optimizers.SGD(0.1), WEIGHTED, batch_norm_noise_multiplier=1.0)
            ),
            TypeError,
            "Private batch normalization divides by the expected number of records",
        ),
    ],
)
def test_refuses(act, error, message):
    with pytest.raises(error, match=message):
        act()


def test_a_loop_of_ones_own_is_refused_before_it_is_charged():
    model = _private()
    optimizer = model.optimizer
    with pytest.raises(NotPrivateError, match="computed in fit and train_on_batch"):
        optimizer.private_step(
            lambda e: tf.reduce_mean(model(e) ** 2), model.trainable_variables, tf.constant(X)
        )
    assert model.ledger.total_count == 0


def test_an_optimizer_stays_with_its_layers():
    model = _private()
    _fit(model)
    other = keras.Sequential([keras.Input((6, 6, 2)), L.Flatten(), L.BatchNormalization()])
    other = make_private(other, batch_norm="private")
    with pytest.raises(NotPrivateError, match="other layers of private batch"):
        other.compile(model.optimizer, "mse")


def test_learns_what_plain_batch_normalization_learns():
    rng = np.random.default_rng(2)
    y = rng.integers(0, 2, 400)
    # Inputs far from mean zero and variance one, which the layer has to find out.
    x = (rng.normal(size=(400, 8)) + 1.5 * (y[:, None] * 2 - 1)) * 3 + 5
    x = x.astype("float32")
    keras.utils.set_random_seed(0)
    plain = keras.Sequential([keras.Input((8,)), L.BatchNormalization(momentum=0.9), L.Dense(2)])
    model = make_private(plain, batch_norm="private")
    query = tfdp.GaussianAverageQuery(1.0, noise_multiplier=1.0, denominator=100)
    optimizer = DPOptimizer(keras.optimizers.SGD(0.5), query, batch_norm_noise_multiplier=3.0)
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(True), metrics=["accuracy"])
    model.fit(x, y, batch_size=100, epochs=30, verbose=0)
    assert model.evaluate(x, y, verbose=0)[1] > 0.95
    [norm] = _norms(model)
    np.testing.assert_allclose(norm.moving_mean, x.mean(0), atol=3)
    np.testing.assert_allclose(np.sqrt(norm.moving_variance), x.std(0), rtol=0.3)
