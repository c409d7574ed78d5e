"""Allocation of noise between variables: one price, whatever the allocation."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from tfdp.noise import SeededRandomSource
from tfdp.query import (
    clips_from_public_gradients,
    dimension_adjusted_noise,
    per_layer,
    proportional_noise,
)

VARIABLES = [tf.zeros([3, 4]), tf.zeros([4]), tf.zeros([])]  # 12, 4 and 1 coordinates.
SIZES = [12, 4, 1]

STRATEGIES = pytest.mark.parametrize(
    "strategy", [per_layer, proportional_noise, dimension_adjusted_noise]
)


def _events(query):
    return query.derive_event(query.initial_global_state()).events


def _numbers(query):
    events = _events(query)
    return [e.l2_norm_bound for e in events], [e.noise_stddev for e in events]


def _noise_multiplier(clips, stddevs):
    """McMahan et al. 2018, section 3: z = (sum_g (S_g / sigma_g)^2)^(-1/2)."""
    return sum((s / sigma) ** 2 for s, sigma in zip(clips, stddevs, strict=True)) ** -0.5


_positive = st.floats(-6, 6).map(lambda x: 10**x)


@STRATEGIES
@given(st.lists(st.tuples(st.integers(1, 10**6), _positive), min_size=1, max_size=8), _positive)
def test_all_together_have_the_noise_multiplier_asked_for(strategy, variables, multiplier):
    shapes = [tf.TensorSpec([size]) for size, _ in variables]
    clips = [clip for _, clip in variables]
    found, stddevs = _numbers(strategy(shapes, clips, multiplier, 4.0))
    assert found == clips
    assert _noise_multiplier(clips, stddevs) == pytest.approx(multiplier, rel=1e-12)


@STRATEGIES
@pytest.mark.parametrize("split", [None, "uniform", "dimension"])
def test_splits_of_one_clip(strategy, split):
    clips, stddevs = _numbers(strategy(VARIABLES, 6.0, 1.5, 4.0, split=split))
    assert clips == _numbers(per_layer(VARIABLES, 6.0, 1.5, 4.0, split=split))[0]
    assert math.hypot(*clips) == pytest.approx(6.0)
    assert _noise_multiplier(clips, stddevs) == pytest.approx(1.5, rel=1e-12)


def test_proportional_noise_by_hand():
    # 2 * sqrt(3) * S_g.
    clips, stddevs = _numbers(proportional_noise(VARIABLES, [3.0, 1.0, 0.5], 2.0, 4.0))
    assert clips == [3.0, 1.0, 0.5]
    np.testing.assert_allclose(stddevs, [2 * math.sqrt(3) * s for s in clips], rtol=1e-14)


def test_dimension_adjusted_noise_by_hand():
    # 2 * sqrt(17 / d_g) * S_g: over all coordinates 2 * sqrt(17) times the clip, for each.
    clips, stddevs = _numbers(dimension_adjusted_noise(VARIABLES, [3.0, 1.0, 0.5], 2.0, 4.0))
    ratios = [sigma * math.sqrt(d) / s for s, sigma, d in zip(clips, stddevs, SIZES, strict=True)]
    np.testing.assert_allclose(ratios, [2 * math.sqrt(17)] * 3, rtol=1e-14)


def test_strategies_differ():
    # The collapsed noise multiplier alone would not tell them apart.
    arguments = (VARIABLES, [3.0, 1.0, 0.5], 2.0, 4.0)
    found = [
        _numbers(strategy(*arguments))[1]
        for strategy in (per_layer, proportional_noise, dimension_adjusted_noise)
    ]
    for i in range(3):
        assert not np.allclose(found[i], found[i - 1])


@STRATEGIES
def test_one_variable_is_an_ordinary_average(strategy):
    assert _numbers(strategy([tf.zeros([7])], 2.0, 1.5, 4.0)) == ([2.0], [3.0])


def test_noise_that_is_drawn_is_the_noise_of_the_event(check_stddev):
    variables = [tf.zeros([1200]), tf.zeros([30, 20])]
    query = dimension_adjusted_noise(variables, [3.0, 4.0], 2.0, denominator=10.0)
    empty = query.initial_sample_state(variables)
    result, _, event = query.get_noised_result(empty, query.initial_global_state())
    for noise, part in zip(result, event.events, strict=True):
        check_stddev(noise, part.noise_stddev / 10.0)


def test_takes_a_model():
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(2), keras.layers.Dense(1)])
    for group_by, groups in [("layer", 2), ("variable", 4)]:
        clips, _ = _numbers(proportional_noise(model, 2.0, 1.0, 4.0, group_by=group_by))
        np.testing.assert_allclose(clips, [2.0 / math.sqrt(groups)] * groups)


@STRATEGIES
def test_no_noise_is_no_noise(strategy):
    assert _numbers(strategy(VARIABLES, 1.0, 0.0, 4.0))[1] == [0.0] * 3


@STRATEGIES
def test_random_source_reaches_every_variable(strategy):
    query = strategy(VARIABLES, 1.0, 1.0, 4.0, random_source=SeededRandomSource(0))
    assert all(event.seeded for event in _events(query))


@STRATEGIES
def test_refuses_a_model_that_is_not_built(strategy):
    with pytest.raises(ValueError, match="Build it first"):
        strategy(keras.Sequential([keras.layers.Dense(2)]), 1.0, 1.0, 4.0)


def test_refuses_an_empty_variable():
    with pytest.raises(ValueError, match=r"must have coordinates.*\[0, 2\]"):
        dimension_adjusted_noise([tf.zeros([0, 3]), tf.zeros([2])], 1.0, 1.0, 4.0)


@pytest.mark.parametrize("strategy", [proportional_noise, dimension_adjusted_noise])
@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_refuses_bad_noise(strategy, value):
    with pytest.raises(ValueError, match="noise_multiplier must be"):
        strategy(VARIABLES, 1.0, value, 4.0)


def test_public_clips_are_quantiles_of_norms():
    # Norms 5, 1, 2 and 1, 1, 5; the median and the largest of each.
    gradients = [
        np.array([[3.0, 4.0], [0.0, 1.0], [0.0, 2.0]]).reshape(3, 2, 1),
        tf.constant([1.0, -1.0, 5.0]),
    ]
    assert clips_from_public_gradients(gradients) == [2.0, 1.0]
    assert clips_from_public_gradients(gradients, quantile=1.0) == [5.0, 5.0]
    assert clips_from_public_gradients(gradients, 0.75) == [3.5, 3.0]


def test_public_records_that_are_not_finite_are_left_out():
    gradients = [np.array([[3.0, 4.0], [np.nan, 1.0], [np.inf, 2.0]])]
    assert clips_from_public_gradients(gradients) == [5.0]


@pytest.mark.parametrize(
    ("gradients", "message"),
    [
        ([], "same records"),
        ([np.zeros([0, 2])], "same records"),
        ([np.ones([3, 2]), np.ones([2, 2])], "same records"),
        ([np.array(1.0)], "same records"),
        ([np.ones([3, 2]), np.zeros([3, 2])], "variable 1 are zero"),
        ([np.full([3, 2], np.nan)], "variable 0 are zero or not finite"),
    ],
    ids=["none", "no records", "other records", "scalar", "zeros", "nan"],
)
def test_public_gradients_that_suggest_nothing(gradients, message):
    with pytest.raises(ValueError, match=message):
        clips_from_public_gradients(gradients)


@pytest.mark.parametrize("quantile", [0.0, -0.1, 1.1, math.nan])
def test_refuses_a_bad_quantile(quantile):
    with pytest.raises(ValueError, match="quantile must be"):
        clips_from_public_gradients([np.ones([3, 2])], quantile)
