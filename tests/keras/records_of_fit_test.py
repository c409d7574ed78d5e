"""Several views of a record in one step: the mean of their gradients is clipped once."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import toy
from toy import L, N, X, Y

import tfdp
from tfdp.keras import DPOptimizer, NotPrivateError, records_of_fit
from tfdp.sampling import FullBatch, Shuffled

VIEWS = 3
SEEDS = np.stack([np.arange(N * VIEWS), np.arange(N * VIEWS) % 5], 1)


def shifted(x, seed):
    """An augmentation that differs between views, and is as random as its seed."""
    return x + tf.random.stateless_normal(x.shape, seed)


@pytest.fixture
def known_seeds(monkeypatch):
    monkeypatch.setattr(
        records_of_fit, "draw_seeds", lambda rows: tf.constant(SEEDS)[: tf.cast(rows, tf.int32)]
    )


def mean_loss(model, i, number=VIEWS):
    """The mean loss of the views of example i, one after another in plain Python."""
    losses = []
    for view in range(number):
        x = shifted(tf.constant(X[i]), tf.constant(SEEDS[i * number + view]))
        losses.append(toy.LOGITS_LOSS(Y[i : i + 1], model(x[None])))
    return tf.add_n(losses) / number


@pytest.mark.parametrize(
    ("engine", "jit_compile"),
    [("bookkeeping", False), ("bookkeeping", True), ("vectorized", False), ("loop", False)],
)
def test_mean_gradient_of_views_is_clipped_once(engine, jit_compile, known_seeds):
    model = toy.private(optimizer=toy.dp(engine=engine), jit_compile=jit_compile)
    expected, norms = toy.step_by_hand(model, [lambda i=i: mean_loss(model, i) for i in range(N)])
    assert min(norms) < toy.CLIP < max(norms)
    toy.fit_step(model, views=VIEWS, augment=shifted)
    toy.assert_weights(model, expected)


def test_other_views_are_traced_anew_and_batches_of_ones_own_have_one(known_seeds):
    model = toy.private()
    for number in (3, 2, 1):
        losses = [lambda i=i, n=number: mean_loss(model, i, n) for i in range(N)]
        expected, _ = toy.step_by_hand(model, losses)
        toy.fit_step(model, views=number, augment=shifted)
        toy.assert_weights(model, expected)
    plain = [lambda i=i: toy.crossentropy(model, i) for i in range(N)]
    expected, _ = toy.step_by_hand(model, plain)
    model.train_on_batch(X, Y)
    toy.assert_weights(model, expected)
    expected, _ = toy.step_by_hand(model, plain)
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(N)
    sampling = Shuffled(batch_size=N, population_size=N)
    model.fit(data, views=2, augment=lambda x, seed: x, sampling=sampling, verbose=0)
    toy.assert_weights(model, expected)


@pytest.mark.parametrize("views", [1, 2, 5])
def test_an_example_moves_the_sum_by_at_most_the_bound_whatever_its_views(views):
    x = 5 * X
    one_away = x.copy()
    one_away[3] = np.nan  # Contributes zero.
    moved = []
    for inputs in (x, one_away):
        model = toy.private(toy.linear())
        toy.fit_step(model, inputs, views=views, augment=lambda x, seed: 9 * x)
        moved.append(np.concatenate([w.ravel() for w in toy.weights(model)]))
    distance = np.linalg.norm(moved[0] - moved[1])
    assert 0.49 * toy.CLIP / 10 < distance <= 0.5 * toy.CLIP / 10 * (1 + 1e-5)


def test_views_cost_what_one_does():
    ledgers = []
    for views in (1, 4):
        model = toy.private(optimizer=toy.dp(stddev=1.0))
        model.fit(X, Y, batch_size=3, views=views, augment=shifted, verbose=0)
        ledgers.append([(entry.event, entry.count) for entry in model.ledger])
    assert ledgers[0] == ledgers[1]


def test_layers_that_draw_draw_for_each_view():
    keras.utils.set_random_seed(3)
    layers = [keras.Input((4,)), L.Dropout(0.5), L.Dense(1, use_bias=False)]
    query = tfdp.GaussianAverageQuery(1e3, stddev=0.0, denominator=1)
    model = toy.private(
        keras.Sequential(layers), DPOptimizer(keras.optimizers.SGD(1.0), query), lambda y, p: p
    )
    start = toy.weights(model)[0]
    model.fit(np.ones((1, 4), "float32"), np.zeros(1), sampling=FullBatch(), views=64, verbose=0)
    gradient = (start - toy.weights(model)[0]).ravel()
    # Each weight's is twice the part of the views that kept it; standard error 0.125.
    assert np.abs(gradient - 1).max() < 6.2 * 0.125
    assert not np.isin(gradient, (0, 2)).any()


def test_images_are_cropped_and_flipped_one_by_one():
    def flip(image, seed):
        padded = tf.pad(image, [[1, 1], [1, 1], [0, 0]])
        image = tf.image.stateless_random_crop(padded, image.shape, seed)
        return tf.image.stateless_random_flip_left_right(image, seed)

    images = np.random.default_rng(0).normal(size=(N, 4, 4, 1)).astype("float32")
    layers = [keras.Input((4, 4, 1)), L.RandomFlip(), L.Conv2D(2, 3), L.Flatten(), L.Dense(2)]
    model = toy.private(keras.Sequential(layers))
    model.fit(images, Y, batch_size=4, views=2, augment=flip, verbose=0)
    assert toy.all_finite(model)


def test_rows_of_users_have_views_too(known_seeds):
    ids = np.arange(N) // 2
    model = toy.private(optimizer=toy.dp(privacy_unit="user"))
    losses = [
        lambda u=u: (mean_loss(model, 2 * u, 2) + mean_loss(model, 2 * u + 1, 2)) / 2
        for u in range(N // 2)
    ]
    expected, _ = toy.step_by_hand(model, losses)
    toy.fit_step(model, privacy_unit=ids, max_examples_per_user=2, views=2, augment=shifted)
    # Users without a second row would draw otherwise; here rows are in the order of the data.
    toy.assert_weights(model, expected)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"views": 0}, ValueError, "views"),
        ({"views": 1.5}, TypeError, "views"),
        ({"augment": "flip"}, TypeError, "augment must be a function"),
        ({"augment": lambda x, seed: x[:2]}, ValueError, "shapes and types"),
        ({"augment": lambda x, seed: tf.cast(x, tf.float64)}, ValueError, "shapes and types"),
    ],
)
def test_what_makes_no_views_is_refused_before_anything_is_charged(arguments, error, message):
    model = toy.private()
    with pytest.raises(error, match=message):
        model.fit(X, Y, batch_size=4, verbose=0, **arguments)
    assert len(model.ledger) == 0


def test_sums_of_users_and_microbatches_have_no_views():
    model = toy.private(optimizer=toy.dp(privacy_unit="user"))
    given = {"privacy_unit": np.arange(N), "max_examples_per_user": 2, "user_gradient": "sum"}
    with pytest.raises(ValueError, match="user_gradient='mean'"):
        model.fit(X, Y, views=2, verbose=0, **given)
    model = toy.private(optimizer=toy.dp(num_microbatches=2))
    with pytest.raises(ValueError, match="Leave views, or num_microbatches of the optimizer, out"):
        model.fit(X, Y, batch_size=4, views=2, verbose=0)
    assert len(model.ledger) == 0


@pytest.mark.parametrize("users", [{}, {"privacy_unit": np.arange(N), "max_examples_per_user": 2}])
def test_views_that_have_no_room_are_named(users):
    options = {"privacy_unit": "user"} if users else {}
    model = toy.private(optimizer=toy.dp(physical_batch_size=2, **options))
    views, rows = (2, 4) if users else (3, 3)
    with pytest.raises(ValueError, match=f"views times max_examples_per_user, {rows}"):
        model.fit(X, Y, batch_size=4, views=views, verbose=0, **users)
    assert len(model.ledger) == 0


def _leaves_something(seen):
    total = tf.Variable(tf.zeros([4]))
    return lambda x, seed: x - total.assign_add(x)


def _leaves_something_in_keras(seen):
    total = keras.Variable(np.zeros(4, "float32"), trainable=False)

    def view(x, seed):
        total.assign(total + x)
        return x - total

    return view


def _normalizes_by_others(seen):
    layer = L.BatchNormalization()
    layer.build((None, 4))
    return lambda x, seed: layer(x[None], training=True)[0]


def _keeps_in_python(seen):
    def keep(row):
        seen.append(row)
        return row

    return lambda x, seed: tf.ensure_shape(tf.numpy_function(keep, [x], tf.float32), [4])


def _draws_from_a_stream(seen):
    return lambda x, seed: x + tf.random.normal([4])


@pytest.mark.parametrize("run_eagerly", [False, True])
@pytest.mark.parametrize(
    "made",
    [
        _leaves_something,
        _leaves_something_in_keras,
        _normalizes_by_others,
        _keeps_in_python,
        _draws_from_a_stream,
    ],
)
def test_views_that_see_other_rows_are_refused(made, run_eagerly):
    model = toy.private(run_eagerly=run_eagerly)
    seen = []
    with pytest.raises(NotPrivateError, match="augment may only compute a view"):
        model.fit(X, Y, batch_size=4, augment=made(seen), verbose=0)
    assert model.ledger.total_count == 0 and not seen


@pytest.mark.parametrize("run_eagerly", [False, True])
def test_what_layers_draw_for_a_view_follows_no_stream(run_eagerly):
    """Layers that draw from seeds that anybody knows, in every row alike."""
    layer = L.GaussianNoise(1.0, seed=3)
    gradients = []
    for _ in range(2):
        keras.utils.set_random_seed(1)
        query = tfdp.GaussianAverageQuery(1e3, stddev=0.0, denominator=1)
        model = keras.Sequential([keras.Input((4,)), L.Dense(1, use_bias=False)])
        model = toy.private(
            model,
            DPOptimizer(keras.optimizers.SGD(1.0), query),
            lambda y, p: p,
            run_eagerly=run_eagerly,
        )
        start = toy.weights(model)[0]
        model.fit(
            np.zeros((N, 4), "float32"),
            np.zeros(N),
            **{"sampling": FullBatch(), "views": 200, "verbose": 0},
            augment=lambda x, seed: layer(x[None], training=True)[0],
        )
        gradients.append((start - toy.weights(model)[0]).ravel() * np.sqrt(200 / N))
    # Means of independent numbers, of both rows and runs: standard normal, and never the same.
    assert np.abs(gradients).max() < 6.2
    assert np.abs(gradients[0] - gradients[1]).min() > 1e-6


def test_a_place_that_does_not_exist_leaves_out_its_record():
    table = tf.constant(np.eye(4, dtype="float32"))
    x = np.abs(X) * 1e-3
    sums = []
    for bad in (9.0, np.nan):
        inputs = x.copy()
        inputs[5, 0] = bad
        model = toy.private(toy.linear())
        toy.fit_step(
            model,
            inputs,
            augment=lambda x, seed: x + tf.gather(table, tf.cast(100 * x[0], tf.int32)),
        )
        sums.append(toy.weights(model))
    for one, other in zip(*sums, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


ZERO = np.zeros((1, 1), "float32")


def _by_batch(model):
    model.train_on_batch(ZERO, ZERO)


def _by_fit(model):
    model.fit(ZERO, ZERO, sampling=FullBatch(), verbose=0, views=3)


def _while_evaluating(model):
    trains = keras.callbacks.LambdaCallback(on_test_begin=lambda logs: _by_batch(model))
    model.evaluate(ZERO, ZERO, verbose=0, callbacks=[trains])


@pytest.mark.parametrize("run_eagerly", [False, True])
@pytest.mark.parametrize("do", [_by_batch, _by_fit, _while_evaluating])
def test_a_fit_keeps_its_views_whatever_a_callback_trains(do, run_eagerly):
    query = tfdp.GaussianAverageQuery(1e3, stddev=0.0, denominator=1)
    model = toy.private(
        keras.Sequential([keras.Input((1,)), L.Dense(1, use_bias=False)]),
        DPOptimizer(keras.optimizers.SGD(1.0), query),
        lambda y, p: p[:, 0],
        run_eagerly=run_eagerly,
    )
    trains, x = toy.Moves(do), np.ones((1, 1), "float32")
    model.fit(
        *(x, x),
        **{"sampling": FullBatch(), "steps_per_epoch": 4, "verbose": 0, "views": 2},
        augment=lambda x, seed: 10 * x,
        callbacks=[trains],
    )
    np.testing.assert_allclose(trains.moves, [10] * 4, rtol=1e-5)
