"""What a step releases beside gradients costs as much as its ledger claims: metrics, statistics."""

import keras
import numpy as np
import pytest

import tfdp
from tfdp.accounting import PRVAccountant
from tfdp.accounting.analytic_gaussian import gaussian_epsilon
from tfdp.audit import epsilon_lower_bound
from tfdp.sampling import FullBatch

L = keras.layers
# 200 draws that nothing hides prove epsilon 1.37 at this delta.
TRIALS, CONFIDENCE, DELTA = 200, 1 - 1e-9, 0.05
NOISE = 2.0  # In units of the bound.
OTHERS = 10


def fit(model, optimizer, x, y, callbacks=()):
    """One step an epoch, which moves no weight."""
    model.compile(optimizer, "mse")
    return model.fit(
        x, y, epochs=TRIALS, sampling=FullBatch(), verbose=0, callbacks=list(callbacks)
    ).history


def optimizer(**kwargs):
    # Gradients have so much noise that they cost next to nothing.
    query = tfdp.GaussianAverageQuery(1.0, noise_multiplier=1e4, denominator=OTHERS)
    return tfdp.keras.DPOptimizer(keras.optimizers.SGD(0.0), query, **kwargs)


def metric(with_canary, noise):
    """Returns what is shown as the loss of each step; that of the canary is beyond the bound."""
    plain = keras.Sequential([keras.Input((1,)), L.Dense(1, kernel_initializer="zeros")])
    model = tfdp.keras.make_private(plain)
    found = tfdp.keras.PrivateLoss(noise_multiplier=noise, l2_norm_clip=1.0, denominator=OTHERS)
    y = np.zeros([OTHERS + with_canary, 1], "float32")
    y[OTHERS:] = 1e3
    history = fit(model, optimizer(private_metrics=[found]), np.ones_like(y), y)
    return np.array(history["loss"]), model.ledger


def statistics(with_canary, noise):
    """Returns the noised sum of squares of each step, from the moving statistics after it."""
    layers = [L.BatchNormalization(momentum=0.0, epsilon=1e-6), L.Dense(1)]
    plain = keras.Sequential([keras.Input((1,)), *layers])
    model = tfdp.keras.make_private(plain, batch_norm="private")
    norm, squares = model.layers[0], []

    class Reads(keras.callbacks.Callback):
        """Every step begins with mean 0 and variance 1."""

        def on_epoch_begin(self, epoch, logs=None):
            norm.moving_mean.assign([0.0])
            norm.moving_variance.assign([1.0])

        def on_epoch_end(self, epoch, logs=None):
            mean, variance = float(norm.moving_mean[0]), float(norm.moving_variance[0])
            squares.append(variance + mean**2)

    # Of the others the squares are what the variance says; the canary's are beyond the bound.
    x = np.resize([1.0, -1.0], [OTHERS + with_canary, 1]).astype("float32")
    x[OTHERS:] = 1e3
    fit(model, optimizer(batch_norm_noise_multiplier=noise), x, np.zeros_like(x), [Reads()])
    return np.array(squares), model.ledger


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("release", [metric, statistics])
def test_a_release_beside_gradients_costs_what_is_claimed_and_less_noise_is_found(release):
    def shown(noise):
        (inside, ledger), (outside, _) = (release(with_canary, noise) for with_canary in (1, 0))
        return epsilon_lower_bound(inside, outside, DELTA, CONFIDENCE), next(iter(ledger)).event

    proven, event = shown(NOISE)
    claimed = PRVAccountant().compose(event).get_epsilon(DELTA)
    assert claimed == pytest.approx(gaussian_epsilon(1 / NOISE, DELTA), rel=1e-2)
    assert proven <= claimed < shown(NOISE / 40)[0]
