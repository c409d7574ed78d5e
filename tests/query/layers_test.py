import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdp.noise import SeededRandomSource
from tfdp.query import per_layer

VARIABLES = [tf.zeros([3, 4]), tf.zeros([4]), tf.zeros([])]  # 12, 4 and 1 coordinates.


def _events(query):
    return query.derive_event(query.initial_global_state()).events


def _clips(query):
    return [event.l2_norm_bound for event in _events(query)]


def _noise_multiplier(query):
    return sum((e.l2_norm_bound / e.noise_stddev) ** 2 for e in _events(query)) ** -0.5


def test_uniform_split():
    # 6 / sqrt(3) each: together sqrt(3 * 12) = 6.
    clips = _clips(per_layer(VARIABLES, 6.0, 1.0, 4.0))
    np.testing.assert_allclose(clips, [math.sqrt(12)] * 3)
    assert math.hypot(*clips) == pytest.approx(6.0)


def test_dimension_split():
    # 6 * sqrt(d_g / 17)
    clips = _clips(per_layer(VARIABLES, 6.0, 1.0, 4.0, split="dimension"))
    np.testing.assert_allclose(clips, [6 * math.sqrt(d / 17) for d in (12, 4, 1)])
    assert math.hypot(*clips) == pytest.approx(6.0)


def test_clips_as_given():
    assert _clips(per_layer(VARIABLES, [1.0, 2, 0.5], 1.0, 4.0)) == [1.0, 2.0, 0.5]


@pytest.mark.parametrize("noise_multiplier", [0.3, 1, 2.7])
@pytest.mark.parametrize(
    "clip, split",
    [(6.0, "uniform"), (0.1, "dimension"), ([1.0, 2.0, 0.5], None)],
)
def test_groups_together_have_the_noise_multiplier_asked_for(clip, split, noise_multiplier):
    query = per_layer(VARIABLES, clip, noise_multiplier, 4.0, split=split)
    assert _noise_multiplier(query) == pytest.approx(noise_multiplier, rel=1e-12)
    # The same noise on every coordinate: z * C.
    total = math.hypot(*clip) if isinstance(clip, list) else clip
    stddevs = [event.noise_stddev for event in _events(query)]
    np.testing.assert_allclose(stddevs, noise_multiplier * total, rtol=1e-12)


def test_split_of_clips_that_are_given_is_refused():
    with pytest.raises(ValueError, match="nothing to split"):
        per_layer(VARIABLES, [1.0, 2.0, 0.5], 1.0, 4.0, split="uniform")


def test_clips_every_variable_and_averages():
    # Clips (1, 2), over 2: |(3, 4)| = 5 to 1, -8 to -2.
    query = per_layer([tf.zeros([2]), tf.zeros([])], [1.0, 2.0], 0.0, denominator=2.0)
    state = query.initial_global_state()
    params = query.derive_sample_params(state)
    sample = query.initial_sample_state([tf.zeros([2]), tf.zeros([])])
    sample = query.accumulate_record(params, sample, [tf.constant([3.0, 4.0]), tf.constant(-8.0)])
    result, _, _ = query.get_noised_result(sample, state)
    np.testing.assert_allclose(result[0], [0.3, 0.4], rtol=1e-6)
    np.testing.assert_allclose(result[1], -1.0, rtol=1e-6)


def test_noise_is_the_same_on_every_variable(check_stddev):
    # z * hypot(3, 4) / 10 = 2 * 5 / 10 = 1.
    variables = [tf.zeros([1000]), tf.zeros([50, 20])]
    query = per_layer(variables, [3.0, 4.0], 2.0, denominator=10.0)
    empty = query.initial_sample_state(variables)
    result, _, _ = query.get_noised_result(empty, query.initial_global_state())
    check_stddev(result[0], 1.0)
    check_stddev(result[1], 1.0)


def test_takes_the_trainable_variables_of_a_model():
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(2), keras.layers.Dense(1)])
    model.layers[0].trainable = False
    values = [variable.value for variable in model.trainable_variables]
    for group_by, groups in [("layer", [0, 0]), ("variable", [0, 1])]:
        query = per_layer(model, 2.0, 1.0, 4.0, group_by=group_by)
        assert len(_events(query)) == len(set(groups))
        assert query.norm_groups(values) == groups


def test_random_source_reaches_every_group():
    query = per_layer(VARIABLES, 1.0, 1.0, 4.0, random_source=SeededRandomSource(0))
    assert all(event.seeded for event in _events(query))


def test_refuses_a_model_that_is_not_built():
    with pytest.raises(ValueError, match="Build it first"):
        per_layer(keras.Sequential([keras.layers.Dense(2)]), 1.0, 1.0, 4.0)


@pytest.mark.parametrize("clips", [[], [1.0], [1.0] * 4])
def test_refuses_another_number_of_clips(clips):
    with pytest.raises(ValueError, match=f"each of the 3 groups.*Received {len(clips)}"):
        per_layer(VARIABLES, clips, 1.0, 4.0)


def test_refuses_an_unknown_split():
    with pytest.raises(ValueError, match="split must be 'uniform' or 'dimension'.*'size'"):
        per_layer(VARIABLES, 1.0, 1.0, 4.0, split="size")


BAD_NUMBERS = [
    (-1.0, ValueError),
    (math.nan, ValueError),
    (math.inf, ValueError),
    (True, TypeError),
    ("1", TypeError),
    (None, TypeError),
]


@pytest.mark.parametrize("name", ["l2_norm_clip", "noise_multiplier", "denominator"])
@pytest.mark.parametrize("value, error", BAD_NUMBERS)
def test_refuses_bad_numbers(name, value, error):
    arguments = {"l2_norm_clip": 1.0, "noise_multiplier": 1.0, "denominator": 4.0, name: value}
    with pytest.raises(error, match=f"{name} must be"):
        per_layer(VARIABLES, **arguments)


@pytest.mark.parametrize("value, error", [*BAD_NUMBERS, (0.0, ValueError)])
def test_refuses_a_bad_clip_in_a_sequence(value, error):
    with pytest.raises(error, match="l2_norm_clip must be"):
        per_layer(VARIABLES, [1.0, value, 1.0], 1.0, 4.0)


def test_refuses_what_is_not_a_random_source():
    with pytest.raises(TypeError, match="random_source"):
        per_layer(VARIABLES, 1.0, 1.0, 4.0, random_source=3)
