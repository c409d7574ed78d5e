"""Private metrics are noised averages of the records' values, charged, and all that logs hold."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf
import toy

import tfdp
from tfdp.gradients import clipped_gradient_sum
from tfdp.gradients.keras_internals import attach_mask
from tfdp.keras import (
    DPOptimizer,
    NotPrivateError,
    PrivateAccuracy,
    PrivateClassCounts,
    PrivateLoss,
    PrivateMean,
    private_metrics,
)
from tfdp.keras.released import Released

TINY = 1e-9  # So little noise that the values before it can be seen.
MAX_LOSS = 0.6


def metrics(noise=TINY):
    return [
        PrivateAccuracy(noise_multiplier=noise),
        PrivateLoss(noise_multiplier=noise, l2_norm_clip=MAX_LOSS),
        PrivateClassCounts(noise_multiplier=noise, num_classes=2),
    ]


def private(noise=TINY, model=None, **kwargs):
    optimizer = toy.dp(private_metrics=metrics(noise), **kwargs)
    return toy.private(model, optimizer, metrics=["accuracy"])


def by_hand(model, x, y, denominator=10):
    """Returns what a step shows, from a loop over the records."""
    correct, losses, counts = 0.0, 0.0, [0.0, 0.0]
    for record, label in zip(x, y, strict=True):
        logits = np.float64(model(record[None])[0])
        loss = np.log(np.sum(np.exp(logits))) - logits[label]
        if not math.isfinite(loss):
            continue
        correct += np.argmax(logits) == label
        losses += min(loss, MAX_LOSS)
        counts[label] += 1
    return {
        "accuracy": correct / denominator,
        "loss": losses / denominator,
        "counts_0": counts[0],
        "counts_1": counts[1],
    }


@pytest.mark.parametrize(
    "arguments",
    [
        {"engine": "bookkeeping"},
        {"engine": "vectorized", "physical_batch_size": 5},
        {"engine": "loop"},
    ],
    ids=lambda arguments: arguments["engine"],
)
@pytest.mark.parametrize("jit_compile", [False, True])
def test_logs_are_averages_of_the_records_own_values(arguments, jit_compile):
    model = private(**arguments)
    model.jit_compile = jit_compile
    x = toy.X.copy()
    x[4, 1] = np.nan
    expected = by_hand(model, x, toy.Y)
    assert toy.fit_step(model, x).history == {
        key: [pytest.approx(value, abs=1e-5)] for key, value in expected.items()
    }


def test_padding_counts_for_nothing():
    model = private(engine="vectorized")
    expected = by_hand(model, toy.X, toy.Y)
    batch = tfdp.sampling.PaddedBatch(
        np.concatenate([toy.X, toy.X[:5]]),
        np.concatenate([toy.Y, toy.Y[:5]]),
        None,
        np.arange(toy.N + 5) < toy.N,
    )
    model._build_for(toy.X[:1], toy.Y[:1], None)
    with model._dp_optimizer().charging.turn:
        logs = model.train_step(batch._replace(**_tensors(batch)))
    for key, value in expected.items():
        assert float(logs[key]) == pytest.approx(value, abs=1e-5)


def _tensors(batch):
    return {name: tf.constant(getattr(batch, name)) for name in ("x", "y", "mask")}


def test_an_epoch_is_the_mean_of_its_noised_steps():
    seen = []

    class Steps(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append(logs["accuracy"])

    # The names are those of Keras' own, which it would take in their place.
    optimizer = toy.dp(private_metrics=metrics(noise=10.0)[:2], engine="vectorized")
    model = toy.private(None, optimizer, metrics=["accuracy"])
    history = model.fit(
        toy.X, toy.Y, batch_size=4, steps_per_epoch=3, epochs=2, verbose=0, callbacks=[Steps()]
    ).history
    # What Keras shows in an epoch is the mean so far, and the next epoch begins anew.
    assert history["accuracy"] == pytest.approx([seen[2], seen[5]])
    assert len(set(seen)) == 6


def test_raw_metrics_appear_nowhere():
    seen = []

    class Logs(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append(dict(logs))

        def on_epoch_end(self, epoch, logs=None):
            seen.append(dict(logs))

    model = private(noise=1e6, engine="vectorized")
    history = model.fit(
        toy.X,
        toy.Y,
        batch_size=4,
        steps_per_epoch=2,
        epochs=2,
        verbose=0,
        callbacks=[Logs()],
        validation_data=(toy.X[:3] + 1, toy.Y[:3]),
    ).history
    keys = {"accuracy", "loss", "counts_0", "counts_1"}
    assert set(history) == keys | {"val_accuracy", "val_loss"}
    # Under so much noise any value of a raw metric's size is a raw metric.
    for logs in seen:
        assert all(abs(logs[key]) > 1 for key in keys)
    assert 0 <= history["val_accuracy"][0] <= 1
    assert [float(metric.result()) for metric in model.metrics if metric.name == "loss"] != [0.0]
    on_batch = model.train_on_batch(toy.X, toy.Y, return_dict=True)
    assert set(on_batch) == keys
    assert all(abs(value) > 1 for value in on_batch.values())
    assert set(model.evaluate(toy.X, toy.Y, verbose=0, return_dict=True)) == {"loss", "accuracy"}


def test_one_metric_alone_hides_the_loss_too():
    optimizer = toy.dp(private_metrics=metrics()[:1], engine="vectorized")
    assert set(toy.fit_step(toy.private(None, optimizer)).history) == {"accuracy"}


@pytest.mark.parametrize(
    ("callback", "is_safe"),
    [
        (lambda: keras.callbacks.EarlyStopping("accuracy"), True),
        (lambda: keras.callbacks.ReduceLROnPlateau("loss"), True),
        (lambda: keras.callbacks.TerminateOnNaN(), True),
        (lambda: keras.callbacks.EarlyStopping("sparse_accuracy"), False),
        (lambda: keras.callbacks.EarlyStopping("counts"), False),
    ],
)
def test_callbacks_may_act_on_private_metrics_only(callback, is_safe):
    model = private(engine="vectorized")
    if is_safe:
        toy.fit_step(model, callbacks=[callback()])
        with pytest.raises(NotPrivateError):
            toy.fit_step(toy.private(), callbacks=[callback()])
    else:
        with pytest.raises(NotPrivateError, match="a raw statistic"):
            toy.fit_step(model, callbacks=[callback()])


def test_epsilon_and_a_metric_of_one_name_are_refused():
    metric = PrivateAccuracy(noise_multiplier=1.0, name="epsilon")
    model = toy.private(None, toy.dp(private_metrics=[metric]))
    with pytest.raises(ValueError, match="have one name"):
        toy.fit_step(model, callbacks=[tfdp.keras.EpsilonLogger(1e-5)])


def test_validation_on_private_data_is_refused():
    model = private()
    for arguments in ({"validation_split": 0.5}, {"validation_data": (toy.X, toy.Y)}):
        with pytest.raises(NotPrivateError, match="no raw statistics"):
            model.fit(toy.X, toy.Y, batch_size=4, verbose=0, **arguments)
    assert len(model.ledger) == 0


ADVERSARIAL = {
    "huge": [1e15, -1e15],
    "beyond floats": [3e38, -3e38],
    "not finite": [np.nan, np.inf],
    "at the bound": [0.8, 0.6],
    "nothing": [0.0, 0.0],
}


@pytest.mark.parametrize("engine", ["vectorized", "loop"])
def test_no_record_moves_a_statistic_by_more_than_its_bound(engine):
    variable, others = tf.Variable([1.0, 2.0]), np.float32([[0.3, 0.1], [-0.2, 4.0]])

    def loss(example):
        # The value of a record is the record itself, whoever made it up.
        return tf.reduce_sum(variable) * 0.1, ((), [example[0]])

    query = tfdp.NestedQuery([tfdp.GaussianSumQuery(1.0, 1.0), tfdp.GaussianSumQuery(0.7, 1.0)])

    def total(records):
        state = clipped_gradient_sum(
            loss,
            [variable],
            tf.constant(np.float32(records)),
            query,
            has_aux=True,
            engine=engine,
            statistics=[tf.TensorSpec([2], tf.float32)],
        ).sample_state
        return np.float64(state[1])

    before = total(others)
    clipped = [r * min(1, 0.7 / np.linalg.norm(r)) for r in np.float64(others)]
    np.testing.assert_allclose(before, np.sum(clipped, 0), atol=1e-5)
    for name, record in ADVERSARIAL.items():
        moved = np.linalg.norm(total([*others, record]) - before)
        assert moved <= 0.7 + 1e-6, name
        assert (moved > 0.69) == (name in ("huge", "at the bound"))


def test_value_that_is_not_finite_counts_as_zero_and_spares_the_gradient():
    def value(y, y_pred):
        return tf.where(tf.cast(y, tf.float32) > 0, np.inf, 1.0)

    plain, with_metric = (
        toy.private(None, toy.dp(engine="vectorized", private_metrics=found))
        for found in ([], [PrivateMean(fn=value, noise_multiplier=TINY, name="own")])
    )
    toy.fit_step(plain)
    history = toy.fit_step(with_metric).history
    assert history["own"] == [pytest.approx(np.sum(toy.Y == 0) / 10, abs=1e-5)]
    toy.assert_weights(with_metric, toy.weights(plain))


def test_event_and_price_are_those_of_all_leaves_together():
    optimizer = toy.dp(stddev=2.0, private_metrics=metrics(noise=5.0), engine="vectorized")
    model = toy.private(None, optimizer)
    expected = tfdp.ComposedEvent(
        (
            tfdp.GaussianSumEvent(toy.CLIP, 2.0),
            tfdp.GaussianSumEvent(1.0, 5.0),
            tfdp.GaussianSumEvent(MAX_LOSS, 5.0 * MAX_LOSS),
            tfdp.GaussianSumEvent(1.0, 5.0),
        )
    )
    assert optimizer.next_event().event == expected
    model.fit(toy.X, toy.Y, batch_size=4, epochs=2, verbose=0)
    assert [event.event for event in toy.events(model)] == [expected] * 6
    # (sum_g (S_g / sigma_g)^2)^(-1/2)
    joint = (2.0**-2 + 3 * 5.0**-2) ** -0.5
    accountant = tfdp.accounting.RDPAccountant()
    for event in toy.events(model):
        accountant.compose(
            tfdp.SampledEvent(
                event.sampling,
                tfdp.GaussianSumEvent(1.0, joint),
                event.neighboring_relation,
            )
        )
    spent = tfdp.accounting.RDPAccountant()
    for event in toy.events(model):
        spent.compose(event)
    assert spent.get_epsilon(1e-5) == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-9)


def test_noise_on_a_metric_is_as_large_as_its_event_says():
    # One record, whose value is far below the noise: 600 draws of N(0, (3 * 2)^2) / 4.
    metric = PrivateMean(
        fn=lambda y, y_pred: y_pred[..., :1] * 0,
        noise_multiplier=3.0,
        l2_norm_clip=2.0,
        denominator=4.0,
        name="zero",
    )
    query = Released(toy.query(1.0), (metric,), None).mechanism
    state = query.initial_sample_state([[tf.zeros([2])], tf.zeros([])])

    @tf.function
    def draw():
        return query.get_noised_result(state, query.initial_global_state())[0][1]

    values = [float(draw()) for _ in range(600)]
    # The standard deviation of 600 draws is within 20 % but once in 10^9.
    assert 1.2 < np.std(values) < 1.8


@pytest.mark.parametrize(
    "arguments",
    [{"noise_multiplier": 0.0}, {"noise_multiplier": 1.0, "l2_norm_clip": 0.0}],
)
def test_metric_without_noise_is_refused(arguments):
    with pytest.raises(ValueError, match="greater than 0"):
        PrivateAccuracy(**arguments)


def test_bad_arguments_are_refused_by_name():
    def dp(*found, query=None):
        return DPOptimizer(
            keras.optimizers.SGD(0.1), query or toy.query(), private_metrics=list(found)
        )

    accuracy = PrivateAccuracy(noise_multiplier=1.0)
    with pytest.raises(ValueError, match="a name of its own"):
        dp(accuracy, accuracy)
    with pytest.raises(TypeError, match="PrivateMetric"):
        dp("accuracy")
    with pytest.raises(TypeError, match="needs denominator"):
        dp(accuracy, query=tfdp.NoPrivacyAverageQuery())
    with pytest.raises(ValueError, match="val_"):
        PrivateAccuracy(noise_multiplier=1.0, name="val_accuracy")
    with pytest.raises(TypeError, match="without state"):
        PrivateMean(fn=keras.metrics.MeanSquaredError(), noise_multiplier=1.0)
    with pytest.raises(NotPrivateError, match="of your own"):
        variable = toy.matrix()
        dp(accuracy).private_step(toy.squared_error(variable), [variable], toy.examples())


def test_metric_that_keeps_something_is_refused():
    kept = tf.Variable(0.0)

    def value(y, y_pred):
        kept.assign(tf.reduce_sum(y_pred))
        return y_pred

    metric = PrivateMean(fn=value, noise_multiplier=1.0)
    model = toy.private(None, toy.dp(private_metrics=[metric], engine="vectorized"))
    with pytest.raises(NotPrivateError, match="leaves something"):
        toy.fit_step(model)
    assert float(kept) == 0.0


def test_a_metric_of_a_microbatch_is_the_mean_of_its_examples():
    optimizer = toy.dp(private_metrics=metrics(), num_microbatches=3, privacy_unit="microbatch")
    model = toy.private(None, optimizer)
    losses = [float(toy.crossentropy(model, i)[0]) for i in range(toy.N)]
    means = np.reshape(losses, [3, 4]).mean(1)
    history = model.fit(
        toy.X, toy.Y, batch_size=toy.N, sampling=tfdp.sampling.FullBatch(), verbose=0
    ).history
    assert history["loss"] == [pytest.approx(np.minimum(means, MAX_LOSS).sum() / 10, abs=1e-5)]


def test_metric_of_one_of_several_outputs():
    y = {"a": tf.constant([1]), "b": tf.constant([0])}
    y_pred = {"a": tf.constant([[0.0, 1.0]]), "b": tf.constant([[0.0, 1.0]])}

    def values(**arguments):
        found = [PrivateAccuracy(noise_multiplier=1.0, **arguments)]
        return private_metrics.values_of_record(found, y, y_pred, tf.constant(1.0))

    assert float(values(output="a")[0]) == 1.0
    assert float(values(output="b")[0]) == 0.0
    with pytest.raises(ValueError, match="several outputs"):
        values()
    with pytest.raises(ValueError, match=r"one of \['a', 'b'\]"):
        values(output=0)


@pytest.mark.parametrize(
    ("y_pred", "output", "wanted"),
    [
        (tf.constant([[0.0, 1.0]]), 0, "is for models of several outputs"),
        (tf.constant([[0.0, 1.0]]), "a", "is for models of several outputs"),
        ([tf.constant([[0.0, 1.0]])] * 2, 2, r"must be one of \[0, 1\]"),
        ([tf.constant([[0.0, 1.0]])] * 2, "a", r"must be one of \[0, 1\]"),
    ],
)
def test_an_output_that_there_is_not_is_refused(y_pred, output, wanted):
    """An index into the only output would be one into the records."""
    metric = PrivateAccuracy(noise_multiplier=1.0, output=output)
    with pytest.raises(ValueError, match=wanted):
        private_metrics.values_of_record([metric], [tf.constant([1])] * 2, y_pred, tf.constant(1.0))


@pytest.mark.parametrize("predicted", [True, False])
def test_classes_of_several_positions_are_not_counted(predicted):
    metric = PrivateClassCounts(noise_multiplier=1.0, num_classes=2, predicted=predicted)
    y, y_pred = tf.constant([[1, 0, 1]]), tf.zeros([1, 3, 2])
    with pytest.raises(ValueError, match="several labels"):
        private_metrics.values_of_record([metric], y, y_pred, tf.constant(1.0))


@pytest.mark.parametrize(
    ("y", "y_pred", "accuracy", "counts", "predicted"),
    [
        ([2], [[0.1, 0.2, 0.7]], 1.0, [0, 0, 1], [0, 0, 1]),
        ([[0.0, 1.0, 0.0]], [[0.1, 0.2, 0.7]], 0.0, [0, 1, 0], [0, 0, 1]),
        ([[1]], [[0.7]], 1.0, [0, 1, 0], [0, 1, 0]),
        ([7], [[0.7, 0.2, 0.1]], 0.0, [0, 0, 0], [1, 0, 0]),
    ],
)
def test_values_by_the_form_of_labels(y, y_pred, accuracy, counts, predicted):
    found = [
        PrivateAccuracy(noise_multiplier=1.0),
        PrivateClassCounts(noise_multiplier=1.0, num_classes=3),
        PrivateClassCounts(noise_multiplier=1.0, num_classes=3, predicted=True, name="p"),
    ]
    values = private_metrics.values_of_record(
        found, tf.constant(y), tf.constant(y_pred), tf.constant(1.0)
    )
    assert float(values[0]) == accuracy
    np.testing.assert_array_equal(values[1], counts)
    np.testing.assert_array_equal(values[2], predicted)


def test_masked_positions_do_not_count():
    y_pred = tf.constant([[[0.9, 0.1], [0.9, 0.1], [0.9, 0.1]]])
    attach_mask(y_pred, tf.constant([[True, True, False]]))
    found = [PrivateAccuracy(noise_multiplier=1.0)]
    values = private_metrics.values_of_record(
        found, tf.constant([[0, 1, 1]]), y_pred, tf.constant(1.0)
    )
    assert float(values[0]) == 0.5


def test_loss_alone_is_shown_with_the_penalties():
    model = private(model=toy.dense(kernel_regularizer=keras.regularizers.L2(0.3)))
    expected = by_hand(model, toy.X, toy.Y)
    expected["loss"] += float(sum(model.losses))
    history = toy.fit_step(model).history
    for key in ("loss", "accuracy"):
        assert history[key] == [pytest.approx(expected[key], abs=1e-5)]


def test_for_budget_keeps_gradients_and_metrics_together_within_the_budget():
    optimizer = DPOptimizer.for_budget(
        keras.optimizers.SGD(0.1),
        1.0,
        batch_size=10,
        target_epsilon=2.0,
        target_delta=1e-5,
        population_size=1000,
        steps=50,
        private_metrics=metrics(noise=8.0),
    )
    optimizer.sampling = tfdp.sampling.Poisson(0.01, 1000)
    accountant = tfdp.accounting.PLDAccountant()
    accountant.compose(optimizer.next_event(), 50)
    assert 1.97 < accountant.get_epsilon(1e-5) <= 2.0
    with pytest.raises(ValueError, match="alone cost more"):
        private_metrics.noise_beside(1.0, 1, [1.5] * 3)


def test_configuration_brings_the_metrics_back():
    optimizer = toy.dp(
        private_metrics=[
            *metrics(noise=3.0),
            PrivateMean(
                fn=keras.metrics.mean_absolute_error, noise_multiplier=2.0, name="mae", output="a"
            ),
        ]
    )
    config = keras.optimizers.serialize(optimizer)
    again = keras.optimizers.deserialize(config)
    assert again.private_metrics == optimizer.private_metrics
    assert again.next_event() == optimizer.next_event()


def test_exact_precision_covers_the_metrics():
    query = tfdp.GaussianAverageQuery(1.0, stddev=1.0, denominator=10, precision="exact")
    optimizer = DPOptimizer(keras.optimizers.SGD(0.1), query, private_metrics=metrics(noise=2.0))
    kinds = {type(event).__name__ for event in optimizer.next_event().event.events}
    assert kinds == {"DiscreteGaussianSumEvent"}
    toy.fit_step(toy.private(None, optimizer))
