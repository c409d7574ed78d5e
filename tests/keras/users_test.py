"""Users as records, from what fit is told to the ledger."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import toy
from toy import L, N, X, Y

import tfdp
from tfdp.keras import DPOptimizer, PrivateLoss
from tfdp.sampling import FullBatch, Poisson, Shuffled

# Users of 1, 2, 3 and 6 rows, not in order.
IDS = np.array(list("dcbdaddcbbdd"))[:N]
USERS = [np.flatnonzero(IDS == user) for user in "abcd"]


def mean_loss(model, rows):
    return tf.reduce_mean(toy.LOGITS_LOSS(Y[rows], model(X[rows])))


def by_hand(model, users, gradient):
    """Weights after one step on these users, one after another."""
    factor = (lambda rows: 1) if gradient == "mean" else len
    losses = [lambda rows=rows: factor(rows) * mean_loss(model, rows) for rows in users]
    return toy.step_by_hand(model, losses)


def user_optimizer(**kwargs):
    return toy.dp(privacy_unit="user", **kwargs)


@pytest.mark.parametrize(
    ("engine", "gradient", "jit_compile"),
    [
        ("bookkeeping", "mean", False),
        ("bookkeeping", "mean", True),
        ("bookkeeping", "sum", False),
        ("bookkeeping", "sum", True),
        ("vectorized", "sum", False),
        ("loop", "mean", False),
    ],
)
def test_the_gradient_of_a_user_is_clipped_once(engine, gradient, jit_compile):
    model = toy.private(optimizer=user_optimizer(engine=engine), jit_compile=jit_compile)
    expected, norms = by_hand(model, USERS, gradient)
    assert min(norms) < toy.CLIP < max(norms) or gradient == "mean"
    toy.fit_step(model, privacy_unit=IDS, max_examples_per_user=6, user_gradient=gradient)
    toy.assert_weights(model, expected)


def test_other_gradient_and_other_bound_are_traced_anew():
    model = toy.private(optimizer=user_optimizer())
    for most, gradient in ((6, "mean"), (7, "mean"), (7, "sum"), (6, "sum")):
        expected, _ = by_hand(model, USERS, gradient)
        toy.fit_step(model, privacy_unit=IDS, max_examples_per_user=most, user_gradient=gradient)
        toy.assert_weights(model, expected)


def test_without_ids_each_row_is_a_users_only_one():
    model = toy.private(optimizer=user_optimizer())
    expected, _ = by_hand(model, [[i] for i in range(N)], "mean")
    toy.fit_step(model)
    toy.assert_weights(model, expected)


def test_ledger_counts_users_and_says_so():
    model = toy.private(optimizer=user_optimizer())
    model.fit(X, Y, privacy_unit=IDS, max_examples_per_user=2, batch_size=2, epochs=3, verbose=0)
    (entry,) = model.ledger
    assert entry.event.privacy_unit == "user"
    assert entry.event.sampling == tfdp.events.PoissonSampling(0.5, 4)
    assert entry.count == 3 * 2  # Steps of an epoch: four users by two.
    bound = entry.event.event.l2_norm_bound
    assert bound == pytest.approx(toy.CLIP)  # Once, however many rows a user has.


def test_size_of_a_sample_is_its_number_of_users():
    sizes = []
    model = toy.private(optimizer=user_optimizer())
    original = model.optimizer.charging.samples.sampled
    model.optimizer.charging.samples.sampled = lambda event, unit, batch: (
        sizes.append(batch.size) or original(event, unit, batch)
    )
    toy.fit_step(model, privacy_unit=IDS, max_examples_per_user=6)
    model.fit(
        *(X, Y),
        privacy_unit=IDS,
        max_examples_per_user=3,
        sampling=Shuffled(),
        batch_size=3,
        verbose=0,
    )
    assert sizes == [4, 3, 1]


@pytest.mark.parametrize("most", [1, 2, 9])
@pytest.mark.parametrize("gradient", ["mean", "sum"])
def test_a_user_moves_the_sum_by_at_most_the_bound(most, gradient):
    """Whatever a user's rows are, and however many: the neighbour has zeros in place of them."""
    model = toy.private(toy.linear(), optimizer=user_optimizer())
    start = toy.weights(model)

    def moved(x, ids):
        model.set_weights(start)
        tfdp.keras.declare_weights(model, "fresh_start")
        model.fit(
            *(x, Y),
            privacy_unit=ids,
            max_examples_per_user=most,
            user_gradient=gradient,
            sampling=FullBatch(),
            verbose=0,
        )
        return np.concatenate([w.ravel() for w in toy.weights(model)])

    # Only one user has more rows than take part: what is drawn of the others is always the same.
    ids = np.array([0] * 9 + [1, 2, 3])
    x = 5 * X
    with_user = moved(x, ids)
    bad = np.where(ids[:, None] == 0, np.nan, x)
    without = moved(bad.astype("float32"), ids)  # A user that is not finite contributes zero.
    # Learning rate 0.5, denominator 10.
    moved = np.linalg.norm(with_user - without)
    assert 0 < moved <= 0.5 * toy.CLIP / 10 * (1 + 1e-5)
    if (most, gradient) == (9, "sum"):  # All rows take part, and are clipped.
        assert moved > 0.49 * toy.CLIP / 10


def test_population_of_users_can_be_secret():
    relation = tfdp.NeighboringRelation.ADD_OR_REMOVE_ONE
    ledgers = []
    for ids in (IDS, np.where(IDS == "a", "b", IDS)):  # One user less.
        model = toy.private(optimizer=user_optimizer())
        policy = Poisson(0.5, neighboring_relation=relation)
        model.fit(X, Y, privacy_unit=ids, max_examples_per_user=2, sampling=policy, verbose=0)
        ledgers.append([(entry.event, entry.count) for entry in model.ledger])
    assert ledgers[0] == ledgers[1]


def test_private_metrics_are_means_over_users():
    metric = PrivateLoss(l2_norm_clip=100.0, noise_multiplier=1e-6)
    optimizer = DPOptimizer(
        *(keras.optimizers.SGD(0.0), toy.query(denominator=4)),
        privacy_unit="user",
        private_metrics=[metric],
    )
    model = toy.private(optimizer=optimizer)
    expected = np.mean([mean_loss(model, rows) for rows in USERS])
    history = toy.fit_step(model, privacy_unit=IDS, max_examples_per_user=6)
    assert history.history["loss"][0] == pytest.approx(expected, abs=1e-3)


def test_custom_loop_clips_users_once():
    w = toy.matrix(0.1)
    optimizer = DPOptimizer(
        keras.optimizers.SGD(0.5), toy.query(), privacy_unit="user", ledger=tfdp.PrivacyLedger()
    )
    optimizer.sampling = FullBatch(population_size=N // 3)
    x, y = toy.examples()
    gradients = optimizer.private_gradients(
        toy.squared_error(w), [w], (x, y), examples_per_record=3
    )
    expected = np.zeros(w.shape)
    for first in range(0, N, 3):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x[first : first + 3] @ w - y[first : first + 3]) ** 2)
        gradient = tape.gradient(loss, w).numpy()
        expected += gradient * min(1, toy.CLIP / np.linalg.norm(gradient)) / 10
    np.testing.assert_allclose(gradients[0], expected, atol=1e-6)


GIVEN = {"privacy_unit": IDS, "max_examples_per_user": 2}


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"privacy_unit": IDS}, ValueError, "Give max_examples_per_user"),
        ({"max_examples_per_user": 2}, ValueError, "give privacy_unit"),
        ({"user_gradient": "sum"}, ValueError, "give privacy_unit"),
        ({**GIVEN, "user_gradient": "max"}, ValueError, "'mean' or 'sum'"),
        ({**GIVEN, "privacy_unit": "user"}, TypeError, "an array with the id"),
        ({**GIVEN, "privacy_unit": IDS[:-1]}, ValueError, "one id for each row"),
        ({**GIVEN, "validation_split": 0.2}, ValueError, "validation_data of other users"),
        ({**GIVEN, "batch_size": 5}, ValueError, "number of units"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_charged(arguments, error, message):
    model = toy.private(optimizer=user_optimizer())
    with pytest.raises(error, match=message):
        model.fit(X, Y, verbose=0, **arguments)
    assert len(model.ledger) == 0


@pytest.mark.parametrize(
    ("norms", "beside"),
    [
        ([], {"private_metrics": [PrivateLoss(noise_multiplier=9.0)]}),
        ([L.BatchNormalization], {"batch_norm_noise_multiplier": 9.0}),
    ],
    ids=["metrics", "moments"],
)
def test_what_is_released_as_means_over_rows_is_not_beside_sums_of_gradients(norms, beside):
    plain = keras.Sequential([keras.Input((4,)), L.Dense(2), *(norm() for norm in norms)])
    model = tfdp.keras.make_private(plain, batch_norm="private")
    model.compile(user_optimizer(stddev=1.0, **beside), toy.LOGITS_LOSS)
    with pytest.raises(ValueError, match="take means over a user's rows"):
        toy.fit_step(model, **GIVEN, user_gradient="sum")
    assert len(model.ledger) == 0


def test_optimizers_of_other_units_and_data_sets_are_refused():
    model = toy.private()
    with pytest.raises(ValueError, match="privacy_unit='user'"):
        model.fit(X, Y, verbose=0, **GIVEN)
    model = toy.private(optimizer=user_optimizer())
    with pytest.raises(ValueError, match="go with arrays"):
        model.fit(tf.data.Dataset.from_tensor_slices((X, Y)).batch(2), verbose=0, **GIVEN)
    weighted = tfdp.WeightedAverageQuery(1.0, max_weight=2.0, stddev=0.0, denominator=4)
    optimizer = DPOptimizer(keras.optimizers.SGD(0.5), weighted, privacy_unit="user")
    model = toy.private(optimizer=optimizer)
    with pytest.raises(ValueError, match="has no weight"):
        model.fit(X, Y, sample_weight=np.ones(N), sampling=FullBatch(), verbose=0, **GIVEN)


def test_recurrent_and_attending_models_train_on_users():
    tokens = np.random.default_rng(0).integers(1, 5, (N, 3))
    model = keras.Sequential(
        [keras.Input((3,), dtype="int32"), L.Embedding(5, 4), L.GRU(3), L.Dense(2)]
    )
    model = toy.private(model, optimizer=user_optimizer())
    model.fit(tokens, Y, batch_size=2, verbose=0, **GIVEN)
    assert toy.all_finite(model)


def test_steps_without_ids_after_steps_with_them_are_refused():
    model = toy.private(toy.linear(), optimizer=user_optimizer())
    model.fit(X, Y, batch_size=2, verbose=0)  # Each row is a user.
    model.fit(X, Y, batch_size=2, verbose=0, **GIVEN)
    steps = model.ledger.total_count
    with pytest.raises(ValueError, match="privacy_unit=ids"):
        model.fit(X, Y, batch_size=2, verbose=0)
    with pytest.raises(ValueError, match="privacy_unit=ids"):
        model.train_on_batch(X, Y)
    assert model.ledger.total_count == steps
    model.fit(X, Y, batch_size=2, verbose=0, **GIVEN)


def test_ids_that_do_not_fit_are_forgotten():
    model = toy.private(toy.linear(), optimizer=user_optimizer())
    with pytest.raises(ValueError, match="one id for each row"):
        model.fit(X, Y, batch_size=2, verbose=0, **{**GIVEN, "privacy_unit": IDS[:-1]})
    model.fit(X, Y, batch_size=2, verbose=0)  # Each row is a user, as before.
    assert model.ledger.total_count > 0


def _by_training_function(model, data):
    model.make_train_function()(iter([data]))


def _by_train_step(model, data):
    model.train_step(data)


def _by_private_step(model, data, **kwargs):
    loss = tfdp.gradients.ModelLoss(model, toy.LOGITS_LOSS)
    model.optimizer.private_step(loss, model.trainable_variables, data, **kwargs)


def _by_private_gradients(model, data):
    loss = tfdp.gradients.ModelLoss(model, toy.LOGITS_LOSS)
    model.optimizer.private_gradients(loss, model.trainable_variables, data)


@pytest.mark.parametrize("views", [1, 2])
@pytest.mark.parametrize(
    "step",
    [
        _by_training_function,
        _by_train_step,
        _by_private_step,
        _by_private_gradients,
    ],
)
def test_steps_by_hand_on_rows_of_users_are_refused(step, views):
    model = toy.private(toy.linear(), optimizer=user_optimizer())
    model.fit(X, Y, batch_size=2, verbose=0, views=views, **GIVEN)
    steps, before = model.ledger.total_count, toy.weights(model)
    with pytest.raises(ValueError, match="each row would be a user of its own"):
        step(model, (tf.constant(X), tf.constant(Y)))
    toy.assert_weights(model, before, 0)
    assert model.ledger.total_count == steps


def test_steps_by_hand_may_say_which_rows_are_a_users():
    model = toy.private(toy.linear(), optimizer=user_optimizer())
    model.fit(X, Y, batch_size=2, verbose=0, **GIVEN)
    steps = model.ledger.total_count
    _by_private_step(model, (tf.constant(X), tf.constant(Y)), examples_per_record=3)
    assert model.ledger.total_count == steps + 1


def _slope(**kwargs):
    """Returns a model that a step moves by the gradients of records, which are not clipped."""
    plain = keras.Sequential([keras.Input((1,)), L.Dense(1, use_bias=False)])
    optimizer = DPOptimizer(
        keras.optimizers.SGD(1.0), toy.query(clip=1e3, denominator=1), privacy_unit="user"
    )
    return toy.private(plain, optimizer, loss=lambda y, p: p[:, 0], **kwargs)


@pytest.mark.parametrize("run_eagerly", [False, True])
def test_a_fit_within_a_fit_leaves_that_its_sum_over_rows(run_eagerly):
    model = _slope(run_eagerly=run_eagerly)
    x, given = np.ones((3, 1), "float32"), {"privacy_unit": [0, 0, 0], "max_examples_per_user": 3}
    given |= {"batch_size": 1, "sampling": FullBatch(), "verbose": 0}
    trains = toy.Moves(lambda model: model.fit(0 * x, np.zeros(3), **given))
    model.fit(x, np.zeros(3), **given, user_gradient="sum", steps_per_epoch=4, callbacks=[trains])
    np.testing.assert_allclose(trains.moves, [3] * 4, rtol=1e-5)


def test_a_fit_without_ids_ends_where_ids_are_given_within_it():
    model = toy.private(toy.linear(), optimizer=user_optimizer())
    steps = []

    def with_ids(model):
        model.fit(X, Y, batch_size=2, verbose=0, **GIVEN)
        steps.append(model.ledger.total_count)

    note = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: with_ids(model))
    with pytest.raises(ValueError, match="each row would be a user of its own"):
        model.fit(X, Y, batch_size=2, verbose=0, callbacks=[note])
    assert [model.ledger.total_count] == steps


def test_a_graph_that_was_traced_before_there_were_ids_is_refused():
    model = toy.private(optimizer=user_optimizer())
    optimizer, loss = model.optimizer, tfdp.gradients.ModelLoss(model, toy.LOGITS_LOSS)

    @tf.function(autograph=False)
    def step(x, y):
        optimizer.private_step(loss, model.trainable_variables, (x, y))

    optimizer.build(model.trainable_variables)
    step(tf.constant(X), tf.constant(Y))
    toy.fit_step(model, privacy_unit=IDS, max_examples_per_user=6)
    count = model.ledger.total_count
    with pytest.raises(tf.errors.OpError, match="privacy_unit=ids"):
        step(tf.constant(X), tf.constant(Y))
    assert model.ledger.total_count == count
