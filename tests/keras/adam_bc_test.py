"""Adam without the noise's variance, against the paper's algorithm written out in NumPy."""

import keras
import numpy as np
import pytest
import toy

import tfdp
from tfdp.keras import AdamBC, DPOptimizer

NOISE = tfdp.GaussianAverageQuery(2.0, noise_multiplier=1.5, denominator=10)


def _steps(gradients, noise_stddev, floor, rate=0.1, beta_1=0.9, beta_2=0.99):
    """Yields the parameters after every step of algorithm 1."""
    value, m, v = np.zeros(len(gradients[0])), 0.0, 0.0
    for t, gradient in enumerate(gradients, 1):
        m = beta_1 * m + (1 - beta_1) * gradient
        v = beta_2 * v + (1 - beta_2) * gradient**2
        corrected = np.maximum(v / (1 - beta_2**t) - noise_stddev**2, floor)
        value = value - rate * m / (1 - beta_1**t) / np.sqrt(corrected)
        yield value


def _trained(optimizer, gradients):
    variable = keras.Variable(np.zeros(len(gradients[0]), np.float32))
    for gradient in gradients:
        optimizer.apply([gradient.astype(np.float32)], [variable])
        yield variable.numpy()


@pytest.mark.parametrize(("noise_stddev", "floor"), [(0.0, 1e-8), (0.5, 1e-3), (3.0, 1e-3)])
def test_updates_are_those_of_the_paper(noise_stddev, floor):
    rng = np.random.default_rng(0)
    gradients = rng.normal(size=(20, 5)) * np.array([1e-3, 0.1, 1.0, 3.0, 30.0])
    optimizer = AdamBC(0.1, 0.9, 0.99, noise_stddev=noise_stddev, floor=floor)
    expected = _steps(gradients, noise_stddev, floor)
    for got, wanted in zip(_trained(optimizer, gradients), expected, strict=True):
        # Where the noise is nearly all of the moment, float32 has fewer digits of what is left.
        np.testing.assert_allclose(got, wanted, rtol=2e-3, atol=1e-5)


def test_without_noise_it_is_adam():
    gradients = np.random.default_rng(1).normal(size=(20, 5))
    ours = _trained(AdamBC(0.1, noise_stddev=0.0, floor=1e-14), gradients)
    keras_own = _trained(keras.optimizers.Adam(0.1, epsilon=1e-7), gradients)
    for got, wanted in zip(ours, keras_own, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


def test_noise_no_longer_shortens_the_steps():
    # Gradients of 1 in noise of 3: Adam moves by about 1 / sqrt(1 + 9) of its learning rate.
    gradients = 1 + 3 * np.random.default_rng(2).normal(size=(600, 500))

    def pace(optimizer):
        values = list(_trained(optimizer, gradients))
        return float(np.mean(values[300] - values[-1])) / 299 / 0.1

    biased, corrected = (
        pace(keras.optimizers.Adam(0.1)),
        pace(AdamBC(0.1, noise_stddev=3.0, floor=0.25)),
    )
    assert biased == pytest.approx(0.32, abs=0.05)
    assert corrected == pytest.approx(1.0, abs=0.15)


@pytest.mark.parametrize(
    ("query", "stddev"),
    [
        (NOISE, 0.3),
        (tfdp.NormalizedQuery(tfdp.query.AutomaticClippingSumQuery(1.0, 4.0), 8), 0.5),
        (tfdp.GaussianSumQuery(1.0, 4.0), 4.0),
    ],
)
@pytest.mark.filterwarnings("ignore:GaussianSumQuery")
def test_noise_is_that_of_the_query(query, stddev):
    optimizer = DPOptimizer(AdamBC(), query)
    assert optimizer.inner_optimizer.noise_stddev == pytest.approx(stddev)
    assert DPOptimizer(AdamBC(noise_stddev=7.0), query).inner_optimizer.noise_stddev == 7.0


def test_noise_that_is_not_one_number_is_to_be_given():
    adaptive = tfdp.QuantileAdaptiveClipSumQuery(1.0, 1.0, 0.5, 0.2, 1.0, 10.0)
    query = tfdp.NormalizedQuery(adaptive, 10)
    with pytest.raises(ValueError, match="noise_stddev"):
        DPOptimizer(AdamBC(), query)
    assert DPOptimizer(AdamBC(noise_stddev=0.1), query).inner_optimizer.noise_stddev == 0.1
    with pytest.raises(ValueError, match="does not know the noise"):
        AdamBC().build([keras.Variable(0.0)])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"floor": 0.0}, ValueError, "floor must be finite, greater than 0"),
        ({"noise_stddev": -1.0}, ValueError, "noise_stddev must be finite, at least 0"),
        ({"noise_stddev": "1"}, TypeError, "noise_stddev must be a real number"),
        ({"beta_2": 1.5}, ValueError, "beta_2 must be finite, at least 0 and at most 1"),
        ({"epsilon": 1e-7}, ValueError, "not recognized.*epsilon"),
    ],
)
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        AdamBC(**arguments)


def test_trains_saves_and_goes_on(tmp_path):
    model = tfdp.keras.make_private(toy.linear())
    model.compile(DPOptimizer(AdamBC(0.1), NOISE), toy.LOGITS_LOSS, jit_compile=True)
    model.fit(toy.X, toy.Y, batch_size=4, verbose=0)
    config = model.optimizer.get_config()
    again = DPOptimizer.from_config(config)
    assert again.inner_optimizer.get_config() == model.optimizer.inner_optimizer.get_config()
    model.optimizer.inner_optimizer.save_own_variables(stored := {})
    assert any(np.any(np.asarray(value)) for value in stored.values())
