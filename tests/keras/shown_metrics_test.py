"""Whatever a model is and however it is trained, logs hold what was released, or it is refused."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import toy

import tfdp
from tests.query import conforming
from tfdp.keras import DPOptimizer, NotPrivateError, PrivateAccuracy, PrivateLoss, PrivateMean

TINY = 1e-9  # So little noise that the values before it can be seen.
HUGE = 1e6  # So much that any value of a raw metric's size is a raw metric.


def metrics(noise=HUGE):
    return [
        PrivateAccuracy(noise_multiplier=noise, denominator=10),
        PrivateLoss(noise_multiplier=noise, l2_norm_clip=3.0, denominator=10),
    ]


def optimizer(noise=HUGE, **kwargs):
    return toy.dp(private_metrics=metrics(noise), **kwargs)


class KeepsBooks(keras.layers.Layer):
    """A layer that keeps a metric of all that it sees."""

    def __init__(self):
        super().__init__()
        self.books = keras.metrics.Mean(name="books")

    def call(self, inputs):
        self.books.update_state(inputs)
        return inputs


class OwnMetrics(tfdp.keras.DPModel):
    """A model that keeps a metric in every place where Keras lets it."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(2)
        self.books = keras.metrics.Mean(name="books")

    def call(self, inputs):
        return self.dense(inputs)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        self.books.update_state(tf.reduce_mean(y_pred))
        return super().compute_metrics(x, y, y_pred, sample_weight)


def layer_with_books():
    return keras.Sequential([keras.Input((4,)), KeepsBooks(), keras.layers.Dense(2)])


MODELS = {"plain": toy.dense, "layer": layer_with_books, "own metrics": OwnMetrics}


@pytest.mark.parametrize("eagerly", [False, True])
@pytest.mark.parametrize("build", MODELS.values(), ids=MODELS)
def test_no_metric_that_anybody_can_read_holds_raw_values(build, eagerly):
    seen = []

    class Reads(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.extend(logs.values())
            # Labels as large as they are in the data would move any mean of records off zero.
            assert not any(np.any(v.numpy()) for v in self.model.metrics_variables)
            assert not any(float(value) for value in books(self.model))

    model = build()
    model = model if isinstance(model, tfdp.keras.DPModel) else tfdp.keras.make_private(model)
    model.compile(
        optimizer(engine="vectorized"),
        toy.LOGITS_LOSS,
        metrics=["accuracy"],
        weighted_metrics=["accuracy"],
        run_eagerly=eagerly,
    )
    history = toy.fit_step(model, callbacks=[Reads()]).history
    assert set(history) == {"accuracy", "loss"}
    assert all(abs(value) > 1 for value in [*seen, *sum(history.values(), [])])


def books(model):
    holders = [model, *model.layers]
    return [holder.books.result() for holder in holders if hasattr(holder, "books")]


def test_several_steps_of_one_call_are_all_shown_and_all_charged():
    # With a learning rate of zero the four steps of an epoch have the losses of all records.
    inner = keras.optimizers.SGD(0.0)
    model = toy.private(
        None,
        toy.dp(inner, engine="vectorized", private_metrics=metrics(TINY)),
        steps_per_execution=4,
    )
    losses = [float(toy.crossentropy(model, i)[0]) for i in range(toy.N)]
    history = model.fit(
        toy.X, toy.Y, batch_size=3, sampling=tfdp.sampling.Shuffled(), epochs=2, verbose=0
    ).history
    assert model.ledger.total_count == 8
    # A step divides by 10, and an epoch is the mean of its steps.
    assert history["loss"] == [pytest.approx(sum(losses) / 10 / 4, abs=1e-5)] * 2


def test_private_loss_of_weighted_records_is_weighted():
    query = tfdp.WeightedAverageQuery(1.0, stddev=0.0, denominator=10, max_weight=2.0)
    model = toy.private(
        None, DPOptimizer(keras.optimizers.SGD(0.5), query, private_metrics=metrics(TINY))
    )
    weights = np.linspace(0, 6, toy.N, dtype=np.float32)
    losses = [float(toy.crossentropy(model, i)[0]) for i in range(toy.N)]
    weighted = np.minimum(weights * losses, 3.0)
    assert np.any(weighted == 3.0) and np.any(weighted < 3.0)
    history = toy.fit_step(model, sample_weight=weights).history
    assert history["loss"] == [pytest.approx(weighted.sum() / 10, abs=1e-5)]


def test_metrics_are_those_of_the_optimizer_compiled_last():
    model = toy.private(None, toy.dp(engine="vectorized"), metrics=["accuracy"])
    found = [set(toy.fit_step(model).history)]
    for kind in (metrics(), metrics()[1:], []):
        other = toy.dp(engine="vectorized", private_metrics=kind)
        # A user may build it; nothing then tells the model that its metrics are others.
        other.build(model.trainable_variables)
        model.compile(other, toy.LOGITS_LOSS, metrics=["accuracy"])
        history = toy.fit_step(model).history
        found.append(set(history))
        assert not kind or all(abs(value) > 1 for (value,) in history.values())
    assert found == [{"accuracy", "loss"}, {"accuracy", "loss"}, {"loss"}, {"accuracy", "loss"}]
    model.optimizer = other = toy.dp(engine="vectorized", private_metrics=metrics()[1:])
    other.build(model.trainable_variables)
    assert set(toy.fit_step(model).history) == {"loss"}


def test_evaluating_in_the_middle_of_an_epoch_changes_nothing_that_is_shown():
    shown = []

    class Evaluates(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            shown.append(logs["loss"])
            values = self.model.evaluate(toy.X + 1, toy.Y, verbose=0, return_dict=True)
            assert 0 <= values["accuracy"] <= 1

    model = toy.private(None, optimizer(10.0, engine="vectorized"), metrics=["accuracy"])
    history = model.fit(
        toy.X, toy.Y, batch_size=6, sampling=tfdp.sampling.Shuffled(), epochs=2,
        verbose=0, callbacks=[Evaluates()],
    ).history  # fmt: skip
    assert len(set(shown)) == 4
    assert history["loss"] == pytest.approx([shown[1], shown[3]])


def _into_python(y, y_pred):
    return tf.ensure_shape(tf.numpy_function(lambda a: a, [y_pred], tf.float32), [1, 2])


_counter = keras.metrics.MeanSquaredError()


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (_into_python, "calls Python"),
        (lambda y, y_pred: _counter(tf.one_hot(y, 2), y_pred), "raw statistics"),
    ],
    ids=["host", "metric in a function"],
)
def test_metric_that_keeps_books_of_its_own_is_refused_in_the_step(fn, message):
    found = [PrivateMean(fn=fn, noise_multiplier=1.0)]
    model = toy.private(None, toy.dp(private_metrics=found, engine="vectorized"))
    with pytest.raises(NotPrivateError, match=message):
        toy.fit_step(model)


def test_methods_of_metrics_are_refused_by_name():
    with pytest.raises(TypeError, match="without state"):
        PrivateMean(fn=keras.metrics.MeanSquaredError().update_state, noise_multiplier=1.0)


@pytest.mark.parametrize("name", conforming.DP_QUERIES)
def test_every_query_has_its_metrics_charged_or_refuses_them(name):
    """Every mechanism: the event holds each metric, at its own noise, and has a price with them."""
    query, _ = conforming.DP_QUERIES[name](1.5, conforming.PART_A, conforming.PART_B)
    found = DPOptimizer(keras.optimizers.SGD(0.1), query, private_metrics=metrics(7.0))
    alone = DPOptimizer(keras.optimizers.SGD(0.1), query)
    for one in (found, alone):
        # Noise that remembers supposes an order of the data.
        one.sampling = tfdp.sampling.FixedOrder(2, 6)
    parts = leaves(found.next_event().event)
    for bound in (1.0, 3.0):
        kinds = [
            part
            for part in parts
            if getattr(part, "l2_norm_bound", 0) == bound
            and part.noise_multiplier == pytest.approx(7.0)
        ]
        assert len(kinds) == 1, parts
    with_metrics, without = (_spent(one.next_event()) for one in (found, alone))
    assert with_metrics > without


def leaves(event):
    if isinstance(event, tfdp.ComposedEvent):
        return sum(map(leaves, event.events), [])
    return [event]


def _spent(event):
    accountant = tfdp.accounting.RDPAccountant()
    accountant.compose(event)
    return accountant.get_epsilon(1e-5)
