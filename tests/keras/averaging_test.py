"""Averages of weights that optimizers of Keras keep are post-processing, and need no ledger."""

import keras
import numpy as np
import pytest
import toy

import tfdp
from tfdp.factorizations import banded_square_root
from tfdp.query import CorrelatedGaussianSumQuery
from tfdp.sampling import FixedOrder, FullBatch

MOMENTUM = 0.8


def optimizer(query=None, **kwargs):
    inner = keras.optimizers.SGD(0.5, momentum=0.9, use_ema=True, ema_momentum=MOMENTUM, **kwargs)
    return tfdp.keras.DPOptimizer(inner, toy.query(1.0) if query is None else query)


def private(query=None, **kwargs):
    return toy.private(toy.linear(), optimizer(query, **kwargs))


def fit(model, epochs, callbacks=(), sampling=None, **kwargs):
    """Trains, and returns the weights after each step."""
    seen = []
    note = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(toy.weights(model)[0])
    )
    model.fit(
        toy.X,
        toy.Y,
        epochs=epochs,
        verbose=0,
        sampling=FullBatch() if sampling is None else sampling,
        callbacks=[note, *callbacks],
        **kwargs,
    )
    return seen


def average(weights):
    """Returns a_1 = w_1, a_t = m a_(t-1) + (1 - m) w_t."""
    found = weights[0]
    for each in weights[1:]:
        found = MOMENTUM * found + (1 - MOMENTUM) * each
    return found


def correlated(model):
    query = CorrelatedGaussianSumQuery(
        1.0, 1.0, banded_square_root(3), 12, 4, model.trainable_variables
    )
    return tfdp.NormalizedQuery(query, 3)


@pytest.mark.parametrize("noise", ["independent", "correlated"])
def test_fit_ends_with_the_average_of_its_noised_steps(noise):
    model = toy.linear()
    remembers = noise == "correlated"
    model = toy.private(model, optimizer(correlated(model) if remembers else None))
    kwargs = {"sampling": FixedOrder(), "batch_size": 3} if remembers else {}
    seen = fit(model, 2, **kwargs)
    assert len(seen) == model.ledger.total_count > 1
    np.testing.assert_allclose(toy.weights(model)[0], average(seen), rtol=1e-5, atol=1e-6)
    fit(model, 1, **kwargs)  # Averages are no change that a ledger would have to know of.


@pytest.mark.parametrize(("frequency", "is_average"), [(2, True), (3, False), (None, False)])
def test_average_takes_the_place_of_the_weights_as_often_as_is_said(frequency, is_average):
    model = private(ema_overwrite_frequency=frequency)
    kept = []
    note = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: kept.append(
            [v.numpy() for v in model.optimizer.inner_optimizer.variables if v.shape == (4, 2)]
        )
    )
    seen = fit(model, 2, [note])
    assert any(np.array_equal(seen[1], each) for each in kept[1]) == is_average
    fit(model, 1)


@pytest.mark.parametrize("how", ["evaluate", "predict", "validation", "epochs"])
def test_swapped_weights_are_those_of_the_ledger(how, tmp_path):
    model = private()
    swap = keras.callbacks.SwapEMAWeights(swap_on_epoch=how == "epochs")
    path = str(tmp_path / "average.weights.h5")
    fit(model, 2)
    for _ in range(3):  # Each swap rounds anew.
        if how == "validation":
            fit(model, 1, [swap], validation_data=(toy.X + 1, toy.Y))
        elif how == "epochs":
            fit(model, 2, [swap, keras.callbacks.ModelCheckpoint(path, save_weights_only=True)])
        else:
            arguments = (toy.X, toy.Y) if how == "evaluate" else (toy.X,)
            fit(model, 1)
            model.optimizer.inner_optimizer.variables[-1].assign_add(np.full((4, 2), 1e-3))
            tfdp.keras.declare_weights(model, "post_processed")
            getattr(model, how)(*arguments, verbose=0, callbacks=[swap])
    fit(model, 1)
    if how == "epochs":
        other = private()
        other.load_weights(path)
        assert other.ledger.total_count == 8


@keras.saving.register_keras_serializable("tests")
class KeepsMeans(keras.layers.Layer):
    """Leaves the mean of a batch in a weight where training is false."""

    def __init__(self, trainable_weight=False):
        super().__init__()
        self._trainable_weight = trainable_weight

    def build(self, shape):
        self.mean = self.add_weight(shape=shape[1:], trainable=self._trainable_weight)

    def call(self, x, training=None):
        if not training:
            self.mean.assign(keras.ops.mean(x, axis=0))
        return x - self.mean


@pytest.mark.parametrize("trainable_weight", [False, True])
@pytest.mark.parametrize("run_eagerly", [False, True])
@pytest.mark.parametrize("how", ["validation", "evaluate", "predict"])
def test_weights_that_an_evaluation_changes_in_fit_are_refused(how, run_eagerly, trainable_weight):
    layers = [KeepsMeans(trainable_weight), keras.layers.Dense(2)]
    model = toy.private(
        keras.Sequential([keras.Input((4,)), *layers]),
        toy.dp(stddev=1.0, engine="loop"),
        run_eagerly=run_eagerly,
    )

    def use():
        if how == "evaluate":
            model.evaluate(toy.X, toy.Y, verbose=0)
        elif how == "predict":
            model.predict(toy.X, verbose=0)

    after = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: use())
    data = (toy.X, toy.Y) if how == "validation" else None
    with pytest.raises(
        tfdp.keras.NotPrivateError, match="changed weights while fit trains: .*keeps"
    ):
        toy.fit_step(model, validation_data=data, callbacks=[after])
    for again in (lambda: toy.fit_step(model), lambda: model.save("model.keras")):
        with pytest.raises(tfdp.keras.LedgerMismatchError, match="keeps_means"):
            again()
    assert model.ledger.total_count == 1


def test_other_changes_during_an_evaluation_are_refused():
    model = private()
    fit(model, 1)
    change = keras.callbacks.LambdaCallback(
        on_test_begin=lambda logs: model.trainable_variables[0].assign_add(np.ones((4, 2)))
    )
    model.evaluate(toy.X, toy.Y, verbose=0, callbacks=[change])
    with pytest.raises(tfdp.keras.LedgerMismatchError, match="something else has changed"):
        fit(model, 1)


def test_run_that_is_resumed_goes_on_with_its_average(tmp_path):
    exact = tfdp.GaussianAverageQuery(1.0, stddev=0.0, denominator=12)
    model, other = private(exact), private(exact)
    path = tmp_path / "run.weights.h5"
    fit(model, 3)
    model.save_weights(path)
    other.load_weights(path)
    for one in (model, other):
        fit(one, 2)
    np.testing.assert_array_equal(toy.weights(model)[0], toy.weights(other)[0])
    assert other.ledger.total_count == model.ledger.total_count == 5
