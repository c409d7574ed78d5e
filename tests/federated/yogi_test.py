"""Yogi against the formulas of the paper."""

import keras
import numpy as np
import pytest

from tfdp.federated import Yogi


@pytest.mark.parametrize("scale", [1.0, 1e-3])
def test_steps_are_those_of_the_paper(scale):
    start = np.array([0.5, -1.0, 2.0], "float32")
    variable = keras.Variable(start)
    optimizer = Yogi(0.1, beta_1=0.8, beta_2=0.9, epsilon=1e-2)
    gradients = scale * np.random.default_rng(0).normal(size=[6, 3]).astype("float32")
    gradients[3:] *= 0.01  # So that the second moment shrinks, too.
    weights, m, v = np.float64(start), np.zeros(3), np.full(3, 1e-4)
    grew = []
    for gradient in gradients:
        optimizer.apply([gradient], [variable])
        m = 0.8 * m + 0.2 * gradient
        new = v - 0.1 * gradient**2 * np.sign(v - gradient**2)
        grew.append(np.sign(new - v))
        v = new
        weights = weights - 0.1 * m / (np.sqrt(v) + 1e-2)
        np.testing.assert_allclose(variable.numpy(), weights, rtol=1e-5, atol=1e-6)
    assert {-1.0, 1.0} <= set(np.unique(grew)) or scale < 1


def test_configuration_makes_the_same_optimizer():
    optimizer = Yogi(0.2, beta_1=0.7, beta_2=0.95, epsilon=0.01, initial_accumulator_value=0.3)
    again = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert isinstance(again, Yogi)
    assert again.get_config() == optimizer.get_config()


@pytest.mark.parametrize(
    "arguments",
    [{"beta_1": 1.0}, {"beta_2": -0.1}, {"epsilon": 0.0}, {"initial_accumulator_value": -1.0}],
    ids=str,
)
def test_numbers_out_of_range_are_refused(arguments):
    with pytest.raises(ValueError, match="must be"):
        Yogi(**arguments)
