"""Fits in which thousands of canaries are audited at once, and what their ledgers claim.

The model is linear, so that gradients do not depend on weights, and canary j has weights of its own
in both variables: its gradient is (6, 8) there, or the opposite, and (0.6, 0.8) once it is clipped.
Even canaries are in the data set. Odd ones are not: absent, a zero, or the opposite, whatever the
neighbouring relation says. So each weight's way is a trial of the whole mechanism, and every step
of `fit` makes as many trials as there are canaries.
"""

import contextlib
import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfdp
from tfdp.accounting import PLDAccountant, PRVAccountant, RDPAccountant
from tfdp.audit import epsilon_lower_bound, mu_lower_bound

# Of all audits of a test run together, one in 10^5 or less is wrong.
CONFIDENCE = 1 - 1e-7
# An epsilon at a large delta is about events that 10^4 trials show.
DELTA = 0.1
OUT = {"absent": None, "zero": 0.0, "opposite": -1.0}


class Released(keras.callbacks.Callback):
    """Records what every step adds to the weights, along the canaries' gradients."""

    def on_train_begin(self, logs=None):
        self.positions = [self._position()]

    def on_train_batch_end(self, batch, logs=None):
        self.positions.append(self._position())

    def _position(self):
        # Of several replicas, which are equal, the first.
        left, right = (
            np.float64(getattr(v.value, "values", [v.value])[0].numpy())[:, 0]
            for v in self.model.trainable_variables
        )
        return 0.6 * left + 0.8 * right


@dataclasses.dataclass(frozen=True)
class Run:
    """A private fit, epoch by epoch: each epoch of a canary is a trial.

    Attributes:
        sampling: The policy.
        out: What the odd canaries are.
        stddev: Noise on the sum, where the clip norm is 1.
        batch_size: As a part of the population; None leaves it out.
        steps: In an epoch.
        epochs: How many.
        canaries: In and out together.
        optimizer: Further arguments of the optimizer.
        make_query: From (clip norm, noise, denominator).
        as_dataset: Whether to give `fit` a data set of full batches.
    """

    sampling: Any
    out: str
    stddev: float
    batch_size: float | None = None
    steps: int = 1
    epochs: int = 10
    canaries: int = 10_000
    optimizer: dict[str, Any] = dataclasses.field(default_factory=dict)
    make_query: Callable[..., Any] = lambda clip, stddev, denominator: tfdp.GaussianAverageQuery(
        clip, stddev=stddev, denominator=denominator
    )
    as_dataset: bool = False

    def records(self):
        """Returns (canary of every record, its sign)."""
        signs = np.ones(self.canaries, "float32")
        if OUT[self.out] is None:
            return np.arange(self.canaries)[::2], signs[::2]
        signs[1::2] = OUT[self.out]
        return np.arange(self.canaries), signs

    def fit(self, records=None, strategy=None, **more):
        """Returns (released sums [epochs, steps, canaries], ledger); `more` goes to Keras' fit."""
        canary, sign = self.records() if records is None else records
        denominator = len(canary)
        query = self.make_query(1.0, self.stddev, denominator)
        with contextlib.nullcontext() if strategy is None else strategy.scope():
            model = linear_model(self.canaries, query, **self.optimizer)
        released = Released()
        arguments = {"sampling": self.sampling, "callbacks": [released], "verbose": 0, **more}
        if self.batch_size is not None:
            arguments["batch_size"] = round(self.batch_size * denominator)
        data = (canary, sign[:, None])
        if self.as_dataset:
            data = (tf.data.Dataset.from_tensor_slices(data).batch(denominator).repeat(),)
        model.fit(*data, steps_per_epoch=self.steps, epochs=self.epochs, **arguments)
        sums = -denominator * np.diff(released.positions, axis=0)
        return sums.reshape(self.epochs, self.steps, self.canaries), model.ledger

    def trials(self, strategy=None):
        """Returns (released sums of trials with the canary [trials, steps], without, ledger)."""
        sums, ledger = self.fit(strategy=strategy)
        sums = np.moveaxis(sums, 1, 2)
        with_canary, without = (sums[:, i::2].reshape(-1, self.steps) for i in (0, 1))
        return with_canary, without, ledger


def linear_model(canaries, query, **optimizer):
    inputs = keras.Input((), dtype="int32")
    left, right = (keras.layers.Embedding(canaries, 1)(inputs) for _ in range(2))
    model = tfdp.keras.make_private(keras.Model(inputs, 6.0 * left + 8.0 * right))
    optimizer = tfdp.keras.DPOptimizer(keras.optimizers.SGD(1.0), query, **optimizer)
    model.compile(optimizer, loss=lambda y_true, y_pred: keras.ops.mean(y_true * y_pred, -1))
    return model


# How likely a trial's sums are with the canary, against without: the best score there is.


def always(sums, stddev, shift=1.0):
    """The canary is in every step, and moves it by `shift`."""
    return np.sum(sums, axis=1) * shift / stddev**2


def _log_ratio(sums, stddev):
    """Log of the densities' ratio of N(1, stddev^2) and N(0, stddev^2)."""
    return (sums - 0.5) / stddev**2


def sampled(probability, out):
    """The canary is in every step with this probability."""

    def log_likelihood(sums, stddev):
        moved = probability * np.exp(_log_ratio(sums, stddev))
        return np.sum(np.log(1 - probability + moved), axis=1)

    return _against(log_likelihood, out)


def once(out):
    """The canary is in one step of those of a trial, nobody knows which."""

    def log_likelihood(sums, stddev):
        return np.log(np.mean(np.exp(_log_ratio(sums, stddev)), axis=1))

    return _against(log_likelihood, out)


def _against(log_likelihood, out):
    if out != "opposite":
        return log_likelihood
    return lambda sums, stddev: log_likelihood(sums, stddev) - log_likelihood(-sums, stddev)


# What the ledger claims.


def events_of(ledger, steps):
    """Returns the first so many events."""
    events = (entry.event for entry in ledger for _ in range(entry.count))
    return list(itertools.islice(events, steps))


def bracket(events, delta=DELTA):
    """Returns the bounds of epsilon from PRV, checked against those of other accountants."""

    def compose(accountant):
        for event in events:
            accountant.compose(event)
        return accountant

    interval = compose(PRVAccountant()).get_epsilon_interval(delta)
    assert interval.lower <= interval.estimate <= interval.upper
    assert interval.lower <= compose(PLDAccountant()).get_epsilon(delta)
    assert interval.upper <= compose(RDPAccountant()).get_epsilon(delta) * (1 + 1e-6)
    return interval


def shown(with_canary, without, score, stddev):
    """Returns the epsilon that the trials prove, at DELTA."""
    scores = (score(sums, stddev) for sums in (with_canary, without))
    return epsilon_lower_bound(*scores, DELTA, CONFIDENCE)


def mu_shown(with_canary, without):
    """Returns the mu that the trials prove."""
    return mu_lower_bound(with_canary.sum(axis=1), without.sum(axis=1), CONFIDENCE)
