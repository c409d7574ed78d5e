"""The server's optimizers against a loop of algorithm 2 of Reddi et al. 2021, arXiv:2003.00295."""

import math

import keras
import numpy as np
import pytest

from tests.federated import rounds as making
from tfdp.federated import FedAdagrad, FedAdam, FedYogi, Server
from tfdp.sampling import FullBatch

RATE, BETA_1, BETA_2, TAU = 0.1, 0.8, 0.9, 1e-2
SECOND_MOMENTS = {
    "adagrad": lambda v, square: v + square,
    "adam": lambda v, square: BETA_2 * v + (1 - BETA_2) * square,
    "yogi": lambda v, square: v - (1 - BETA_2) * square * np.sign(v - square),
}
MAKE = {
    "adagrad": lambda: FedAdagrad(RATE, beta_1=BETA_1, epsilon=TAU),
    "adam": lambda: FedAdam(RATE, beta_1=BETA_1, beta_2=BETA_2, epsilon=TAU),
    "yogi": lambda: FedYogi(RATE, beta_1=BETA_1, beta_2=BETA_2, epsilon=TAU),
}
each = pytest.mark.parametrize("kind", MAKE)


class Paper:
    """Algorithm 2, with v_{-1} = tau^2: x += eta m / (sqrt(v) + tau)."""

    def __init__(self, kind, start):
        self._second_moment = SECOND_MOMENTS[kind]
        self.x = [np.float64(part) for part in start]
        self._m = [np.zeros_like(part) for part in self.x]
        self._v = [np.full_like(part, TAU**2) for part in self.x]

    def add(self, change):
        """Takes the average of what clients added to the weights."""
        for i, delta in enumerate(change):
            self._m[i] = BETA_1 * self._m[i] + (1 - BETA_1) * delta
            self._v[i] = self._second_moment(self._v[i], np.square(delta))
            self.x[i] = self.x[i] + RATE * self._m[i] / (np.sqrt(self._v[i]) + TAU)


@each
def test_rounds_are_the_loop_of_the_paper(kind):
    """Updates shrink, so that the second moment of Yogi and Adam does, too."""
    model = making.model(stddev=0.0, inner=MAKE[kind]())
    paper = Paper(kind, making.weights(model))
    scales = (1.4, 1.2, 0.1, 0.05)

    def answer(current):
        scale = scales[current.number - 1]
        for i, client in enumerate(making.NAMES[:5]):  # The sixth stays away.
            current.receive(client, making.update(10 * current.number + i, scale))

    Server(model, making.NAMES, sampling=FullBatch()).train(answer, len(scales))
    for number, scale in enumerate(scales, 1):
        updates = [making.update(10 * number + i, scale) for i in range(5)]
        paper.add([np.sum(np.float64(parts), axis=0) / 6 for parts in zip(*updates, strict=True)])
    making.assert_weights(model, paper.x, 2e-5)


@each
@pytest.mark.parametrize("scale", [1.0, 1e-3])
def test_steps_are_those_of_the_paper(kind, scale):
    start = np.array([0.5, -1.0, 2.0], "float32")
    variable, paper, optimizer = keras.Variable(start), Paper(kind, [start]), MAKE[kind]()
    gradients = scale * np.random.default_rng(0).normal(size=[6, 3]).astype("float32")
    gradients[3:] *= 0.01
    for gradient in gradients:
        optimizer.apply([gradient], [variable])
        paper.add([-np.float64(gradient)])
        np.testing.assert_allclose(variable.numpy(), paper.x[0], rtol=1e-5, atol=1e-6)


def test_adam_of_keras_is_the_paper_but_for_the_first_steps():
    """v begins at 0, and the rate is multiplied by sqrt(1 - beta_2^t) / (1 - beta_1^t)."""
    start = np.array([0.5, -1.0, 2.0])
    variable = keras.Variable(np.float32(start))
    optimizer = keras.optimizers.Adam(RATE, beta_1=BETA_1, beta_2=BETA_2, epsilon=TAU)
    m, v, x = np.zeros(3), np.zeros(3), start
    rng = np.random.default_rng(1)
    for t in range(1, 6):
        delta = rng.normal(size=3)
        optimizer.apply([np.float32(-delta)], [variable])
        m = BETA_1 * m + (1 - BETA_1) * delta
        v = BETA_2 * v + (1 - BETA_2) * delta**2
        factor = np.sqrt(1 - BETA_2**t) / (1 - BETA_1**t)
        x = x + factor * RATE * m / (np.sqrt(v) + TAU)
        np.testing.assert_allclose(variable.numpy(), x, rtol=1e-5)


@pytest.mark.parametrize(
    "optimizer",
    [
        FedAdagrad(0.2, beta_1=0.3, epsilon=0.01, initial_accumulator_value=0.3),
        FedAdam(0.2, beta_1=0.7, beta_2=0.95, epsilon=0.01, initial_accumulator_value=0.3),
        FedYogi(0.2, beta_1=0.7, beta_2=0.95, epsilon=0.01, initial_accumulator_value=0.3),
    ],
    ids=lambda optimizer: type(optimizer).__name__,
)
def test_configuration_makes_the_same_optimizer(optimizer):
    again = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert type(again) is type(optimizer)
    assert again.get_config() == optimizer.get_config()


@pytest.mark.parametrize("make", [FedAdagrad, FedAdam, FedYogi])
@pytest.mark.parametrize(
    "arguments",
    [
        {"beta_1": 1.0},
        {"beta_1": math.nan},
        {"beta_2": -0.1},
        {"epsilon": 0.0},
        {"initial_accumulator_value": -1.0},
    ],
    ids=str,
)
def test_numbers_out_of_range_are_refused(make, arguments):
    expected = TypeError, ValueError
    with pytest.raises(expected, match="must be|Argument"):
        make(**arguments)


@each
def test_a_decay_of_one_is_told_from_what_is_below(kind):
    make = {"adagrad": FedAdagrad, "adam": FedAdam, "yogi": FedYogi}[kind]
    with pytest.raises(ValueError, match="at least 0 and below 1. Received: beta_1=1.0."):
        make(beta_1=1.0)
    assert make(beta_1=0.999).beta_1 == 0.999
