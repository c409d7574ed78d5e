"""Traps about what records have in common: random streams, and state that a step leaves behind.

`tests/traps/list_test.py` has the list of all traps.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tests.keras import toy

L = keras.layers
ENGINES = ["bookkeeping", "vectorized", "loop"]
N = 400


def sum_of(y, engine):
    """Returns what one step adds up, of a model that starts with all its seeds as they are saved.

    The gradient of a record is y, or zero where dropout takes the only number away that it holds.
    """
    x = np.ones([len(y), 1], "float32")
    model = keras.Sequential(
        [keras.Input((1,)), L.Dropout(0.5, seed=7), L.Dense(N, use_bias=False)]
    )
    optimizer = tfdp.keras.DPOptimizer(
        keras.optimizers.SGD(1.0),
        tfdp.GaussianAverageQuery(100.0, stddev=0.0, denominator=1),
        engine=engine,
    )
    private = toy.private(model, optimizer, lambda y, p: -tf.reduce_sum(y * p) / 2)
    before = private.trainable_variables[0].numpy()
    private.train_on_batch(x, y)
    return (private.trainable_variables[0].numpy() - before)[0]


@pytest.mark.parametrize("engine", ENGINES)
def test_dropout_follows_the_row(engine):
    # Whoever knows the seed, which is saved with the model, knows which rows are kept.
    kept = sum_of(np.eye(N, dtype="float32"), engine) > 0.5
    y = np.zeros([N, N], "float32")
    y[:, 0] = np.where(kept, 1.0, -1.0)
    # The sum of y over the rows that are kept has the mean sum(y) / 2 and a standard deviation of
    # N^(1/2) / 2 = 10. Where they are the rows that were kept before it is about 200, and 0 again
    # with one record more in front, which shifts all of them.
    assert abs(sum_of(y, engine)[0] - y[:, 0].sum() / 2) < 6.2 * 10


def left_by(holder):
    """Returns a model whose loss shows what a step before left behind."""
    state = tf.Variable(0.0)

    class Keeps(L.Layer):
        def call(self, inputs):
            scale = 1.0 + tf.identity(state)
            state.assign_add(tf.reduce_sum(inputs))
            return inputs * scale

    class Loss(keras.losses.Loss):
        def __init__(self):
            super().__init__()
            self.state = keras.Variable(0.0) if holder == "keras.Variable of a loss" else state

        def call(self, y, p):
            scale = 1.0 + tf.convert_to_tensor(self.state)
            self.state.assign_add(tf.reduce_sum(y))
            return scale * tf.reduce_sum(p)

    class UsesMetric(tfdp.keras.DPSequential):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.seen = keras.metrics.Sum(name="seen")

        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, **kwargs):
            scale = 1.0 + self.seen.result()
            self.seen.update_state(y)
            return scale * tf.reduce_sum(y_pred)

    kept = [Keeps()] if holder == "tf.Variable of a layer" else []
    cls = UsesMetric if holder == "metric in compute_loss" else tfdp.keras.DPSequential
    loss = Loss() if "of a loss" in holder else lambda y, p: tf.reduce_sum(p)
    return cls([keras.Input((1,)), *kept, L.Dense(1, use_bias=False)]), loss


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("run_eagerly", [False, True])
@pytest.mark.parametrize(
    "holder",
    [
        "tf.Variable of a layer",
        "tf.Variable of a loss",
        "keras.Variable of a loss",
        "metric in compute_loss",
    ],
)
def test_state_that_a_step_leaves(holder, run_eagerly, engine):
    x, y = np.ones([4, 1], "float32"), np.full([4, 1], 100.0, "float32")
    model, loss = left_by(holder)
    optimizer = tfdp.keras.DPOptimizer(
        keras.optimizers.SGD(1.0),
        tfdp.GaussianAverageQuery(1e6, stddev=0.0, denominator=1),
        engine=engine,
    )
    model.compile(optimizer, loss=loss, run_eagerly=run_eagerly)
    if holder != "metric in compute_loss":
        with pytest.raises(tfdp.keras.NotPrivateError, match="[Ff]orward pass"):
            model.train_on_batch(x, y)
        return
    # Metrics of a model are for its logs; what they add up is not seen by any record.
    before = model.trainable_variables[0].numpy()
    model.fit(x, y, steps_per_epoch=3, sampling=tfdp.sampling.FullBatch(), verbose=0)
    total = float(np.squeeze(before - model.trainable_variables[0].numpy()))
    assert total == pytest.approx(3 * 4.0, rel=1e-5)
    assert model.seen.result() == 3 * 400.0
